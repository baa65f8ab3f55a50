"""The site builds without a warning, and its pages say nothing that is not run."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="Sphinx is not installed")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Measure" in (tmp_path / "api.html").read_text()


def test_every_public_name_is_in_the_reference():
    import trueup

    written = set(re.findall(r"auto(?:class|function):: trueup\.(\w+)$", (DOCS / "api.md").read_text(), re.M))
    callables = {name for name in trueup.__all__ if callable(getattr(trueup, name))}
    results = {"Audit", "Comparison", "Interval", "UnderCalibration", "ConfidentShare", "BrierDecomposition"}
    assert callables - written - results - {"InputError", "Identity"} == set()


@pytest.mark.parametrize("page", sorted(DOCS.glob("examples/*.md")), ids=lambda page: page.stem)
def test_python_on_a_page_of_examples_is_a_doctest(page):
    """A block that nobody runs goes wrong with time."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        assert block.lstrip().startswith(">>>"), block[:80]


def numbers(pattern, text):
    found = re.search(pattern, " ".join(text.split()))
    assert found, pattern
    return found.groups()


def test_what_the_readme_says_of_the_papers_is_what_the_pages_say():
    readme, page = (DOCS.parent / "README.md").read_text(), (DOCS / "reproduction.md").read_text()
    of_step = (("authors' step, which", "summed, clipped at 2"), ("mean and no clipping, where", "mean, not clipped"))
    for told, step in of_step:
        short = numbers(rf"([\d.]+) and ([\d.]+) % with the {told}", readme)
        exact = numbers(rf"\| ResNet-18, CIFAR-10 \| {step} \| 0 \| ([\d.]+) \| ([\d.]+) \|", page)
        assert [float(each) for each in short] == pytest.approx([float(each) for each in exact], abs=0.0501)
    printed = numbers(
        r"FL-3 has an ECE of ([\d.]+) % so .* over-confident, by ([\d.]+) points, with an ECE of ([\d.]+)", readme
    )
    exact = numbers(
        r"FL-3 ([\d.]+) \(-\1 points.*? classes alone: ECE CE [\d.]+, FL-3 ([\d.]+),.*? FL-3 \+([\d.]+),", page
    )
    assert [float(each) for each in printed] == pytest.approx([float(exact[i]) for i in (0, 2, 1)], abs=0.0501)
    answer = (DOCS / "focal-temperature.md").read_text()
    lower = numbers(r"lowers NLL on test on (\d+ of \d+) networks, and ECE on (\d+)\.", answer)
    assert numbers(r"lowers the NLL of (\d+ of \d+) networks against .*? the ECE of (\d+):", readme) == lower
