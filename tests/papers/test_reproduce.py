"""The command reproduce, the page that it writes, and the figures that it draws."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.papers.conftest import RESULTS
from trueup.audit import Measure
from trueup.cli import app
from trueup.inputs import InputError
from trueup.papers import lossfunctions, page
from trueup.papers.figures import Panel, ece_of_nets, looks, save_panels, save_pictures
from trueup.papers.judged import State
from trueup.papers.lossfunctions import CE, ENTROPY, FOCAL, L1
from trueup.papers.page import PLACES, write_page
from trueup.papers.reproduction import FAILS, HOLDS, UNCLEAR, UNTESTED, Finding, Point, Reproduction, Sheet, listed
from trueup.tables import text

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reproduction.md"


def inside(*arguments, **environment):
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment or None)


def test_the_page_is_what_the_command_writes(reproductions):
    assert PAGE.read_text() == page(list(reproductions.values())), "run: trueup reproduce all --docs docs"


@pytest.mark.parametrize("name", ["reproduction.md", "focal-temperature.md", "curvature.md", "gaussians.md"])
def test_no_page_quotes_what_rounding_leaves(name):
    """It differs from one processor to the next, and so would the page."""
    assert not re.findall(r"\de-1[3-9]", (DOCS / name).read_text())


def test_a_page_that_papers_share_is_not_written_of_one_alone(reproductions, tmp_path):
    path = tmp_path / "reproduction.md"
    path.write_text("as it was")
    for paper, other in (("mukhoti2020", "lossfunctions"), ("lossfunctions", "mukhoti2020")):
        with pytest.raises(InputError, match=f"the page is about {other} too; name all"):
            write_page(path, [reproductions[paper]])
        with pytest.raises(InputError, match=f"no page is about {paper} alone"):
            write_page(tmp_path, [reproductions[paper]])
    assert path.read_text() == "as it was"
    assert write_page(path, [reproductions["mukhoti2020"], reproductions["lossfunctions"]]) == [path]
    assert "## lossfunctions" in path.read_text()
    assert set(reproductions) == set(PLACES)


def test_our_own_questions_have_a_table_and_a_tally_of_their_own():
    claims = [Finding("A claim.", "Table 1", verdict, "", "x") for verdict in (HOLDS, UNCLEAR)]
    ours = Finding("A question.", "ours", FAILS, "", "y", ours=True)
    made = Reproduction("paper", "title", (), (*claims, ours), (), (), gist=(Point("It is so.", ("by 3 %",)),))
    first, second = made.verdicts
    assert first.note == "1 holds, 0 does not hold, 1 cannot be told, 0 not tested"
    assert second.note == "0 holds, 1 does not hold, 0 not tested"
    assert [row[1] for row in second.rows] == ["A question."]
    assert made.markdown().startswith("## paper: title\n\n### In short\n\n- **It is so.**\n  - by 3 %\n")
    assert [claim["ours"] for claim in made.to_dict()["claims"]] == [False, False, True]
    (alone,) = Reproduction("paper", "title", (), tuple(claims), (), ()).verdicts
    assert alone.title == "paper: the claims"


def test_a_claim_has_one_row_and_one_number_with_all_that_it_was_judged_on():
    on = [Finding("A claim.", "Table 1", HOLDS, f"a net, {data}", f"of {data}", short=data) for data in ("one", "two")]
    other = Finding("A question.", "ours", FAILS, "", "y", (("a net, three", UNCLEAR, "z"),), ours=True)
    page = Reproduction("paper", "title", (), (on[0], other, on[1]), ("a_run",), ()).markdown()
    assert "| 1 | A claim. | Table 1 | **holds**: one<br>**holds**: two |" in page
    assert "| 2 | A question. | ours | **does not hold** |" in page
    assert "1\\. A claim.\n\n- a net, one: **holds**. of one\n- a net, two: **holds**. of two\n" in page
    assert "2\\. A question.\n\n- **does not hold**. y\n" in page
    beside = "<summary>Other trainings: 1 cannot be told</summary>\n\n- a net, three: **cannot be told**. z\n"
    assert beside in page
    assert "<summary>Not run yet: 1</summary>\n\n- `a_run`\n" in page


def test_evidence_of_several_parts_is_a_list_for_people_and_a_line_for_programs():
    finding = Finding("A claim.", "Table 1", HOLDS, "a net", listed("in %:", ["one 1", "two 2"]))
    made = Reproduction("paper", "title", (), (finding,), (), ())
    assert "- a net: **holds**. in %:\n  - one 1\n  - two 2\n" in made.markdown()
    assert made.to_dict()["claims"][0]["evidence"] == "in %: one 1; two 2"
    assert [line.strip() for line in text(made, 80).splitlines()].count("one 1") == 1


@pytest.mark.parametrize("paper", ["mukhoti2020", "kimura2024"])
def test_in_a_narrow_terminal_no_number_is_broken_and_no_line_is_too_long(reproductions, paper):
    found = reproductions[paper]
    every = [*found.sheets, *(sheet for each in getattr(found, "answers", ()) for sheet in each.sheets)]
    for sheet in every:
        shown = text(sheet, 80)
        assert max(map(len, shown.splitlines())) <= 80
        naming = set.intersection(*map(set, parts)) if len(parts := sheet.parts(80)) > 1 else {0}
        for row in sheet.rows:
            cells = [cell for i, cell in enumerate(row) if i not in naming and len(cell) < 36]
            assert all(cell in shown for cell in cells), (sheet.title, row)


def test_a_wide_table_names_its_rows_in_every_part():
    rows = (("MLP", "0", "1.00", "2.00"), ("", "1", "3.00", "4.00"), ("ViT", "0", "5.00", "6.00"))
    sheet = Sheet("A title", ("net", "gamma", "error of the net", "ECE of the net"), rows, "A note.")
    assert sheet.parts(80) == [[0, 1, 2, 3]]
    assert sheet.parts(20) == [[0, 1, 2], [0, 1, 3]]
    told = text(sheet, 20)
    assert told.count("A title") == told.count("A note.") == 1
    assert told.count("ViT") == 2


def test_a_terminal_ends_with_what_it_comes_to(reproductions):
    for paper, found in reproductions.items():
        told = text(found, 80)
        assert told.startswith(f"{paper}: ")
        places = [told.rfind(f"{paper}: {part}") for part in ("what the verdicts rest on", "the", "in short")]
        assert places[0] < places[1]
        assert places[1] < places[2] or not found.points
        wide = text(found, 200)
        for each in getattr(found, "answers", ()):
            assert wide.count(each.question) == (2 if each.sheets else 1)  # over its tables, and with its answer


def test_a_long_table_is_folded():
    short, long = (Sheet("A title & more", ("a",), (("1",),) * rows, "A note.").markdown() for rows in (24, 25))
    assert short.startswith("**A title & more**\n\n| a |\n")
    assert long.startswith("<details>\n<summary><b>A title &amp; more</b> (25 rows)</summary>\n\n| a |\n")
    assert long.endswith("A note.\n\n</details>\n")


@pytest.mark.parametrize("paper", ["mukhoti2020", "lossfunctions"])
def test_a_reproduction_ends_with_verdicts(reproductions, paper):
    found = reproductions[paper]
    assert {finding.verdict for finding in found.findings} <= {HOLDS, FAILS, UNCLEAR, UNTESTED}
    told = " ".join(str(found).split())
    for finding in found.findings:
        assert f"{finding.claim} ({finding.where})" in told
        assert f"{finding.verdict} {finding.subject}".strip() in told
        assert finding.evidence
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [claim["verdict"] for claim in content["claims"]] == [finding.verdict for finding in found.findings]
    assert {*content["missing"], *(row["name"] for row in content["networks"])} >= set(lossfunctions.recipes() if
        paper == "lossfunctions" else ())  # fmt: skip


def test_lossfunctions_as_json():
    done = inside("reproduce", "lossfunctions", "--results", RESULTS, "--resamples", 20, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert len(content["networks"]) + len(content["missing"]) == 12
    assert len(content["tables"][0]["rows"]) == 12
    assert "not tested" in content["tally"]["lossfunctions: the claims"]
    ece = content["networks"][0]["ece_by_epoch"]
    assert len(ece) == 105
    assert ece[-1] == pytest.approx(
        content["networks"][0]["figures"]["states"]["before"]["metrics"]["ece"]["value"], abs=2e-4
    )


def followed(by_epoch, ece, overconfidence):
    """A run that is only its ECE over the epochs, and two figures at the end, each with 1 point of standard error."""
    from types import SimpleNamespace

    ends = {"ece": ece, "overconfidence": overconfidence}
    state = State(1.0, {name: Measure(value, value - 0.0196, value + 0.0196) for name, value in ends.items()})
    run = SimpleNamespace(recipe=SimpleNamespace(milestones=(2, 4)))
    return lossfunctions.Followed(run, SimpleNamespace(before=state), np.array(by_epoch, dtype=float))


def test_the_claims_of_lossfunctions_can_turn():
    calm, restless = [0.1] * 8, [0.1] * 4 + [0.1, 0.3, 0.1, 0.3]
    ece = {CE: 0.1, ENTROPY: 0.09, L1: 0.12, FOCAL: 0.04}
    over = {CE: 0.1, ENTROPY: 0.07, L1: -0.12, FOCAL: 0.04}
    of = {loss: followed(restless if loss == ENTROPY else calm, ece[loss], over[loss]) for loss in ece}
    verdicts = [f.verdict for f in lossfunctions.claims({"resnet18": of, "vgg16-bn": of, "resnet50": {CE: of[CE]}})]
    assert verdicts == [
        HOLDS, HOLDS, HOLDS,
        UNCLEAR, UNCLEAR, UNTESTED,  # 3 points of 10 less, where 2 count and the error is 1.3
        HOLDS,
        HOLDS, UNTESTED,  # over-confidence is gone, whatever the ECE of being too timid
        FAILS,
        HOLDS, HOLDS, UNTESTED,
    ]  # fmt: skip
    calmer = of | {L1: followed([0.1] * 4 + [0, 0.9, 0, 0.9], 0.1, 0.12), FOCAL: followed(calm, 0.09, 0.1)}
    turned = {f.claim[:12]: f.verdict for f in lossfunctions.claims(dict.fromkeys(lossfunctions.MODELS, calmer))}
    assert turned["With the ent"] == FAILS
    assert turned["The L1 norm "] == HOLDS
    assert turned["Focal loss h"] == UNCLEAR


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody2020"], "unknown paper 'nobody2020'; known: mukhoti2020"),
        (["mukhoti2020", "--results", "nowhere"], "nowhere: no such folder"),
        (["mukhoti2020", "--results", "."], "authors.json: missing"),
        (["lossfunctions", "--results", "nowhere"], "nowhere: no such folder"),
        (["lossfunctions", "--authors"], "--authors: no network of lossfunctions is public"),
        (["all", "--authors"], "--store and --authors: name one paper"),
        (["mukhoti2020", "--store", "nowhere"], "nowhere: no complete run is in it"),
        (["mukhoti2020", "--retrain", "--only", "vgg*"], "--only vgg*: no run of the grid is named so"),
        (["mukhoti2020", "--retrain", "--data-dir", "."], "cifar10"),
        (["lossfunctions", "--only", "vgg*"], "--only: it is of --retrain, which was not asked for"),
        (["lossfunctions", "--jobs", "2"], "--jobs: it is of --retrain"),
        (["lossfunctions", "--figures", "a_file"], "a_file: a file, not a folder"),
        (["lossfunctions", "--docs", "nowhere/reproduction.md"], "the folder nowhere does not exist"),
        (["lossfunctions", "--docs", "."], "no page is about lossfunctions alone"),
        (["mukhoti2020", "--authors", "--data-dir", "."], "no cifar10_resnet50_brier_mukhoti; looked in"),
    ],
)
def test_what_the_user_can_mend_is_told_in_one_line(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    done = inside("reproduce", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_a_changed_file_of_the_results_is_named(tmp_path):
    shutil.copytree(RESULTS / "mukhoti2020", tmp_path / "mukhoti2020")
    path = tmp_path / "mukhoti2020" / "authors.json"
    path.write_text(path.read_text().replace("0.9", "0.8", 1))
    done = inside("reproduce", "mukhoti2020", "--results", tmp_path)
    assert done.exit_code == 2
    assert f"{path}: changed" in done.stderr


@pytest.mark.parametrize("name", sorted(set(PLACES.values())))
def test_every_figure_of_a_page_is_there(reproductions, name):
    linked = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page(list(reproductions.values()), name))
    assert linked
    assert [path for path in linked if not (DOCS / path).is_file()] == []


@pytest.mark.parametrize("paper", ["mukhoti2020", "lossfunctions"])
def test_the_command_draws_what_the_page_shows(tmp_path, reproductions, paper):
    pytest.importorskip("matplotlib")
    from trueup import papers

    drawn = papers.chosen(paper)[paper].draw(RESULTS, tmp_path)
    shown = [Path(path).name for _, path in reproductions[paper].figures if path]
    assert [path.name for path in drawn] == shown
    assert all(path.read_text().startswith("<?xml") for path in drawn)
    needs_no_run = {f"figure{number}.svg" for number in (4, 5, 6, 7)}
    assert set(shown) >= (needs_no_run if paper == "mukhoti2020" else set())


def test_a_figure_that_cannot_be_drawn_is_said_and_not_linked(tmp_path):
    (nothing,) = ece_of_nets({})
    assert save_pictures([nothing], tmp_path) == []
    shown = (("Figure 1: lines. Of two nets.", "figures/1.svg"), (nothing.told, ""))
    lines = Reproduction("paper", "title", (), (), (), (), figures=shown).markdown().splitlines()
    at = lines.index("### Figures")
    assert lines[at + 2 : at + 7 : 2] == [shown[0][0], "![Figure 1: lines](figures/1.svg)", shown[1][0]]


def test_points_are_drawn_below_the_lines(tmp_path):
    pytest.importorskip("matplotlib")
    line = (np.arange(3), np.arange(3))
    panel = Panel("both", "x", "y", {"a line": line}, points={"label 0": line, "label 1": line})
    assert panel.names == ("label 0", "label 1", "a line")
    drawn = save_panels([panel], tmp_path / "points.svg").read_text()
    assert drawn.count("PathCollection") >= 2


def test_legends_stand_below_the_panels_once_where_all_are_alike(tmp_path):
    pytest.importorskip("matplotlib")
    line, bins = (np.arange(3), np.arange(3)), (np.arange(4), np.array([1, np.nan, 2]))
    lines = Panel("left", "x", "y", {"a first name": line, "b": line}, diagonal=True)
    counts = Panel("right", "x", "y", stairs={"a first name": bins, "c": bins}, span=(0, 5))
    for panels, times in (([lines, lines], 1), ([lines, counts], 2)):
        drawn = save_panels(panels, tmp_path / "both.svg", legend_below=True).read_text()
        assert drawn.count("<!-- a first name -->") == times


def test_a_loss_has_the_same_colour_whatever_stands_beside_it():
    every = looks(["cross-entropy", "entropy penalty", "L1 norm", "focal loss"])
    alone = looks(["cross-entropy", "focal loss"])
    assert (alone[0], alone[1]) == (every[0], every[3])
    assert len({colour for colour, *_ in every}) == 4
    assert looks(["FL-3"]) == looks(["γ = 3"]) == looks(["focal:3"]) == looks(["focal loss, γ = 3"])
    losses = ["cross-entropy", *(f"focal:{gamma}" for gamma in (1, 2, 3, 4, 5, 7, 10))]
    assert len({colour for colour, *_ in looks(losses)}) == len(losses)


def test_a_figure_on_a_page_says_what_it_shows(reproductions):
    for found in reproductions.values():
        told = found.markdown()
        for each in getattr(found, "answers", ()):
            for caption, path in each.figures:
                assert f"{caption}.\n\n![" in told
                assert f"]({path})" in told
