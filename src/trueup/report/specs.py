"""The charts as Vega-Lite specs: plain dicts. The page fills in their data, by name, and their blanks ("$domain").

Colours are CSS variables of the page, so that light, dark and paper need no second spec. Nothing is told by colour
alone: what is off the band is filled, lines have dashes, groups have places of their own.
"""

from __future__ import annotations

from typing import Any

Spec = dict[str, Any]

MARGIN = 46
"""Pixels left of every chart, so that those above each other line up."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
LEVELS = ("#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dfcb58", "#fee838")
"""cividis, dark where it is low."""

CONFIG: Spec = {
    "font": FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--grid)",
        "domainColor": "var(--line)", "tickColor": "var(--line)", "labelFontSize": 11, "titleFontSize": 12,
        "titleFontWeight": "normal", "titlePadding": 8,
    },
    "axisY": {"minExtent": MARGIN, "maxExtent": MARGIN, "domain": False, "ticks": False},
    "axisX": {"grid": False},
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--soft)", "labelFontSize": 11, "titleFontSize": 11,
               "titleFontWeight": "normal"},
    "text": {"color": "var(--ink)", "fontSize": 12},
}  # fmt: skip


def _q(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def _chart(description: str, height: int | str, **more: Any) -> Spec:
    return {
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 2, "right": 14, "top": 6, "bottom": 2},
        **more,
    }


def _share(title: str | None, **axis: Any) -> Spec:
    return {"scale": {"domain": [0, 1]}, "axis": {"title": title, "format": ".0%", "tickCount": 5, **axis}}


def _tip(field: str, title: str, form: str = ".1%") -> Spec:
    return _q(field, title=title, format=form)


def _metric(field: str) -> Spec:
    """Across: a metric in its own range. Blank: format."""
    axis = {"title": None, "grid": True, "format": "$format", "tickCount": 7}
    return _q(field, scale={"zero": False, "nice": True}, axis=axis)


def _down(field: str, least: int, most: int, **axis: Any) -> Spec:
    """A line for each name, in the order of the data; names take from ``least`` to ``most`` pixels."""
    apart = 8  # from a mark at the very edge
    room = {"labelPadding": apart, "labelLimit": most - apart, "minExtent": least, "maxExtent": most}
    return {
        "field": field, "type": "nominal", "sort": {"field": "order"},
        "axis": {"title": None, **room, "labelColor": "var(--ink)", **axis},
    }  # fmt: skip


def reliability(x: str = "confidence", y: str = "accuracy", height: int = 320) -> Spec:
    """Data "bins": left, right, confidence, accuracy, low, high, off (1 or 0), samples."""
    across, up = _share(x), _share(y)
    tips = [
        _tip("confidence", x), _tip("accuracy", y), _tip("low", "band from"), _tip("high", "to"),
        _tip("samples", "samples", ",.5~r"),
    ]  # fmt: skip
    at = {"x": _q("confidence", **across), "y": _q("accuracy", **up)}
    return _chart(
        f"{y} against {x}, with the band in which a calibrated model would stay",
        height,
        data={"name": "bins"},
        layer=[
            {
                "mark": {"type": "rect", "color": "var(--band)"},
                "encoding": {
                    "x": _q("left", **across), "x2": {"field": "right"}, "y": _q("low", **up), "y2": {"field": "high"},
                },
            },
            {
                "data": {"values": [{"p": 0}, {"p": 1}]},
                "mark": {"type": "line", "color": "var(--soft)", "strokeDash": [5, 4], "strokeWidth": 1},
                "encoding": {"x": _q("p", **across), "y": _q("p", **up)},
            },
            {
                "mark": {"type": "rule", "color": "var(--wrong)", "strokeWidth": 2, "opacity": 0.75},
                "encoding": {"x": at["x"], "y": at["y"], "y2": {"field": "confidence"}},
            },
            {"mark": {"type": "line", "color": "var(--accent)", "strokeWidth": 1.5}, "encoding": at},
            {
                "mark": {"type": "point", "size": 62, "strokeWidth": 1.8, "stroke": "var(--accent)", "opacity": 1},
                "encoding": at
                | {
                    "fill": {
                        "condition": {"test": "datum.off", "value": "var(--accent)"},
                        "value": "var(--card)",
                    },
                    "tooltip": tips,
                },
            },
        ],
    )  # fmt: skip


def shares(title: str = "confidence", height: int = 58) -> Spec:
    """Data "shares": left, right, share. Stands below a reliability diagram."""
    return _chart(
        f"the share of the samples by {title}",
        height,
        data={"name": "shares"},
        mark={"type": "rect", "color": "var(--bars)", "stroke": "var(--card)", "strokeWidth": 0.5},
        encoding={
            "x": _q("left", **_share(None, labels=False, ticks=False)),
            "x2": {"field": "right"},
            "y": _q("share", axis={"title": "samples", "format": ".0%", "tickCount": 2}),
            "y2": {"datum": 0},
            "tooltip": [_tip("left", f"{title} above"), _tip("right", "up to"), _tip("share", "share of the samples")],
        },
    )


def histogram(kind: str, height: int = 110) -> Spec:
    """Data "bars": left, right, share; data "lines": mean."""
    colour = "var(--right)" if kind == "right" else "var(--wrong)"
    across = _share("confidence" if kind == "wrong" else None)
    return _chart(
        f"confidences of the {kind} predictions",
        height,
        layer=[
            {
                "data": {"name": "bars"},
                "mark": {"type": "rect", "color": colour, "stroke": "var(--card)", "strokeWidth": 0.5},
                "encoding": {
                    "x": _q("left", **across),
                    "x2": {"field": "right"},
                    "y": _q("share", axis={"title": f"of the {kind}", "format": ".0%", "tickCount": 3}),
                    "y2": {"datum": 0},
                    "tooltip": [
                        _tip("left", "confidence above"),
                        _tip("right", "up to"),
                        _tip("share", f"share of the {kind}"),
                    ],
                },
            },
        ],
    )


def _named(looks: list[Any]) -> Spec:
    """As it is and after scaling, each in a look of its own; the key names those that are there (blank: names)."""
    return {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": ["as it is", "after scaling"], "range": looks},
        "legend": {"orient": "top", "title": None, "symbolSize": 400, "values": "$names"},
    }


def coverage(height: int = 250) -> Spec:
    """Data "curve": name, coverage, risk, threshold. Blank: names."""
    return _chart(
        "the error among the most confident predictions",
        height,
        data={"name": "curve"},
        layer=[
            {
                "mark": {"type": "line", "strokeWidth": 1.8, "interpolate": "linear", "clip": True},
                "encoding": {
                    "x": _q("coverage", **_share("share kept, the most confident first")),
                    "y": _q("risk", axis={"title": "error among them", "format": ".1~%", "tickCount": 5}),
                    "strokeDash": _named([[1, 0], [6, 4]]),
                    "color": _named(["var(--accent)", "var(--wrong)"]),
                },
            },
            {
                "mark": {"type": "point", "opacity": 0, "size": 90},
                "encoding": {
                    "x": _q("coverage"), "y": _q("risk"),
                    "tooltip": [
                        _tip("coverage", "share kept"), _tip("risk", "error among them", ".2%"),
                        _tip("threshold", "confidence at least", ".4f"),
                    ],
                },
            },
        ],
    )  # fmt: skip


def landscape(metric: str, height: int = 320) -> Spec:
    """Data "cells": t, g, t0, t1, g0, g1, value; "marks": t, g, what; "now": t, g.

    Blanks: temperatures, gammas, heights.
    """
    across = {
        "scale": {"type": "log", "domain": "$temperatures", "nice": False},
        "axis": {
            "title": "temperature T",
            "values": [0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16],
            "format": "~g",
            "grid": False,
        },
    }
    up = {"scale": {"domain": "$gammas", "nice": False}, "axis": {"title": "γ", "tickCount": 7, "grid": False}}
    form = ".2%" if metric == "ece" else ".4f"
    colours = {"type": "threshold", "domain": "$heights", "range": list(LEVELS)}
    edge = {"stroke": "black", "strokeWidth": 1, "opacity": 1}
    return _chart(
        f"{metric.upper()} over temperature and gamma: dark where it is low",
        height,
        layer=[
            {
                "data": {"name": "cells"},
                "mark": {"type": "rect", "cursor": "pointer"},
                "encoding": {
                    "x": _q("t0", **across), "x2": {"field": "t1"}, "y": _q("g0", **up), "y2": {"field": "g1"},
                    "color": _q("value", scale=colours, legend=None),
                    "tooltip": [_tip("t", "T", ".3~g"), _tip("g", "γ", ".2f"), _tip("value", metric.upper(), form)],
                },
            },
            {
                "data": {"name": "now"},
                "mark": {"type": "rule", "color": "white", "opacity": 0.85, "strokeDash": [3, 3], "clip": True},
                "encoding": {"x": _q("t", **across)},
            },
            {
                "data": {"name": "now"},
                "mark": {"type": "rule", "color": "white", "opacity": 0.85, "strokeDash": [3, 3], "clip": True},
                "encoding": {"y": _q("g", **up)},
            },
            {
                "data": {"name": "marks"},
                "mark": {"type": "point", "filled": True, "size": 130, "fill": "white", **edge},
                "encoding": {
                    "x": _q("t", **across), "y": _q("g", **up),
                    "shape": {
                        "field": "what", "type": "nominal", "legend": None,
                        "scale": {"domain": ["as it is", "fitted"], "range": ["circle", "diamond"]},
                    },
                    "tooltip": [{"field": "what"}, _tip("t", "T", ".3~f"), _tip("g", "γ", ".2f")],
                },
            },
            {
                "data": {"name": "now"},
                "mark": {"type": "point", "shape": "cross", "size": 190, "filled": True, "fill": "var(--now)", **edge},
                "encoding": {"x": _q("t", **across), "y": _q("g", **up)},
            },
        ],
    )  # fmt: skip


def intervals() -> Spec:
    """Data "rows": name, value, low, high, order, text, interval. A line a calibrator. Blanks: format, height."""
    down = _down("name", 120, 150)
    return _chart(
        "the metric of each calibrator with its interval",
        "$height",
        data={"name": "rows"},
        layer=[
            {
                "mark": {"type": "rule", "color": "var(--accent)", "strokeWidth": 2},
                "encoding": {"y": down, "x": _metric("low"), "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "color": "var(--accent)", "size": 60, "opacity": 1},
                "encoding": {
                    "y": down, "x": _metric("value"),
                    "tooltip": [{"field": "name"}, {"field": "text", "title": "value"}, {"field": "interval"}],
                },
            },
        ],
    )  # fmt: skip


def seeds() -> Spec:
    """Data "seeds": loss, value, seed, order; "means": loss, value, order; "baseline": value. A line a loss.

    Blanks: format, height.
    """
    down = _down("loss", 150, 180, grid=True)
    return _chart(
        "the metric of every loss and seed",
        "$height",
        layer=[
            {
                "data": {"name": "baseline"},
                "mark": {"type": "rule", "color": "var(--soft)", "strokeDash": [5, 4]},
                "encoding": {"x": _metric("value")},
            },
            {
                "data": {"name": "seeds"},
                "mark": {"type": "point", "size": 46, "stroke": "var(--accent)", "strokeWidth": 1.5, "opacity": 1},
                "encoding": {
                    "y": down, "x": _metric("value"),
                    "tooltip": [{"field": "loss"}, {"field": "seed"}, {"field": "text", "title": "value"}],
                },
            },
            {
                "data": {"name": "means"},
                "mark": {"type": "tick", "color": "var(--ink)", "thickness": 2.5, "size": 16},
                "encoding": {
                    "y": down, "x": _metric("value"),
                    "tooltip": [{"field": "loss"}, {"field": "text", "title": "mean ± sd"}],
                },
            },
        ],
    )  # fmt: skip


def curve(height: int = 120) -> Spec:
    """Data "curve" and "baseline": epoch, mean, low, high. One panel of many, whose scales are the same: blanks epochs,
    domain, format."""
    across = {"axis": {"title": None, "tickCount": 4, "format": "d"}, "scale": {"domain": "$epochs", "nice": False}}
    up = {"axis": {"title": None, "tickCount": 4, "format": "$format"}, "scale": {"domain": "$domain", "nice": False}}
    return _chart(
        "over the epochs, on test",
        height,
        layer=[
            {
                "data": {"name": "baseline"},
                "mark": {"type": "line", "color": "var(--soft)", "strokeDash": [4, 3], "clip": True},
                "encoding": {"x": _q("epoch", **across), "y": _q("mean", **up)},
            },
            {
                "data": {"name": "curve"},
                "mark": {"type": "area", "color": "var(--accent)", "opacity": 0.2, "clip": True},
                "encoding": {"x": _q("epoch", **across), "y": _q("low", **up), "y2": {"field": "high"}},
            },
            {
                "data": {"name": "curve"},
                "mark": {"type": "line", "color": "var(--accent)", "strokeWidth": 1.8, "clip": True},
                "encoding": {"x": _q("epoch", **across), "y": _q("mean", **up)},
            },
        ],
    )  # fmt: skip


def all_of() -> dict[str, Spec]:
    """By the name under which the page asks for them."""
    return {
        "reliability_top": reliability(),
        "reliability_class": reliability("probability", "frequency"),
        "shares": shares(),
        "right": histogram("right"),
        "wrong": histogram("wrong"),
        "coverage": coverage(),
        "landscape_nll": landscape("nll"),
        "landscape_ece": landscape("ece"),
        "intervals": intervals(),
        "seeds": seeds(),
        "curve": curve(),
    }
