"""The fused loss on a GPU, forward and backward, against a copy of the logits: ``python -m benchmarks.fused``.

A copy reads and writes every logit once, which is the least that a loss with its gradient can do. Times are those of
the device, by events, the best of several: forward and backward are replayed as a CUDA graph; the copy is a plain
``copy_``, for a graph's own copying is slower.
Memory is the peak of a plain call beside the logits themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from trueup import ByConfidence, CrossEntropy, Focal
from trueup.losses import kernel

BOUNDS = {32_768: 0.80, 131_072: 0.75}
"""What we promise, as a share of a copy's speed."""
RESULT = Path(__file__).parent / "results" / "fused_gpu.md"


def milliseconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Of one call, replayed as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return best_of(graph.replay, repeats)


def best_of(work: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of one call, the best of some rounds of ``repeats``."""
    best = float("inf")
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / repeats)
    return best


def extra_memory(work: Callable[[], Any], logits: torch.Tensor) -> float:
    """The peak that a call adds, as a share of the logits."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / (logits.numel() * logits.element_size())


def plain_focal(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    log_p = logits.float().log_softmax(1).gather(1, labels[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 3) * log_p).mean()


def rows(n: int, classes: int, say: Callable[[str], None]) -> list[str]:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(n, classes, device="cuda", dtype=torch.bfloat16, generator=generator)
    labels = torch.randint(0, classes, (n,), device="cuda", generator=generator)
    leaf = logits.clone().requires_grad_()
    copy = best_of(lambda: leaf.data.copy_(logits), 20)

    def step(loss: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def work() -> None:
            leaf.grad = None
            loss(leaf, labels).backward()

        return work

    in_place, fresh = Focal(3, overwrite_logits=True), Focal(3)
    work: dict[str, tuple[Callable[[], None], int]] = {
        "Focal(3), in place": (step(in_place), 20),
        "FLSD-53, in place": (step(Focal(ByConfidence((0.2, 5), (1.0, 3)), overwrite_logits=True).cuda()), 20),
        "CrossEntropy, in place": (step(CrossEntropy(overwrite_logits=True)), 20),
        "Focal(3), not in place": (step(fresh), 20),
        "F.cross_entropy": (step(F.cross_entropy), 5),
        "F.cross_entropy, compiled": (step(torch.compile(F.cross_entropy)), 5),
        "focal loss as its formula, eager": (step(plain_focal), 3),
        "focal loss as its formula, compiled": (step(torch.compile(plain_focal)), 5),
    }
    say(f"\n### {n} x {classes}, bfloat16; a copy takes {copy:.3f} ms, {4 * n * classes / copy / 1e9:.2f} TB/s\n")
    say("| | ms | of the copy's speed | extra memory |\n|---|---:|---:|---:|")
    times = {}
    for name, (run, repeats) in work.items():
        leaf.data.copy_(logits)
        times[name] = milliseconds(run, repeats)
        leaf.data.copy_(logits)
        leaf.grad = None
        say(f"| {name} | {times[name]:.3f} | {copy / times[name]:.1%} | {extra_memory(run, logits):.1%} |")
    leaf.data.copy_(logits)
    missed = []
    ours = times["Focal(3), in place"]
    for what, found, least in (
        ("of the copy", copy / ours, BOUNDS.get(classes, 0.0)),
        ("faster than F.cross_entropy", times["F.cross_entropy"] / ours, 2.5),
        ("faster than the eager formula", times["focal loss as its formula, eager"] / ours, 8),
    ):
        say(f"\nFocal(3) in place: {found:.2f} {what}, at least {least:g}{'' if found >= least else ': MISSED'}")
        missed += [] if found >= least else [what]
    return missed


def values(say: Callable[[str], None]) -> list[str]:
    """A fast wrong number is no number: gradients against float64, relative to the largest entry of the row."""
    generator = torch.Generator().manual_seed(0)
    worst: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for classes in (7, 1000, 50_000, 200_000):
            logits = (torch.randn(64, classes, generator=generator) * 3).to(dtype)
            labels = torch.randint(0, classes, (64,), generator=generator)
            logits[torch.arange(40), labels[:40]] += torch.linspace(0, 60, 40).to(dtype)
            labels[50] = -100
            for loss in (Focal(3), CrossEntropy(), Focal(-0.5), Focal(-1), Focal(ByConfidence((0.2, 5), (1.0, 3)))):
                exact = logits.double().requires_grad_()
                loss(exact, labels).backward()
                found = logits.cuda().requires_grad_()
                assert kernel.serves(found, labels.cuda())
                loss.cuda()(found, labels.cuda()).backward()
                loss.cpu()
                assert exact.grad is not None
                assert found.grad is not None
                largest = exact.grad.abs().amax(1, keepdim=True)
                off = ((found.grad.cpu().double() - exact.grad).abs() / largest)[largest[:, 0] > 1e-30].max().item()
                worst[str(dtype)] = max(worst.get(str(dtype), 0.0), off)
    say("\n### Gradients against float64, relative to the largest entry of the row\n")
    for dtype, off in worst.items():
        say(f"- {dtype}: {off:.1e}")
    return [name for name, off in worst.items() if off > (1e-5 if "float32" in name else 4e-3)]


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    import triton

    lines: list[str] = ["# The fused loss on a GPU, forward and backward"]

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    missed = rows(8192, 32_768, say) + rows(4096, 131_072, say) + rows(2048, 262_144, say) + values(say)
    versions = f"torch {torch.__version__}, Triton {triton.__version__}"
    say(f"\n{torch.cuda.get_device_name()}; {versions}; {datetime.now(UTC):%Y-%m-%d}")
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    place.write_text("\n".join(lines) + "\n")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
