"""The house: imports run one way, nothing heavy comes along, public names are there, files stay short."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trueup

SOURCE = Path(trueup.__file__).parent

LAYERS = [
    {"inputs"},
    {"focal"},
    {"curvature", "losses", "metrics"},
    {"calibrators"},
    {"files", "predictions"},
    {"tables", "example", "export", "audit", "compare", "data", "models", "diagrams", "plots"},
    {"train"},
    {"papers", "report"},
    {"sklearn", "cli", "__main__"},
]
"""A module imports from its own layer and from those before it. ``__init__`` is the table of contents."""


def layer_of(module: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if module.split(".")[0] in layer)


def imports_of(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trueup"):
            inner = node.module.removeprefix("trueup").lstrip(".")
            yield from ([inner] if inner else [alias.name for alias in node.names])


@pytest.mark.parametrize("path", [p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py"])
def test_imports_run_one_way(path):
    here = layer_of(path.relative_to(SOURCE).with_suffix("").parts[0])
    for module in imports_of(path):
        if module.split(".")[0] in set().union(*LAYERS):
            assert layer_of(module) <= here, f"{path.name} imports {module}"


HEAVY = [
    "matplotlib", "pyarrow", "sklearn", "typer", "pandas", "hypothesis", "PIL", "huggingface_hub", "triton", "onnx",
    "jinja2", "vl_convert", "scipy.stats",
]  # fmt: skip


def test_importing_trueup_imports_nothing_heavy():
    code = f"import sys, trueup; print(*(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_every_public_name_is_there_and_documented():
    for name in trueup.__all__:
        made = getattr(trueup, name)
        if callable(made):
            assert made.__doc__, name


def test_the_names_of_the_registry_are_the_names_of_the_settings():
    for name, settings in trueup.CALIBRATORS.items():
        assert settings.name == name
        assert settings in vars(trueup).values()


@pytest.mark.parametrize("path", list(SOURCE.rglob("*.py")))
def test_no_file_is_longer_than_a_sitting(path):
    assert len(path.read_text().splitlines()) <= 400
