"""The pages of the documentation that are written from the results: no number on them is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from trueup.files import write_whole
from trueup.inputs import InputError
from trueup.papers.reproduction import Point, Reproduction, Sheet

FIRST = "reproduction.md"
PLACES = {
    "mukhoti2020": FIRST, "lossfunctions": FIRST,
    "komisarenko2024": "focal-temperature.md", "charoenphakdee2021": "focal-temperature.md",
    "kimura2024": "curvature.md",
}  # fmt: skip
"""The page of each paper; one that two share is written of both together."""

_REPRODUCTION = """\
# The papers' numbers beside ours

This page is written by `trueup reproduce all --docs docs/reproduction.md`, from what is stored under `results/`.
It takes no GPU and no network. `trueup reproduce mukhoti2020` prints the same in a terminal, and `--json` for programs.
In the tables "a · b" is ours and what the paper prints; CE is cross-entropy, FL-3 focal loss with gamma 3, and FLSD-53
that with gamma 5 where p_y < 0.2 and 3 elsewhere; T is the temperature that is fitted afterwards. Where the papers' own
text is wrong, [theory.md](theory.md#errata) says so, with a check.

<details>
<summary>How these numbers are made and judged, and what differs from the papers</summary>

- The authors' networks: logits of seven networks of mukhoti2020 are public. Their figures were computed once
  (`--authors`) and are kept in `results/mukhoti2020/authors.json` with the SHA-256 of each file.
- Our networks: run folders without weights in `results/PAPER/runs`, with the recipe, the history of every epoch, the
  logits of val and test in float16, versions, hardware, date and seconds. `SHA256SUMS` beside them is checked.
  `figures.json` in each holds what its predictions say, computed once. Of large data sets most runs are kept as these
  figures alone, in `results/PAPER/tables`.
- `--retrain` trains what is missing, in `runs/PAPER`, and takes each complete run into the results; `--only PATTERN`
  chooses some by name. A run that is stopped goes on where it was.
- A verdict is given for each data set of which the paper says or prints a claim, on the networks most like the paper's:
  first the authors' step (for images the loss summed over the batch, the gradient clipped at 2, learning rate 0.1; for
  texts the mean and no clipping), then the paper's nets, then its schedule. What else was trained is judged below the
  table. What is not run is said.
- That one figure is lower than another is said only where 0 is outside of the 95 % interval of their difference: over
  the seeds of each where there are several (with Student's factor: three seeds tell little), or over test samples,
  whichever is wider. Else it cannot be told. With fewer than three seeds a loss is taken to vary as it does over the
  steps together, or else as all losses of the same table do; where there is one seed of everything only test samples
  are left to judge by, and the table of verdicts says "1 seed". Curves over the epochs (Figures 1 to 4), but for ECE,
  are judged as they are drawn, without an error. Over many networks the mean difference is judged so, by its
  interval over them, and most of them and their own intervals have to agree. Limits such as "within 1 point" are
  ours.
- The paper's claims and our own questions have a table and a tally each.
- A mark behind a printed number says where it was read, if not in the paper's own text: [code] in the authors' code,
  [2nd] in another public document, [recall] nowhere that we could look up again; no verdict rests on the last.
- Texts: 20 Newsgroups and SST have word vectors of 100 dimensions here (the code that the paper names for SST had 300),
  and each table says how many tokens have none. On SST the loss is summed over the nodes of a tree and averaged over
  the trees of a batch. The epoch with the best accuracy on val is kept, as in the paper; the last one is scored beside
  it.
- On SST a net has a third output, for neutral parts of a sentence. Our probabilities are of the two classes that a
  sentence is judged by; the authors' code takes the confidence from the softmax over all three. A table of its own has
  both.
- CIFAR-100: the authors' code normalises its test images with ImageNet's mean and deviation, those of train and val
  with CIFAR's. Our tables do as they did; a table of its own has both.
- Our images and most documents are trained in bf16 autocast on a GPU, the paper's were not. ResNet-18, which the paper
  does not have, is put beside its ResNet-50. Intervals are over test samples, not over trainings; several seeds are
  shown one by one.
- On images Brier's loss is averaged over the batch, as in the authors' code, which sums every other.
- MMCE is in the weighted form that the authors' code trains, and the code of those who proposed it,
  `cross-entropy+mmce-mukhoti2020`: right and wrong predictions apart, each sum of pairs divided by the number of its
  pairs twice. It weighs 2 on images and 8 on 20 Newsgroups, as the paper says, and 1 on SST, where the authors' code
  does not use the 8. "Plain MMCE" is `cross-entropy+mmce`, by the formula MMCE_m; it stands in where the other is not
  run, and beside the same printed numbers.
- On SST gamma is scheduled over sevenths of the training, as elsewhere; the authors' code has the epochs 3 and 7.
- The figures are drawn by `trueup reproduce mukhoti2020 --figures docs/figures/reproduction`, and that of lossfunctions
  in the same way. Figures 2 and 4b to d are of training samples: they need a run whose history has histograms of them,
  and what has no such run is not drawn, which is said in its place. Figure 8 is a table here.
- FLSD-53 and FLSc-532 are the names of the paper's later version; its tables print FLA-53 and FLS-532.

</details>
"""


_FOCAL_TEMPERATURE = """\
# Focal temperature scaling, answered

Focal temperature scaling (**komisarenko2024**) is the map z → Ψ_γ(softmax(z / T)): a temperature, then the focal
calibration map of **charoenphakdee2021**, which takes what a network trained with focal loss reports to the posterior.
Both numbers are fitted on a validation set; γ = 0 is temperature scaling. This page answers what the first paper leaves
open, and tests what the second claims, on real networks. The mathematics is in [theory.md](theory.md).

Where the papers' own text is wrong, [theory.md](theory.md#errata) says so, with a check.

<details>
<summary>How this page is made</summary>

This page is written by `trueup reproduce all --docs docs`, its figures by `trueup reproduce komisarenko2024 --figures
docs/figures/focal-temperature` (and `charoenphakdee2021`). Every network of `TRUEUP_DATA/logits` and every run under
`results/` is measured once, in seconds, and kept as a JSON file with the SHA-256 of what it was computed from under
`results/komisarenko2024/networks`; a new run is picked up by the next command. Where the public logits are not at hand,
their stored figures are shown. Test samples are never used for a fit. Intervals are 95 %, over test samples. A network
is named by its data (C10 and C100 are CIFAR-10 and CIFAR-100), its net and, in brackets, whose it is; ours by what
differs from their recipe instead. Left out are runs with fewer than 500 samples in val or test, and those that are kept
without their predictions.

</details>
"""

_CURVATURE = """\
# Curvature and calibration

**kimura2024** says that focal loss calibrates because it lowers the curvature of the loss surface, and that a penalty
on the trace of the Hessian should calibrate too. This page puts each of its claims to the test. Where the paper's own
text is wrong, [theory.md](theory.md#errata) says so, with a check.

<details>
<summary>How these numbers are made and judged</summary>

This page is written by `trueup reproduce kimura2024 --docs docs/curvature.md`, its figures by
`trueup reproduce kimura2024 --figures docs/figures/curvature`, from what is stored under `results/kimura2024`: run
folders without weights, each with the curvature that was measured while the weights were there (`curvature.json`).
`trueup reproduce kimura2024 --retrain` trains what is missing, measures it and keeps it; `--only "*resnet18*"` chooses
some by name; what is stopped goes on where it was. `trueup curvature RUN` measures any run that has its weights.

- The Hessian is that of the mean loss over the validation samples in the weights, in eval mode. The paper does not say
  of which loss: the training loss, or cross-entropy at the same weights. Both are measured, as the answers differ.
- λ max is found by Lanczos' method to a residual of 0.1 % or less: so near it there is an eigenvalue; that it is the
  largest is likely, not certain. The trace is exact for nets of linear layers, ReLU, pooling and batch norm with at
  most 40 classes; else its standard error is at most 2 %.
- The paper names neither its recipe nor its data split. Its Figures 2 and 3 are on CIFAR-100; ours are on CIFAR-100
  (MLP and ResNet-18) and on CIFAR-10, as far as they are run: 30 epochs (falls of the learning rate after 13 and 22),
  SGD with momentum 0.9, weight decay 5e-4, crops and mirror images, batches of 128, mean loss, one seed; the learning
  rate is 0.1 for ResNet-18, 0.05 for VGG16 (with batch norm), 0.01 for the MLP and the ViT. For Figure 4: 10 epochs
  (falls after 7 and 9), without augmentation.
- Its Figure 4 speaks of the trace on validation samples as part of the loss. Here the penalty is on the training batch.
- Where ECE is said to be least, each gamma whose ECE is not above the least by more than the 95 % interval of their
  difference (over test samples) may be the one; where they do not agree on a claim, it cannot be told.
- What has not been trained is listed at the end.

</details>
"""

_INTRODUCTIONS = {FIRST: _REPRODUCTION, "focal-temperature.md": _FOCAL_TEMPERATURE, "curvature.md": _CURVATURE}


SHORT = 300
"""A longer answer is told by its first sentence where a page begins."""


@dataclass(frozen=True)
class Answer:
    """A question that a paper leaves open, and what we can say to it."""

    question: str
    answer: str
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    """(what it shows, its path from the page)."""
    remains: str = ""
    """What is still open."""

    @property
    def sentences(self) -> tuple[str, str]:
        """The first, and what follows it."""
        first, *rest = re.split(r"(?<=[.;]) ", self.answer, maxsplit=1)
        return first, " ".join(rest)

    @property
    def short(self) -> str:
        """The whole answer, or of a long one its first sentence."""
        return self.answer if len(self.answer) <= SHORT else self.sentences[0].removesuffix(";")

    def markdown(self) -> str:
        first, rest = self.sentences
        parts = [f"### {self.question}\n", f"**{first}** {rest}".rstrip() + "\n"]
        for told, path in self.figures:
            parts += [f"{told}.\n", f"![{re.split('[:;]', told)[0]}]({path})\n"]
        parts += [sheet.markdown() for sheet in self.sheets]
        return "\n".join([*parts, *([f"Still open: {self.remains}\n"] if self.remains else [])])


@dataclass(frozen=True)
class Answered(Reproduction):
    """A reproduction that answers questions, each with its own sheets."""

    answers: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def to_dict(self) -> dict[str, Any]:
        told = [{"question": each.question, "answer": each.answer, "open": each.remains} for each in self.answers]
        return super().to_dict() | {"answers": told, "notes": list(self.notes)}

    def _tables(self) -> Iterator[Any]:
        for each in self.answers:
            if each.sheets:
                yield f"[bold]{escape(each.question)}[/]\n"
            for sheet in each.sheets:
                yield from (sheet, "")
        for note in self.notes:
            yield f"note: {escape(note)}\n"
        yield from super()._tables()

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(Point(each.question, (each.answer,)) for each in self.answers)

    def markdown(self) -> str:
        whole = super().markdown()
        heading, _, rest = whole.partition("\n\n")
        short = (Point(each.question, (each.short,)).markdown() for each in self.answers)
        parts = [f"{heading}\n", "### In short\n", *short, "", *(each.markdown() for each in self.answers), rest]
        return "\n".join(parts)


def page(found: Sequence[Reproduction], name: str = FIRST) -> str:
    """The page of that name, about those of these papers that have their place on it."""
    own = [reproduction.markdown() for reproduction in found if PLACES[reproduction.paper] == name]
    return "\n".join([_INTRODUCTIONS[name], *own]).rstrip() + "\n"


def pages_at(path: Path, papers: Iterable[str]) -> list[str]:
    """The pages that ``path`` asks for: the one of its name, or in a folder every page of these papers. Each has to be
    about these papers alone."""
    if not path.is_dir() and not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if not path.is_dir() and path.name not in _INTRODUCTIONS:
        raise InputError(f"{path}: no page is named so; the pages are {', '.join(_INTRODUCTIONS)}")
    there, found = set(papers), []
    for name in _INTRODUCTIONS if path.is_dir() else [path.name]:
        missing = {paper for paper, place in PLACES.items() if place == name} - there
        if not missing:
            found.append(name)
        elif not path.is_dir():
            raise InputError(f"{path}: the page is about {', '.join(sorted(missing))} too; name all")
    if not found:
        raise InputError(f"{path}: no page is about {', '.join(sorted(there))} alone; name all")
    return found


def write_page(path: Path, found: Sequence[Reproduction]) -> list[Path]:
    """Writes what ``pages_at`` says."""
    written = []
    for name in pages_at(path, [reproduction.paper for reproduction in found]):
        written.append(path / name if path.is_dir() else path)
        write_whole(written[-1], page(found, name).encode())
    return written
