"""docs/reproduction.md, written from the results: no number on it is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trueup.inputs import InputError
from trueup.papers.reproduction import Reproduction
from trueup.train.run import write_whole

INTRODUCTION = """\
# The papers' numbers beside ours

This page is written by `trueup reproduce all --docs docs/reproduction.md`, from what is stored under `results/`.
It takes no GPU and no network. `trueup reproduce mukhoti2020` prints the same in a terminal, and `--json` for programs.

- The authors' networks: logits of seven networks of mukhoti2020 are public. Their figures were computed once
  (`--authors`) and are kept in `results/mukhoti2020/authors.json` with the SHA-256 of each file.
- Our networks: run folders without weights in `results/PAPER/runs`, with the recipe, the history of every epoch, the
  logits of val and test in float16, versions, hardware, date and seconds. `SHA256SUMS` beside them is checked.
- `--retrain` trains what is missing, in `runs/PAPER`, and takes each complete run into the results; `--only PATTERN`
  chooses some by name. A run that is stopped goes on where it was.
- A verdict is given on the networks most like the paper's: first the authors' step (the loss summed over the batch, the
  gradient clipped at 2, learning rate 0.1), then the paper's nets, then its schedule. What else was trained is judged
  below the table.
- Ours are trained in bf16 autocast on a GPU; the paper's were not. ResNet-18, which the paper does not have, is put
  beside its ResNet-50. Intervals are over test samples, not over trainings; several seeds are shown one by one.
- Brier's loss is averaged over the batch, as in the authors' code, which sums every other.
- `--figures DIR` draws Figures 1, 3, 4a, 5, 6 and 7 of mukhoti2020 and Figure 1 of lossfunctions. Figure 8 is a table
  here. Figures 2 and 4b to d need training samples at several epochs, or weights, which are not stored.
- FLSD-53 and FLSc-532 are the names of the paper's later version; its tables print FLA-53 and FLS-532.
"""


def page(found: Sequence[Reproduction]) -> str:
    """The page about these papers."""
    return "\n".join([INTRODUCTION, *(reproduction.markdown() for reproduction in found)]).rstrip() + "\n"


def write_page(path: Path, found: Sequence[Reproduction]) -> None:
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    write_whole(path, page(found).encode())
