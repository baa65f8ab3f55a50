"""Figure 8: how sure the networks are of single images that all of them get right, or wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from trueup.papers.chance import Error, clearly
from trueup.papers.mukhoti2020.claims import BRIER, CE, FLSD, MMCE, Claim, Verdict
from trueup.papers.mukhoti2020.grid import TEXTS, label
from trueup.papers.mukhoti2020.settings import Network, Setting
from trueup.papers.reproduction import Sheet, all_of
from trueup.papers.summary import has_predictions

SHOWN_IMAGES = 4
QUALITATIVE = (CE, BRIER, MMCE, FLSD)
"""The losses of Figure 8."""
SURE = 0.9
"""A mean confidence from here on counts as very confident; the paper gives no number."""


def answers(network: Network) -> tuple[Tensor, Tensor]:
    """(N,) the predicted classes of the test images, and (2, N) their confidences before and after T."""
    logits = network.run.test.logits.double()
    scaled = [(logits / t).softmax(1).amax(1) for t in (1.0, network.figures.after.temperature)]
    return logits.argmax(1), torch.stack(scaled)


def unsure_of_mistakes(setting: Setting) -> Verdict:
    """Over all test images that both get right, and all that both get wrong; one seed of each loss."""
    networks = [setting.networks[loss][0] for loss in (CE, FLSD)]
    labels = networks[0].run.test.labels
    (of_ce, ce), (of_flsd, flsd) = map(answers, networks)
    right, wrong = (of_ce == labels) & (of_flsd == labels), (of_ce != labels) & (of_flsd != labels)
    parts = []
    for told, of in ((f"{int(right.sum())} images that both get right", right), (f"{int(wrong.sum())} wrong", wrong)):
        each = (f"{label(loss)} {before:.3f} / {after:.3f}" for loss, (before, after) in (
            (CE, ce[:, of].mean(1)), (FLSD, flsd[:, of].mean(1))))  # fmt: skip
        parts.append(f"{told}: {', '.join(each)}")
    less = (ce - flsd)[:, wrong]
    errors = less.std(1) / int(wrong.sum()) ** 0.5
    lower = [clearly(float(gap), Error(float(error))) for gap, error in zip(less.mean(1), errors, strict=True)]
    holds = all_of([bool((flsd[:, right].mean(1) >= SURE).all()), *lower])
    seeds = ", ".join(f"{label(loss)} {n.run.recipe.seed}" for loss, n in zip((CE, FLSD), networks, strict=True))
    return holds, f"mean confidence before / after T on the {'; '.join(parts)} (seeds: {seeds})"


CLAIMS = (
    Claim("On images that are classified right FLSD-53 is very confident (at least 0.9 on average, a limit of ours) "
          "before and after T; on misclassified ones less confident than cross-entropy, before and after T.",
          "Appendix F, Figure 8", (CE, FLSD), unsure_of_mistakes, only_there=True, predictions=True),
)  # fmt: skip


def images_sheet(setting: Setting) -> Sheet | None:
    """Figure 8 without its pictures: the first test images that all losses get right, and that all get wrong."""
    losses = [
        loss for loss in map(setting.trained, QUALITATIVE) if loss in setting.networks and setting.data not in TEXTS
    ]
    networks = [setting.networks[loss][0] for loss in losses]
    if len(losses) < 2 or not all(has_predictions(network.run) for network in networks):
        return None
    test = networks[0].run.test
    names = test.class_names or tuple(map(str, range(test.classes)))
    found = [answers(network) for network in networks]
    right = torch.stack([answer == test.labels for answer, _ in found])
    rows = []
    for kind, chosen in (("right", right.all(0)), ("wrong", ~right.any(0))):
        for i in torch.nonzero(chosen)[:SHOWN_IMAGES, 0].tolist():
            cells = (
                f"{names[int(answer[i])]} {confidence[0, i]:.4f} / {confidence[1, i]:.4f}"
                for answer, confidence in found
            )
            rows.append((kind, str(i), names[int(test.labels[i])], *cells))
    columns = ("", "test image", "label", *(label(loss) for loss in losses))
    note = "Predicted class, its confidence before / after T; seed 0. The first such images of the test set."
    return Sheet(f"{setting.title}: images that all get right or wrong (Figure 8)", columns, tuple(rows), note)
