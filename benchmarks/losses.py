"""What a loss costs beside F.cross_entropy, forward and backward, on the CPU: ``make bench-losses``.

Ours and the focal losses of kornia, MONAI and torch-uncertainty on the same arrays, one thread, float32. Ratios are to
``F.cross_entropy``, run turn by turn with what it is compared with; the bound is what we promise. Values and gradients
are compared with the plain formula in float64. What is printed is written to benchmarks/results/losses_cpu.md as well.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.timing import prepare, recorded, seconds, where

prepare()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import trueup  # noqa: E402
from trueup import losses, models  # noqa: E402

warnings.filterwarnings("ignore")
failures: list[str] = []

Loss = Callable[[Tensor, Tensor], Tensor]


def batch(n: int, classes: int, confident: bool) -> tuple[Tensor, Tensor]:
    """Normal logits and random labels; ``confident`` puts the true logit 20 above where it was."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, classes, generator=generator)
    y = torch.randint(0, classes, (n,), generator=generator)
    if confident:
        z[torch.arange(n), y] += 20
    return z.requires_grad_(), y


def step(loss: Loss, z: Tensor, y: Tensor) -> Tensor:
    z.grad = None
    value = loss(z, y)
    value.backward()
    return value.detach()


def plain(gamma: float, weighted: bool = False) -> Loss:
    """The textbook formula in float64; ``weighted``: FLSD-53."""

    def loss(z: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(z.double(), 1)
        log_y = log_p.gather(1, y[:, None])[:, 0]
        rest = log_p.scatter(1, y[:, None], -torch.inf).logsumexp(1)  # log(1 - p)
        g = torch.where(log_y.exp() < 0.2, 5.0, 3.0) if weighted else gamma
        return ((g * rest).exp() * -log_y).mean()

    return loss


def plain_brier(z: Tensor, y: Tensor) -> Tensor:
    p = F.softmax(z.double(), 1)
    return (p - F.one_hot(y, z.shape[1])).square().sum(1).mean()


def agreement(loss: Loss, exact: Loss, z: Tensor, y: Tensor) -> str:
    """What is wrong with the value or the gradient, if anything."""
    value = step(exact, z, y).item()
    assert z.grad is not None
    gradient = z.grad.clone()
    found = step(loss, z, y).item()
    off = float((z.grad - gradient).norm() / gradient.norm().clamp(min=1e-38))
    said = "" if abs(found - value) <= 1e-5 * abs(value) else f"  value {found:.6g}, not {value:.6g}"
    return said + ("" if off <= 1e-4 else f"  gradient off by {off:.2g}")


def against(loss: Loss, z: Tensor, y: Tensor, repeats: int = 9) -> tuple[float, float]:
    """(seconds of the loss, seconds of F.cross_entropy): the least processor time, in turns; 100 steps of a small batch
    in each."""
    best = [float("inf"), float("inf")]
    steps = 100 if z.numel() < 10_000 else 1
    for _ in range(repeats):
        for i, each in enumerate((loss, F.cross_entropy)):
            begun = time.process_time()
            for _ in range(steps):
                step(each, z, y)
            best[i] = min(best[i], (time.process_time() - begun) / steps)
    return best[0], best[1]


def row(name: str, loss: Loss, exact: Loss, z: Tensor, y: Tensor, bound: float | None) -> None:
    try:
        wrong = agreement(loss, exact, z, y)
        ours, floor = against(loss, z, y, 21 if bound else 3)
    except Exception as error:  # a peer may fail in any way
        print(f"| {name} | | | {type(error).__name__}: {str(error)[:60]} |", flush=True)
        return
    verdict = wrong
    if bound is not None:
        missed = ours > bound * floor
        verdict = f"at most {bound:g}" + ("  MISSED" if missed else "") + wrong
        if missed or wrong:
            failures.append(name)
    print(f"| {name} | {1e3 * ours:.3g} | {ours / floor:.2f} | {verdict} |", flush=True)


def peers(classes: int) -> dict[str, Loss]:
    """Focal losses of gamma 3 of other libraries, where they are installed."""
    found: dict[str, Loss] = {}
    try:
        from kornia.losses import FocalLoss as Kornia

        kornia = Kornia(alpha=None, gamma=3.0, reduction="none")  # its mean is over the classes too
        found[f"kornia {importlib.metadata.version('kornia')}"] = lambda z, y: kornia(z, y).sum(1).mean()
    except ImportError:
        pass
    try:
        from monai.losses import FocalLoss as Monai

        monai = Monai(gamma=3.0, use_softmax=True, to_onehot_y=True, reduction="none")
        # likewise
        found[f"MONAI {importlib.metadata.version('monai')}"] = lambda z, y: monai(z, y[:, None]).sum(1).mean()
    except ImportError:
        pass
    package = importlib.util.find_spec("torch_uncertainty")
    if package and package.origin:  # its package wants torchvision; the loss does not
        path = Path(package.origin).parent / "losses" / "classification.py"
        made = importlib.util.spec_from_file_location("torch_uncertainty_losses", path)
        if made and made.loader:
            module = importlib.util.module_from_spec(made)
            made.loader.exec_module(module)
            found[f"torch-uncertainty {importlib.metadata.version('torch-uncertainty')}"] = module.FocalLoss(3.0)
    return found


def eager_focal(z: Tensor, y: Tensor) -> Tensor:
    """The formula as most people write it."""
    log_p = F.log_softmax(z, 1).gather(1, y[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 3) * log_p).mean()


def table(n: int, classes: int, confident: bool, bounded: bool = True) -> None:
    z, y = batch(n, classes, confident)
    print(f"\n### {n} x {classes}, {'true logit 20 above' if confident else 'random labels'}\n")
    print("| | ms | ratio | |\n|---|---:|---:|---|")
    floor = seconds(lambda: step(F.cross_entropy, z, y), 5)
    print(f"| F.cross_entropy | {1e3 * floor:.3g} | 1 |{agreement(F.cross_entropy, plain(0), z, y)} |", flush=True)
    focal, brier = (1.35, 1.35) if confident else (1.1, 1.2)
    if not bounded:
        focal, brier = None, None
    row("trueup.CrossEntropy()", losses.CrossEntropy(), plain(0), z, y, focal)
    row("trueup.Focal(3)", losses.Focal(3), plain(3), z, y, focal)
    row("FLSD-53", losses.parse("flsd-53"), plain(3, weighted=True), z, y, focal)
    row("trueup.Brier()", losses.Brier(), plain_brier, z, y, brier)
    for spec in ("label-smoothing:0.05", "dual-focal:5", "adafocal", "cross-entropy+entropy:0.1"):
        loss = losses.parse(spec)
        row(spec, loss, loss, z, y, None)
    row("focal 3, plain formula", eager_focal, plain(3), z, y, None)
    for name, loss in peers(classes).items():
        row(name, loss, plain(3), z, y, None)


def mmce() -> None:
    """MMCE of a batch of 128 x 100 as a share of a step of ResNet-18 on CIFAR-sized images."""
    net = models.build("resnet18", 100, (3, 32, 32))
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 100, (128,))

    def training() -> None:
        optimiser.zero_grad()
        losses.CrossEntropy()(net(x), y).backward()
        optimiser.step()

    whole = seconds(training, 2)
    z = torch.randn(128, 100, requires_grad=True)
    print(f"\n### MMCE, 128 x 100, beside a training step of ResNet-18 ({whole:.1f} s)\n")
    print("| | ms | share | |\n|---|---:|---:|---|")
    for form in ("paper", "mukhoti2020"):
        penalty = trueup.MMCE(2, form=form)
        time = seconds(lambda penalty=penalty: step(penalty, z, y), 20)
        missed = time > 0.01 * whole
        if missed:
            failures.append(f"MMCE {form}")
        shown = f"under 1%{'  MISSED' if missed else ''}"
        print(f"| MMCE(2, form={form!r}) | {1e3 * time:.2f} | {100 * time / whole:.3f}% | {shown} |", flush=True)


def main() -> int:
    print("# What a loss costs on the CPU, forward and backward\n")
    print("Ratios are to F.cross_entropy. Confident rows need the mass of the other classes, which is what is exact.")
    for n, classes in ((8192, 1000), (1024, 100_000)):
        for confident in (False, True):
            table(n, classes, confident)
    table(128, 10, False, bounded=False)  # where the number of operations counts, and nothing is promised
    mmce()
    print(f"\n{'missed: ' + ', '.join(failures) if failures else 'Every bound is kept.'}")
    print(f"\n`make bench-losses` on {where()}.")
    return 1 if failures else 0


if __name__ == "__main__":
    with recorded("losses_cpu.md"):
        status = main()
    sys.exit(status)
