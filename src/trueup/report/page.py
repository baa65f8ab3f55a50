"""Content -> one .html file with everything in it: its style, its script, the Vega bundle, its data."""

from __future__ import annotations

import functools
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from trueup.files import write_whole
from trueup.inputs import InputError, writable
from trueup.report import specs

_NEEDS = "a page needs jinja2 and vl-convert-python; install trueup[report]"


def page_path(path: str | os.PathLike[str]) -> Path:
    """A path that a page can be written to, as far as can be told before the work."""
    _template()
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{path}: a page ends in .html")
    return writable(path)


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Writes the page of ``of_predictions`` or ``of_study``, whole or not at all."""
    path = page_path(path)
    write_whole(path, render(content).encode())


def render(content: dict[str, Any]) -> str:
    """The page as text."""
    data = {"specs": specs.all_of(), "config": specs.CONFIG, "levels": specs.LEVELS}
    data |= {name: content.get(name) for name in ("sets", "comparison", "study")}
    parts = {name: _part(file) for name, file in (("style", "style.css"), ("focal", "focal.js"), ("script", "page.js"))}
    return _template().render(**content, **parts, vega=vega_bundle(), data=embedded(data))


def embedded(data: Any) -> str:
    """JSON that can stand within a <script>: no "<" can end it, and no line separator can break it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, which asks no host for anything."""
    try:
        from vl_convert import javascript_bundle
    except ImportError:
        raise InputError(_NEEDS) from None
    bundle = javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return re.sub("</(script)", r"<\\/\1", bundle, flags=re.IGNORECASE)


@functools.cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise InputError(_NEEDS) from None
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(_part("template.html"))


def _part(file: str) -> str:
    return (resources.files("trueup.report") / "page" / file).read_text(encoding="utf-8")
