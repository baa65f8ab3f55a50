"""The fused kernel's logic on the CPU, by Triton's interpreter, against the plain losses in float64.

Run by test_kernel.py in a process of its own, for TRITON_INTERPRET has to be set before Triton is imported.
"""

from __future__ import annotations

import math

import pytest
import torch

from trueup import losses
from trueup.losses import kernel

# the interpreter computes both branches of a choice, in NumPy
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # it cuts bfloat16 off
SIZES = [
    {},
    {"R": 1, "C": 64, "STAGES": 1, "PARTS": 1},
    {"R": 4, "C": 16, "STAGES": 2, "PARTS": 1},
    {"R": 2, "C": 256, "STAGES": 3, "PARTS": 1},
    {"R": 4, "C": 16, "STAGES": 1, "PARTS": 2},
    {"R": 1, "C": 32, "STAGES": 1, "PARTS": 4},
]
every_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def batch(n, classes, dtype, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = (torch.randn(n, classes, generator=generator) * scale).to(dtype)
    return z, torch.randint(0, classes, (n,), generator=generator)


def run(loss, z, y, grad=None, **sizes):
    """(losses, gradient) of the reduced loss by the kernel."""
    bounds, gammas = kernel._steps(getattr(loss, "gamma", 0.0), z.device)
    sizes = sizes or kernel.configuration(z.shape[1], z.element_size())
    meeting = torch.full((sizes["PARTS"] * len(y),), -1)
    divisor = kernel._divisor(y, loss.weight, loss, z.shape[1], meeting)
    grad = torch.full_like(z, math.nan, memory_format=torch.contiguous_format) if grad is None else grad
    values = torch.full((len(z),), math.nan)
    detach = getattr(loss, "detach_weight", False)
    # the interpreter runs one program after the other, so that none may wait for the next
    for phase in (0,) if sizes["PARTS"] == 1 else (1, 2):
        settings = (loss.ignore_index, detach, sizes, phase)
        kernel.launch(z, grad, y, values, bounds, gammas, loss.weight, divisor, meeting, *settings)
    return values, grad


def plain(loss, z, y):
    wide = z.detach().double().requires_grad_()
    value = loss(wide, y)
    (grad,) = torch.autograd.grad(value.sum(), wide)
    return value.detach(), grad


def check(loss, z, y, true=None, **sizes):
    """Every entry to the rounding of its dtype, or of the smallest number it has."""
    value, grad = true or plain(loss, z, y)
    found, ours = run(loss, z, y, **sizes)
    found = found if loss.reduction == "none" else found.sum()
    rounding = ROUNDING[z.dtype]
    torch.testing.assert_close(found.double(), value, rtol=max(1e-5, rounding / 20), atol=1e-36)
    smallest = 6e-8 if z.dtype == torch.float16 else torch.finfo(z.dtype).tiny
    torch.testing.assert_close(ours.double(), grad, rtol=rounding, atol=smallest)


@every_dtype
@pytest.mark.parametrize("classes", [2, 17, 256, 2100])
def test_any_number_of_classes_and_any_size_of_program(dtype, classes):
    z, y = batch(2, classes, dtype)
    for sizes in SIZES:
        check(losses.Focal(3, reduction="sum"), z, y, **sizes)


@every_dtype
@pytest.mark.parametrize(
    "loss",
    [
        losses.CrossEntropy(),
        losses.CrossEntropy(reduction="none"),
        losses.Focal(0.5),
        losses.Focal(-0.5, reduction="none"),
        losses.Focal(-1, reduction="sum"),
        losses.Focal(10, reduction="sum"),
        losses.Focal(2, detach_weight=True),
        losses.Focal(2, weight=[0.5 * k for k in range(20)]),
        losses.Focal(2, weight=[0.5 * k for k in range(20)], ignore_index=3),
        losses.CrossEntropy(ignore_index=5, reduction="none"),
        losses.CrossEntropy(ignore_index=-7),
        losses.parse("flsd-53", reduction="sum"),
        losses.parse("flsd-532", reduction="none"),
        losses.parse("focal-schedule:5,3,2"),
    ],
    ids=lambda loss: " ".join(repr(loss).split()),
)
def test_every_loss_it_serves(dtype, loss):
    z, y = batch(9, 20, dtype)
    y[4] = y[7] = loss.ignore_index
    check(loss, z, y if dtype == torch.float32 else y.to(torch.int32))


@every_dtype
@pytest.mark.parametrize(("gamma", "detach"), [(-1.0, False), (-0.5, False), (0.5, False), (3.0, False), (-1.0, True)])
def test_margins_from_minus_1e4_to_1e4_and_masked_classes(dtype, gamma, detach):
    margins = [-1e4, -300.0, -80.0, -5.0, 0.0, 5.0, 10.0, 20.0, 60.0, 90.0, 300.0, 1e4]
    rows = [[0.0, margin, -1.0, -math.inf, -9.0] for margin in margins]
    rows += [[-math.inf, 0.0, -math.inf, -math.inf, -math.inf], [-math.inf, 0.0, 3.0, -math.inf, -math.inf]]
    z = torch.tensor(rows).to(dtype)
    y = torch.ones(len(rows), dtype=torch.long)
    loss = losses.Focal(gamma, reduction="none", detach_weight=detach)
    value, grad = plain(loss, z, y)
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()
    check(loss, z, y, (value, grad), **({} if gamma < 0 else {"R": 1, "C": 2, "STAGES": 1, "PARTS": 2}))


@every_dtype
def test_confident_rows(dtype):
    """Nothing of the gradient is lost where p rounds to 1."""
    z, y = batch(6, 300, dtype, scale=1.0)
    z[torch.arange(6), y] += torch.tensor([8, 12, 20, 30, 40, 60], dtype=dtype)
    for sizes in SIZES[1:5:3]:
        check(losses.Focal(0.5, reduction="sum"), z, y, **sizes)


@every_dtype
@pytest.mark.parametrize("loss", [losses.Focal(3), losses.parse("flsd-53", reduction="none")])
def test_in_place_and_with_any_row_stride(dtype, loss):
    z, y = batch(3, 130, dtype)
    value, grad = run(loss, z, y)
    wide = torch.full((6, 200), 7.0, dtype=dtype)
    view = wide[::2, 40:170]
    for sizes in SIZES[
        :4
    ]:  # one launch for each reading cannot be in place: the first program takes the label from the next
        view.copy_(z)
        again, same = run(loss, view, y, grad=view, **sizes)
        torch.testing.assert_close(again, value)
        torch.testing.assert_close(same, grad)
        rest = wide.clone()
        rest[::2, 40:170] = 7.0
        assert bool((rest == 7).all())  # nothing beside the rows was written


@every_dtype
def test_half_of_the_mass_where_the_first_tile_does_not_look(dtype):
    """The largest logit may be anywhere, and so may -inf."""
    z, y = batch(4, 700, dtype, scale=1.0)
    z[0, 699] += 50
    z[1, :600] = -math.inf
    z[2, 650] = 10_000
    z[3, 0] = 10_000
    y[:] = torch.tensor([3, 650, 1, 699])
    for sizes in SIZES[2:]:
        check(losses.Focal(2, reduction="none"), z, y, **sizes)


@every_dtype
def test_rescale(dtype):
    z, _ = batch(5, 37, dtype)
    wide = torch.zeros(5, 64, dtype=dtype)
    for above in (
        torch.tensor(0.5),
        torch.tensor([1.0, 2, 0, -3, 0.25]),
        torch.tensor(2.0).expand(5),
        torch.tensor(1.0),
    ):
        grad = wide[:, :37].copy_(z)
        kernel.rescale(grad, above)
        torch.testing.assert_close(grad.float(), z.float() * above.reshape(-1, 1), rtol=ROUNDING[dtype], atol=0)
        assert bool((wide[:, 37:] == 0).all())
    spread = torch.tensor([1.0, 9, 2, 9, 3, 9, 4, 9, 5, 9])[::2]
    kernel.rescale(z, spread)
    expected = batch(5, 37, dtype)[0].float() * spread[:, None]
    torch.testing.assert_close(z.float(), expected, rtol=ROUNDING[dtype], atol=0)


def test_an_empty_batch():
    values, grad = run(losses.Focal(3, reduction="sum"), torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert values.shape == (0,)
    assert grad.shape == (0, 5)
    kernel.rescale(grad, torch.tensor(2.0))
