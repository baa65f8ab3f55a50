"""The commands, as a shell sees them."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import trueup
from tests import bad
from trueup.cli import app
from trueup.example import example_predictions


def run(*arguments, cwd=None, timeout=120, width=100):
    """A real process: what it prints on both channels, and its exit code."""
    command = [sys.executable, "-m", "trueup", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=os.environ | {"COLUMNS": str(width)},
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("example")
    for name, predictions in example_predictions().items():
        predictions.save(place / f"{name}.npz")
    return place


def test_example_makes_the_files_that_the_other_commands_take(tmp_path):
    done = run("example", tmp_path)
    assert done.returncode == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["test.npz", "val.npz"]
    assert len(trueup.load(tmp_path / "test.npz")) == 2000


def test_help_lists_the_commands_as_a_newcomer_meets_them():
    listed = re.findall(r"^│ (\w+)  ", run("--help").stdout, re.MULTILINE)
    assert listed[:2] == ["example", "audit"]
    assert listed[-1] == "reproduce"


def test_every_sentence_of_the_help_has_its_line():
    """Also in a narrow terminal, where the lines of a docstring would be broken a second time."""
    done = run("report", "--help", width=80)
    assert "Of a study's FOLDER: every loss and seed." in done.stdout


@pytest.mark.parametrize("options", [(), ("--resamples", "0")])
def test_the_title_of_a_table_is_in_one_line(folder, options):
    first = run("audit", folder / "test.npz", *options).stdout.splitlines()[0]
    assert first.strip() == "test.npz: 2000 samples, 5 classes"


def test_a_page_that_cannot_be_drawn_does_not_take_the_table_with_it(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "page.html")

    monkeypatch.setattr(trueup.Audit, "to_html", full)
    done = CliRunner().invoke(app, ["audit", str(folder / "test.npz"), "--html", str(folder / "page.html")])
    assert done.exit_code == 2
    assert "Over-confident" in done.stdout


def test_example_makes_the_folder(tmp_path):
    assert run("example", tmp_path / "new" / "folder").returncode == 0
    assert (tmp_path / "new" / "folder" / "val.npz").is_file()


def test_audit_prints_a_table_and_a_verdict(folder):
    done = run("audit", folder / "test.npz")
    assert done.returncode == 0
    for word in ("NLL", "classwise ECE", "if calibrated", "Over-confident by 1"):
        assert word in done.stdout
    assert done.stderr == ""


def test_audit_as_json_is_what_python_gives(folder):
    done = run("audit", folder / "test.npz", "--json", "--resamples", 200, "--seed", 3)
    found = json.loads(done.stdout)
    expected = trueup.audit(trueup.load(folder / "test.npz"), resamples=200, seed=3)
    assert found == json.loads(json.dumps(expected.to_dict()))
    assert set(found) >= {"n", "classes", "metrics"}
    assert set(found["metrics"]) == set(trueup.METRICS)
    assert set(found["metrics"]["ece"]) == {"value", "low", "high", "calibrated", "p"}
    assert set(found["metrics"]["nll"]) == {"value", "low", "high"}


def test_calibrate_then_apply_then_audit(folder, tmp_path):
    fitted = run("calibrate", folder / "val.npz", "--save", tmp_path / "map.json")
    assert fitted.returncode == 0
    assert "cross-validated NLL" in re.sub(r"\s+", " ", fitted.stdout.replace("│", ""))
    applied = run("apply", tmp_path / "map.json", folder / "test.npz", "--save", tmp_path / "out.parquet")
    assert applied.returncode == 0
    out = trueup.load(tmp_path / "out.parquet")
    assert out.given == "probs"
    assert out.class_names == ("cat", "deer", "dog", "frog", "horse")
    test = trueup.load(folder / "test.npz")
    assert out.labels.tolist() == test.labels.tolist()
    np.testing.assert_allclose(out.probs, trueup.load_map(tmp_path / "map.json")(test.logits))
    assert trueup.ece(out.probs, out.labels) < 0.03
    audited = run("audit", tmp_path / "out.parquet").stdout
    assert audited.startswith("out.parquet: 2000 samples")
    assert "No miscalibration found" in audited


def test_a_map_is_not_applied_to_classes_in_another_order(folder, tmp_path):
    path, turned = tmp_path / "map.json", tmp_path / "turned.npz"
    assert run("calibrate", folder / "val.npz", "--method", "vector", "--save", path).returncode == 0
    test = trueup.load(folder / "test.npz")
    names = test.class_names
    assert trueup.load_map(path).class_names == names
    trueup.Predictions(logits=test.logits.flip(1), labels=4 - test.labels, class_names=names[::-1]).save(turned)
    refused = run("apply", path, turned, "--save", tmp_path / "out.npz")
    assert refused.returncode == 2
    told = " ".join(refused.stderr.split())
    assert "turned.npz: class 0 is 'horse'" in told
    assert "was fitted to 'cat' there" in told
    assert not (tmp_path / "out.npz").exists()
    for names in (["cat"], 5, [1, 2, 3, 4, 5]):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"class_names": names}))
        with pytest.raises(trueup.InputError, match="class_names: expected 5 texts"):
            trueup.load_map(path)


def test_calibrate_warns_of_few_samples_in_one_line_on_stderr(tmp_path, folder):
    val = trueup.load(folder / "val.npz")
    trueup.Predictions(logits=val.logits[:99], labels=val.labels[:99]).save(tmp_path / "few.npz")
    few = run("calibrate", tmp_path / "few.npz", "--method", "temperature", "--json")
    assert few.returncode == 0
    assert few.stderr.startswith("warning: 99 samples of 5 classes are few")
    assert few.stderr.count("\n") == 1
    assert json.loads(few.stdout)["calibrator"] == "temperature"
    assert run("calibrate", folder / "val.npz", "--method", "temperature").stderr == ""
    assert run("calibrate", tmp_path / "few.npz", "--method", "none").stderr == ""


def interrupted(at, *arguments):
    """The command, with an interrupt that comes when the code before it has set it to."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    command = [sys.executable, "-c", f"{code} {at}; import trueup_command; trueup_command.main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_interrupt_ends_with_a_word_and_writes_nothing(folder, tmp_path):
    at = "import trueup; trueup.Temperature.fit_checked = lambda *_: signal.raise_signal(signal.SIGINT)"
    save = tmp_path / "map.json"
    done = interrupted(at, "calibrate", folder / "val.npz", "--method", "temperature", "--save", save)
    assert done.returncode == 130
    assert done.stderr.strip() == "stopped"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_fault(folder):
    """As in ``trueup audit test.npz --json | head``."""
    command = [sys.executable, "-m", "trueup", "audit", str(folder / "test.npz"), "--resamples", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_interrupt_while_the_package_is_imported_ends_without_a_word():
    finder = "lambda name, *_: signal.raise_signal(signal.SIGINT) if name == 'torch' else None"
    at = f"sys.meta_path.insert(0, type('Finder', (), {{'find_spec': staticmethod({finder})}}))"
    done = interrupted(at, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_threads_wait_busily_for_a_moment_only_unless_the_user_says_otherwise():
    code = "import os, sys; sys.argv[1:] = ['--help']\nimport trueup_command\n"
    code += "try: trueup_command.main()\nexcept SystemExit: print('waits', os.environ.get('GOMP_SPINCOUNT'))"
    own = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for given, expected in (({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own | given)
        assert done.stdout.endswith(f"waits {expected}\n")


@pytest.mark.parametrize("method", ["temperature", "focal-map:1", "focal-temperature", "softplus+vector", "isotonic"])
def test_calibrate_takes_every_method(folder, tmp_path, method):
    done = run("calibrate", folder / "val.npz", "--method", method, "--save", tmp_path / "map.json", "--json")
    found = json.loads(done.stdout)
    assert found["calibrator"] == method
    assert found["saved"] == str(tmp_path / "map.json")
    assert found["fit_report"]["before"] > 0
    trueup.load_map(tmp_path / "map.json")


def test_calibrate_by_another_criterion(folder):
    done = run("calibrate", folder / "val.npz", "--method", "temperature", "--criterion", "ece", "--json")
    assert json.loads(done.stdout)["params"]["temperature"] == pytest.approx(2.5, abs=0.3)


def test_compare_shows_every_calibrator(folder):
    done = run("compare", folder / "val.npz", folder / "test.npz", "--resamples", 50)
    assert done.returncode == 0
    for name in trueup.CALIBRATORS:
        assert (name in done.stdout) == (name != "focal-map")
    assert "auto chose" in done.stdout


def test_compare_as_json(folder):
    methods = ["--method", "temperature", "--method", "softplus+vector"]
    done = run("compare", folder / "val.npz", folder / "test.npz", *methods, "--resamples", 50, "--json")
    found = json.loads(done.stdout)
    assert [row["calibrator"] for row in found] == ["temperature", "softplus+vector"]
    for row in found:
        assert set(row) >= {"calibrator", "params", "fit_seconds", "metrics"}
        assert row["metrics"]["nll"]["low"] <= row["metrics"]["nll"]["value"] <= row["metrics"]["nll"]["high"]
    assert found[0]["params"]["temperature"] == pytest.approx(2.4, abs=0.1)


def test_binary_scores(tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 3, 400)
    labels = rng.random(400) < 1 / (1 + np.exp(-scores / 2))
    rows = "".join(f"{score},{int(label)}\n" for score, label in zip(scores, labels, strict=True))
    (tmp_path / "p.csv").write_text("logit,label\n" + rows)
    done = run("audit", tmp_path / "p.csv", "--binary", "--resamples", 50, "--json")
    assert json.loads(done.stdout)["classes"] == 2
    refused = run("audit", tmp_path / "p.csv")
    assert refused.returncode == 2
    assert "--binary" in refused.stderr


def test_version_and_help():
    assert run("--version").stdout.strip() == f"trueup {trueup.__version__}"
    text = run("--help").stdout
    for command in ("audit", "calibrate", "apply", "compare", "example"):
        assert command in text


def faulty_files(place):
    np.savez(place / "nan.npz", logits=bad.BAD_LOGITS["NaN"][0], labels=bad.LABELS)
    np.savez(place / "labels.npz", logits=bad.LOGITS, labels=bad.BAD_LABELS["out of range"][0])
    np.savez(place / "sums.npz", probs=bad.BAD_PROBS["a row that sums to 1.5"][0], labels=bad.LABELS)
    np.savez(place / "swapped.npz", logits=bad.PROBS, labels=bad.LABELS)
    np.savez(place / "empty.npz", logits=np.zeros((0, 3)), labels=[])
    np.savez(place / "other.npz", logits=np.random.default_rng(0).normal(0, 3, (30, 3)), labels=np.arange(30) % 3)
    (place / "cut.npz").write_bytes((place / "nan.npz").read_bytes()[:200])
    (place / "noise.json").write_text("{")
    return place


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit", "nothing.npz"], "nothing.npz: no such file"),
        (["audit", "nan.npz"], "row 4, class 1 is nan"),
        (["audit", "labels.npz"], "row 7 is 4"),
        (["audit", "sums.npz"], "row 6 sums to 1.5"),
        (["audit", "swapped.npz"], "these are probabilities"),
        (["audit", "empty.npz"], "empty"),
        (["audit", "cut.npz"], "cut.npz"),
        (["audit", "test.npz", "--bins", "0"], "bins"),
        (["audit", "test.npz", "--resamples", "-1"], "resamples"),
        (["calibrate", "nan.npz", "--save", "out.json"], "row 4"),
        (["calibrate", "val.npz", "--method", "magic", "--save", "out.json"], "unknown calibrator 'magic'"),
        (["calibrate", "val.npz", "--method", "vector", "--criterion", "ece", "--save", "out.json"], "--criterion"),
        (["calibrate", "val.npz", "--method", "vector", "--keep-ranking", "--save", "out.json"], "--keep-ranking"),
        (
            ["calibrate", "val.npz", "--method", "none", "--save", "no/such/folder/out.json"],
            "the folder no/such/folder does not exist",
        ),
        (["calibrate", "val.npz", "--save", "."], ".: a folder; expected"),
        (["calibrate", "val.npz", "--save", "out.npz"], "apply writes the predictions"),
        (["calibrate", "val.npz", "--method", "focal-map"], "needs the training gamma, as in focal-map:3"),
        (["example", "val.npz"], "val.npz: a file, not a folder"),
        (["audit", "."], ".: a folder, not a file"),
        (["audit", "test.npz", "--seed", "-1"], "--seed"),
        (["apply", "noise.json", "test.npz", "--save", "out.npz"], "noise.json"),
        (["apply", "test.npz", "map.json", "--save", "out.npz"], "test.npz: not a calibration map"),
        (["apply", ".", "test.npz", "--save", "out.npz"], ".: a folder, not a file"),
        (
            ["apply", "map.json", "other.npz", "--save", "out.npz"],
            "other.npz: 3 classes, where the map map.json is for 5",
        ),
        (["apply", "map.json", "nan.npz", "--save", "out.npz"], "row 4"),
        (["apply", "map.json", "test.npz", "--save", "out.xlsx"], "unknown ending"),
        (["compare", "val.npz", "other.npz"], "other.npz: 3 classes, where val.npz has 5"),
        (["compare", "val.npz", "test.npz", "--method", "magic"], "magic"),
        (["audit"], "Missing argument"),
        (["audit", "test.npz", "--resamples", "many"], "integer"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_faults_end_with_one_line_and_exit_code_2(tmp_path, folder, arguments, says):
    for name in ("val.npz", "test.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    faulty_files(tmp_path)
    val = trueup.load(tmp_path / "val.npz")
    trueup.Temperature().fit(val.logits, val.labels).save(tmp_path / "map.json")
    before = sorted(tmp_path.iterdir())
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in re.sub(r"[\s│]+", " ", done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before
