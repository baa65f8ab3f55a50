"""The page without a browser: what it holds, that nothing breaks out of it, and strange predictions."""

import base64
import builtins
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import trueup
from tests.report.cases import NAMES, STRANGE, at, embedded, network, stored, strange
from trueup import diagrams
from trueup.cli import app
from trueup.example import example_predictions
from trueup.inputs import InputError
from trueup.metrics.scores import score
from trueup.predictions import Predictions

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

import vl_convert

import trueup.report
from trueup.report import charts, images, live, page, specs

VAL, TEST = example_predictions().values()


def page_of(test, **more):
    return page.render(trueup.report.of_predictions(test, trueup.audit(test, resamples=20), **more))


class Outside(HTMLParser):
    """Every tag, and every attribute that could make a browser ask for something."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.asked = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.asked += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action") and v != "data:,"]


# ---------------------------------------------------------------------- the whole


def test_ten_thousand_samples_of_ten_classes_are_less_than_3_mb_and_ask_for_nothing(tmp_path):
    sets = network("cifar10_resnet110_kull", 10)
    trueup.audit(sets["test"], resamples=20).to_html(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert len(html.encode()) < 3e6
    assert Outside(html).asked == []
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\(", html.split("</style>")[0])
    assert html.count("window.vegaEmbed") == 1


def test_names_from_outside_stay_text():
    html = page_of(strange()["names"])
    tags = Outside(html).tags
    assert tags.count("script") == 4
    assert "b" not in tags[: tags.index("header")]
    assert "<b>bold" not in html
    assert "alert(1)</script>" not in html
    assert "&lt;i&gt;&amp;.npz" in html
    assert embedded(html)["sets"][0]["class_names"] == list(NAMES)
    assert "\u2028" not in html.split('id="content">')[1].split("</script>")[0]


@pytest.mark.parametrize("name", STRANGE)
def test_strange_predictions_have_a_page(name):
    test = strange()[name]
    html = page_of(test, val=test if len(test) > 1 else None)
    found = embedded(html)["sets"][0]  # json.loads would not read NaN as JSON has none
    assert found["samples"] == len(test)
    assert found["live"]["of"] == len(test)
    assert len(found["listed"]) == min(test.classes, 100)
    assert len(html) < 5.5e6
    if name == "always right":
        assert found["mistakes"] == []
        assert found["histogram"]["wrong"]["bins"] == []
    if name == "constant confidence":
        assert len(found["coverage"][0]["coverage"]) == 1
    if name == "thumbnails":
        assert all(each["image"].startswith("data:image/png;base64,") for each in found["mistakes"])


def test_every_spec_is_valid_once_its_blanks_are_filled():
    blanks = {
        "temperatures": [0.25, 4], "gammas": [-1, 6], "heights": [0.1 * i for i in range(8)], "format": ".1%",
        "height": 100, "epochs": [1, 9], "domain": [0, 1], "names": ["as it is"],
    }  # fmt: skip

    def filled(part):
        if isinstance(part, str) and part.startswith("$"):
            return blanks[part[1:]]
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        return [filled(each) for each in part] if isinstance(part, list) else part

    for name, spec in specs.all_of().items():
        vega = vl_convert.vegalite_to_vega(filled(spec) | {"config": specs.CONFIG})
        assert vega["marks"], name


# ---------------------------------------------------------------------- its numbers


def test_the_headline_says_what_scaling_is_worth():
    content = trueup.report.of_predictions(TEST, trueup.audit(TEST, resamples=200), val=VAL)
    assert content["headline"].startswith("Over-confident by 15.5 points (95 % interval")
    fitted = trueup.FocalTemperature().fit(VAL.logits, VAL.labels)
    live_fit = content["sets"][0]["live"]["fitted"]
    assert (live_fit["temperature"], live_fit["gamma"]) == (fitted.temperature, fitted.gamma)
    assert content["further"][0].startswith(f"After focal temperature scaling (T = {fitted.temperature:.3g}")
    after = trueup.ece(fitted(TEST.logits), TEST.labels)
    assert content["tiles"][1]["value"] == f"{100 * after:.2f} %"


def test_it_says_what_the_default_calibrator_gives_which_the_knobs_do_not_turn():
    found = trueup.audit(TEST, resamples=40)
    sides = trueup.compare(VAL, TEST, ("none", "auto"), resamples=40)
    first, second = trueup.report.of_predictions(TEST, found, val=VAL, comparison=sides)["further"]
    probs = trueup.Auto().fit(VAL.logits, VAL.labels)(TEST.logits)
    assert first.startswith("After auto, the default calibrator (here temperature): ")
    assert f"ECE {100 * trueup.ece(probs, TEST.labels):.2f} % (if calibrated" in first
    assert f"NLL {trueup.nll(probs, TEST.labels):.4f}." in first
    assert second.startswith("After focal temperature scaling")
    without = trueup.compare(VAL, TEST, ("none",), resamples=0)
    assert len(trueup.report.of_predictions(TEST, found, val=VAL, comparison=without)["further"]) == 1


def test_the_page_has_as_many_bins_as_the_audit():
    found = trueup.report.of_predictions(TEST, trueup.audit(TEST, resamples=0, bins=7))["sets"][0]
    assert found["live"]["bins"] == len(found["reliability"]["top"]["all"]["width"]["histogram"]) == 7
    assert found["reliability"]["top"]["all"]["width"]["error"] == pytest.approx(
        trueup.ece(TEST.probs, TEST.labels, bins=7), abs=1e-6
    )


def test_the_landscape_is_that_of_the_diagrams_and_of_the_metrics():
    found = live.live(TEST, None)
    logits, labels = stored(found, 5)
    edges_t, edges_g = (np.array(found["landscape"][name]) for name in ("temperatures", "gammas"))
    t, g = np.sqrt(edges_t[:-1] * edges_t[1:])[::9], ((edges_g[:-1] + edges_g[1:]) / 2)[::7]
    for metric in ("nll", "ece"):
        slow = diagrams.landscape(logits, labels, metric, temperatures=t, gammas=g).values
        ours = np.array(found["landscape"][metric]["values"])[::7, ::9]
        assert ours == pytest.approx(slow, rel=2e-4, abs=1e-6)
        assert found["landscape"][metric]["heights"] == sorted(found["landscape"][metric]["heights"])
    best = at(logits, labels, found["fitted"]["temperature"], found["fitted"]["gamma"])["nll"]
    assert best <= found["landscape"]["nll"]["best"]["value"] + 1e-9


def test_at_most_5000_samples_travel_and_fewer_of_many_classes():
    many = Predictions(logits=torch.randn(12_000, 3), labels=torch.zeros(12_000))
    rows = live.stored_rows(many)
    assert len(rows) == 5000
    assert (np.diff(rows) > 0).all()
    assert len(live.stored_rows(Predictions(logits=torch.randn(2000, 1000), labels=torch.zeros(2000)))) == 500


def test_coverage_is_that_of_a_slow_loop_and_keeps_equals_together():
    confidence = torch.tensor([0.9, 0.8, 0.8, 0.8, 0.6])
    scores = score(torch.stack([confidence, 1 - confidence], 1), torch.tensor([0, 1, 0, 0, 1]))
    found = charts.coverage(scores)
    assert found["coverage"] == [0.2, 0.8, 1.0]
    assert found["risk"] == pytest.approx([0, 0.25, 0.4])
    whole = charts.coverage(score(TEST.probs, TEST.labels))
    assert whole["error"] == trueup.error(TEST.probs, TEST.labels)
    ranked = np.argsort(-TEST.probs.amax(1).numpy(), kind="stable")
    wrong = (TEST.probs.argmax(1) != TEST.labels).numpy()[ranked]
    for share, risk in list(zip(whole["coverage"], whole["risk"], strict=True))[::25]:
        assert risk == pytest.approx(wrong[: round(share * 2000)].mean(), abs=1e-4)


def test_diagrams_of_a_class_are_those_of_its_forecasts():
    scores = score(TEST.probs, TEST.labels)
    found = charts.diagrams(scores, [1])
    p, y = TEST.probs[:, 1].numpy(), (TEST.labels == 1).numpy()
    shown = found["class"]["1"]["width"]
    assert shown["error"] == pytest.approx(_loop_ece(p, y), abs=1e-6)
    assert found["top"]["all"]["mass"]["error"] == pytest.approx(trueup.adaptive_ece(scores))
    said = (TEST.probs.argmax(1) == 1).numpy()
    assert found["top"]["1"]["width"]["samples"] == said.sum()
    every = np.concatenate([TEST.probs.numpy().ravel()])
    assert found["class"]["all"]["width"]["error"] == pytest.approx(
        _loop_ece(every, (np.arange(5) == TEST.labels.numpy()[:, None]).ravel()), abs=1e-6
    )


def _loop_ece(p, y, bins=15):
    total = 0.0
    for i in range(bins):
        inside = (p > np.float32(i / bins)) & (p <= np.float32((i + 1) / bins)) | ((i == 0) & (p == 0))
        total += abs(float(p[inside].astype(np.float64).sum()) - int(y[inside].sum()))
    return total / len(p)


def test_mistakes_come_with_the_most_confident_first():
    found = charts.mistakes(score(TEST.probs, TEST.labels), lambda row: None)
    confidences = [each["confidence"] for each in found]
    assert confidences == sorted(confidences, reverse=True)
    assert all(each["said"] != each["label"] == int(TEST.labels[each["row"]]) for each in found)
    wrong = TEST.probs.argmax(1) != TEST.labels
    assert confidences[0] == float(TEST.probs.amax(1)[wrong].max())


# ---------------------------------------------------------------------- thumbnails, files, commands


def test_a_thumbnail_is_the_picture_itself():
    pil = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 7), np.uint8)
    for made, given in zip(images.thumbnails(pixels), pixels, strict=True):
        read = np.asarray(pil.open(io.BytesIO(base64.b64decode(made))))
        assert np.array_equal(read, np.moveaxis(given, 0, 2))


@pytest.mark.parametrize("bad", ["PHN2Zz4=", "no base64", 7])
def test_only_pictures_become_thumbnails(bad):
    test = Predictions(logits=[[2.0, 0], [2, 0]], labels=[1, 1], meta={"thumbnails": [bad, bad]})
    with pytest.raises(InputError, match="row 0 is no PNG, JPEG or GIF"):
        page_of(test)
    with pytest.raises(InputError, match="expected a list of 2"):
        page_of(Predictions(logits=[[2.0, 0], [2, 0]], labels=[1, 1], meta={"thumbnails": [bad]}))
    with pytest.raises(InputError, match="images: expected uint8"):
        images.thumbnails(np.zeros((2, 4, 4)))


def test_the_commands_write_the_page_and_say_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, few in (("val", VAL), ("test", TEST)):
        Predictions(logits=few.logits[:300], labels=few.labels[:300], class_names=few.class_names).save(f"{name}.npz")
    options = ["--resamples", "20"]
    for command in (
        ["report", "test.npz", *options],
        [
            "report",
            "val.npz",
            "test.npz",
            "--method",
            "none",
            "--method",
            "temperature",
            "--html",
            "two.html",
            *options,
        ],
        ["audit", "test.npz", "--html", "audit.html", *options],
        ["compare", "val.npz", "test.npz", "--method", "vector", "--html", "compare.html", *options],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        out = command[command.index("--html") + 1] if "--html" in command else "report.html"
        assert f"{out} holds the page" in " ".join(done.output.split())
        assert "<!doctype html>" in (tmp_path / out).read_text()[:20]
    rows = embedded((tmp_path / "two.html").read_text())["comparison"]["rows"]
    assert [row["name"] for row in rows] == ["none", "temperature"]
    said = CliRunner().invoke(app, ["audit", "test.npz", "--html", "audit.html", "--json", *options])
    assert json.loads(said.stdout)["n"] == 300


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "test.npz", "--html", "test.npz"], "test.npz: a page ends in .html"),
        (["audit", "test.npz", "--html", "no/where.html"], "the folder no does not exist"),
        (["report", "."], "no study is in it"),
        (["report", ".", "test.npz"], "is given alone"),
        (["report", "test.npz", "test.npz", "test.npz"], "these are 3"),
        (["report", "test.npz", "--method", "none"], "give both files"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    Predictions(logits=TEST.logits[:50], labels=TEST.labels[:50]).save("test.npz")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


def test_without_jinja2_it_is_said_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("jinja2"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    page._template.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"install trueup\[report\]"):
        page.page_path("page.html")
