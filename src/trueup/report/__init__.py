"""One self-contained page, to be opened from disk or mailed: what was measured, in words and in charts one can turn.

``of_predictions`` and ``of_study`` compute plain data; ``write`` puts them into a page that asks no other host for
anything.

>>> import trueup
>>> from trueup import report
>>> from trueup.example import example_predictions
>>> val, test = example_predictions().values()
>>> content = report.of_predictions(test, trueup.audit(test, resamples=100), val=val)
>>> content["sets"][0]["live"]["fitted"]["where"]
'the validation samples'
>>> report.write("page.html", content)  # doctest: +SKIP
"""

from trueup.report.content import of_predictions
from trueup.report.images import thumbnails
from trueup.report.page import page_path, render, write
from trueup.report.study import of_study, read_study

__all__ = ["of_predictions", "of_study", "page_path", "read_study", "render", "thumbnails", "write"]
