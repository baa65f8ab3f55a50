"""The page in a browser, from disk and with the network off: its numbers are those of Python, and nobody is asked."""

import pytest

import trueup
from tests.report.browser import CHROMIUM, HOW_TO_GET_IT, Browser
from tests.report.cases import STRANGE, at, embedded, network, stored, strange
from trueup.example import example_predictions

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

import trueup.report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=HOW_TO_GET_IT)

WIDTHS = {"desktop": 1200, "phone": 390}
POSITIONS = ((0.5, 0.0), (2.0, 1.0), (1.0, 3.0), (3.5, 6.0), (1.3, -0.6))

MOVE = """(() => {
  const move = (id, value) => {
    const slider = document.getElementById(id);
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
    return Number(slider.dataset.value);
  };
  const shown = (id) => Number(document.getElementById(id).dataset.value);
  const temperature = move("temperature", Math.log(%r));
  const gamma = move("gamma", %r);
  return { temperature, gamma, ece: shown("ece-now"), nll: shown("nll-now"), confidence: shown("confidence-now"),
           said: document.getElementById("ece-now").textContent };
})()"""

# the time until all that follows a move is done: what it starts at once ends before a new task begins
TIMED = """(async () => {
  const slider = document.getElementById("temperature");
  const times = [];
  for (let i = 0; i < 30; i++) {
    const begun = performance.now();
    slider.value = Number(slider.min) + (slider.max - slider.min) * (i + 1) / 32;
    slider.dispatchEvent(new Event("input"));
    await new Promise((done) => { const c = new MessageChannel(); c.port1.onmessage = done; c.port2.postMessage(0); });
    document.getElementById("live").getBoundingClientRect();
    times.push(performance.now() - begun);
  }
  return Math.min(...times); // other work on the machine only adds to it
})()"""


@pytest.fixture(scope="module")
def browser():
    made = Browser()
    yield made
    made.close()


def written(folder, sets, **more):
    test = sets["test"]
    content = trueup.report.of_predictions(test, trueup.audit(test, resamples=20), val=sets["val"], **more)
    trueup.report.write(folder / "page.html", content)
    return folder / "page.html"


def undisturbed(browser, path):
    """No complaint in the console, and nothing asked for but the page itself."""
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.resolve().as_uri()]


NETWORKS = [
    pytest.param("cifar10_resnet110_kull", 10, None, id="K=10"),
    pytest.param("cifar100_resnet50_brier_mukhoti", 100, 800, id="K=100"),
    pytest.param("cifar100_resnet50_brier_mukhoti", 100, None, id="K=100, whole", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "classes", "rows"), NETWORKS)
def test_the_knobs_show_what_python_computes(browser, tmp_path, name, classes, rows):
    path = written(tmp_path, network(name, classes, rows))
    logits, labels = stored(embedded(path.read_text())["sets"][0]["live"], classes)
    for width_name, width in WIDTHS.items():
        browser.size(width, phone=width_name == "phone")
        browser.open(path)
        assert browser.run("document.documentElement.scrollWidth") <= width
        for temperature, gamma in POSITIONS:
            found = browser.run(MOVE % (temperature, gamma))
            assert (found["temperature"], found["gamma"]) == pytest.approx((temperature, gamma), abs=0.02)
            expected = at(logits, labels, found["temperature"], found["gamma"])
            assert {metric: found[metric] for metric in expected} == pytest.approx(expected, abs=1e-6)
            assert found["said"] == f"{100 * expected['ece']:.2f} %"
        browser.screenshot(tmp_path / f"{width_name}.png")
        undisturbed(browser, path)
    if classes == 10:
        assert browser.run(TIMED) < 50  # ms


def test_keyboard_buttons_numbers_and_clicks_move_the_knobs(browser, tmp_path):
    path = written(tmp_path, network("cifar10_resnet110_kull", 10, 500))
    browser.size(1200, 2400)
    browser.open(path)
    fitted = embedded(path.read_text())["sets"][0]["live"]["fitted"]
    position = "['temperature', 'gamma'].map((id) => Number(document.getElementById(id).dataset.value))"
    browser.run("document.getElementById('temperature').focus()")
    browser.press("ArrowRight", 39)
    assert 1 < browser.run(position)[0] < 1.02
    browser.run("document.getElementById('to-fitted').click()")
    assert browser.run(position) == [fitted["temperature"], fitted["gamma"]]
    browser.run("document.getElementById('reset').click()")
    assert browser.run(position) == [1, 0]
    browser.run(
        "const box = document.getElementById('gamma-number'); box.value = 2.5; box.dispatchEvent(new Event('input'))"
    )
    assert browser.run(position) == [1, 2.5]
    box = browser.run(
        "(() => { const b = document.querySelector('#landscape .mark-rect').getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.click(*box)
    assert browser.run(position) == pytest.approx([(0.25 * 4.28) ** 0.5, 2.5], abs=0.05)  # the middle of the landscape
    undisturbed(browser, path)


def test_diagrams_and_tables_follow_their_controls(browser, tmp_path):
    sets = network("cifar10_resnet110_kull", 10, 500)
    comparison = trueup.compare(sets["val"], sets["test"], ("none", "temperature", "vector"), resamples=20)
    path = written(tmp_path, sets, comparison=comparison)
    browser.size(1200)
    browser.open(path)
    shown = embedded(path.read_text())["sets"][0]["reliability"]
    error = "document.querySelector('#reliability-words dd').textContent"
    for forecast, which in (("top", "all"), ("class", "all"), ("class", "3"), ("top", "3")):
        for scheme in ("width", "mass"):
            browser.run(
                f"for (const [name, value] of [['forecast', '{forecast}'], ['scheme', '{scheme}']]) {{"
                "const i = document.querySelector(`input[name=${name}][value=${value}]`); i.checked = true;"
                "i.dispatchEvent(new Event('change')); }"
                f"document.getElementById('class').value = '{which}';"
                "document.getElementById('class').dispatchEvent(new Event('change'))"
            )
            assert browser.run(error) == f"{100 * shown[forecast][which][scheme]['error']:.2f} %"
    order = "[...document.querySelectorAll('#comparison tbody tr')].map((row) => row.dataset.name)"
    head = "document.querySelectorAll('#comparison thead button')[1].click()"
    by_nll = [row.calibrator for row in sorted(comparison.rows, key=lambda row: row.metrics["nll"].value)]
    browser.run(head)
    assert browser.run(order) == by_nll
    browser.run(head)
    assert browser.run(order) == by_nll[::-1]
    undisturbed(browser, path)


def test_a_key_names_what_is_drawn_and_no_mark_is_cut(browser, tmp_path):
    browser.size(1200)
    sets = network("cifar10_resnet110_kull", 10, 500)
    for given, names in ((sets, ["as it is", "after scaling"]), (sets | {"val": None}, ["as it is"])):
        browser.open(written(tmp_path, given))
        key = "[...document.querySelectorAll('#coverage .role-legend-label text')].map((each) => each.textContent)"
        assert browser.run(key) == names
        assert browser.run("document.querySelectorAll('#landscape .mark-symbol[clip-path]').length") == 0


def test_a_name_is_neither_cut_on_a_phone_nor_written_over_by_a_mark(browser, tmp_path):
    """On the page of the command that the README shows."""
    sets = example_predictions()
    sides = trueup.compare(sets["val"], sets["test"], ("none", "temperature", "bias-temperature"), resamples=40)
    path = written(tmp_path, sets, comparison=sides)
    for width_name, width in WIDTHS.items():
        browser.size(width, phone=width_name == "phone")
        browser.open(path)
        names = "[...document.querySelectorAll('#mistakes bdi')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert browser.run(names) == 0, width_name
        box = "map((e) => e.getBoundingClientRect())"
        named = "filter((e) => ['none', 'temperature', 'bias-temperature'].includes(e.textContent))"
        label = f"Math.max(...[...document.querySelectorAll('#intervals text')].{named}.{box}.map((b) => b.right))"
        mark = f"Math.min(...[...document.querySelectorAll('#intervals .mark-rule line')].{box}.map((b) => b.left))"
        assert browser.run(f"{label} < {mark} - 4"), width_name


def test_without_javascript_the_words_and_tables_are_there_and_nothing_that_is_dead(browser, tmp_path):
    """As in the preview of a mail."""
    sets = example_predictions()
    path = written(tmp_path, sets, comparison=trueup.compare(sets["val"], sets["test"], ("none", "auto"), resamples=0))
    browser.scripts(False)
    try:
        browser.open(path, until="document.readyState === 'complete'")
        seen = "[...document.querySelectorAll(%r)].filter((e) => e.getClientRects().length).length"
        assert browser.run(seen % "h1, .further, table, noscript p") == 1 + 2 + 2 + 1
        assert browser.run(seen % "input, select, .chart, #theme") == 0
        undisturbed(browser, path)
    finally:
        browser.scripts(True)


def test_strange_predictions_open_without_complaint(browser, tmp_path):
    browser.size(1200)
    for name in STRANGE:
        test = strange()[name]
        path = written(tmp_path, {"test": test, "val": test if len(test) > 1 else None})
        browser.open(path)
        found = browser.run(MOVE % (2.0, 1.0))
        logits, labels = stored(embedded(path.read_text())["sets"][0]["live"], test.classes)
        expected = at(logits, labels, found["temperature"], found["gamma"])
        assert {metric: found[metric] for metric in expected} == pytest.approx(expected, abs=1e-6), name
        words = browser.run("document.getElementById('mistakes-empty').hidden")
        assert words == bool((test.probs.argmax(1) != test.labels).any()), name
        undisturbed(browser, path)


def test_dark_light_and_paper(browser, tmp_path):
    path = written(tmp_path, network("cifar10_resnet110_kull", 10, 300))
    browser.size(1200)
    ink = "getComputedStyle(document.querySelector('#reliability .mark-text text, #reliability text')).fill"
    seen = {}
    for kind in ("light", "dark", "print"):
        browser.media(dark=kind == "dark", kind="print" if kind == "print" else "")
        browser.open(path)
        seen[kind] = browser.run(ink)
        browser.screenshot(tmp_path / f"{kind}.png")
    browser.media()
    assert len(set(seen.values())) == 3
    browser.print(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    undisturbed(browser, path)
