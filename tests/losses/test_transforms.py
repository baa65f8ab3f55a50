"""torch.func, forward mode, double backward, autocast and torch.compile, for every loss of the registry."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap

from tests.losses.small import EXAMPLES, batch, gradient
from trueup import focal, losses

# torch's own forward mode still scripts its decompositions
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
close = torch.testing.assert_close
every_loss = pytest.mark.parametrize("spec", EXAMPLES)


@every_loss
def test_grad_and_jvp_are_backward(spec):
    loss, (z, y) = losses.parse(spec), batch()
    tangent = torch.randn(z.shape, generator=torch.Generator().manual_seed(5), dtype=z.dtype)
    true = gradient(loss, z, y)
    close(grad(loss)(z, y), true)
    value, moved = jvp(lambda x: loss(x, y), (z,), (tangent,))
    close(value, loss(z, y))
    close(moved, (true * tangent).sum())
    with forward_ad.dual_level():
        out = loss(forward_ad.make_dual(z, tangent), y)
        close(forward_ad.unpack_dual(out).tangent, moved)


@every_loss
@pytest.mark.parametrize("ignored", [False, True])
def test_vmap_is_a_loop(spec, ignored):
    loss = losses.parse(spec)
    zs, ys = (torch.stack(each) for each in zip(*(batch(seed=seed) for seed in range(3)), strict=True))
    if ignored:
        ys[:, 2] = -100
    close(vmap(loss)(zs, ys), torch.stack([loss(z, y) for z, y in zip(zs, ys, strict=True)]))
    close(vmap(grad(loss))(zs, ys), torch.stack([gradient(loss, z, y) for z, y in zip(zs, ys, strict=True)]))
    close(vmap(loss, (0, None))(zs, ys[0]), torch.stack([loss(z, ys[0]) for z in zs]))
    close(vmap(loss, (1, 1))(zs.transpose(0, 1), ys.T), vmap(loss)(zs, ys))


@every_loss
def test_the_hessian_by_torch_func_is_that_by_double_backward(spec):
    loss, (z, y) = losses.parse(spec), batch(n=4, classes=3)
    z.requires_grad_()
    (first,) = torch.autograd.grad(loss(z, y), z, create_graph=True)
    rows = [
        torch.autograd.grad(entry, z, retain_graph=True)[0] if first.requires_grad else torch.zeros_like(z)
        for entry in first.flatten()
    ]
    expected = torch.stack(rows).reshape(4, 3, 4, 3)
    close(hessian(loss)(z.detach(), y), expected, atol=1e-12, rtol=1e-9)
    close(jacrev(jacrev(loss))(z.detach(), y), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("gamma", [-1.0, -0.5, 0.5, 3.0])
def test_the_hessian_by_torch_func_is_the_closed_form_also_where_p_is_1(gamma):
    loss = losses.Focal(gamma)
    for margin in (-50.0, -3.0, 0.0, 3.0, 40.0, 300.0):
        z, y = torch.tensor([[margin, 0.0, -1.0]], dtype=torch.float64), torch.tensor([0])
        closed = focal.logit_hessian(z, y, gamma)[0]
        found = hessian(loss)(z, y)[0, :, 0]
        close(found, closed, rtol=1e-11, atol=1e-12 * float(closed.abs().max()))


def test_per_sample_gradients_of_a_network():
    net, loss = torch.nn.Linear(6, 5).double(), losses.Focal(2)
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(0, 5, (8,))

    def one(weights, row, label):
        return loss(torch.func.functional_call(net, weights, row[None]), label[None])

    weights = {name: value.detach() for name, value in net.named_parameters()}
    each = vmap(grad(one), (None, 0, 0))(weights, x, y)
    loss(net(x), y).backward()
    for name, parameter in net.named_parameters():
        close(each[name].mean(0), parameter.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_loss
def test_autocast_computes_the_loss_in_float32(spec, dtype):
    loss, (z, y) = losses.parse(spec), batch(n=12)
    net = torch.nn.Linear(5, 5)
    with torch.autocast("cpu", dtype=dtype):
        out = net(z.float())
        value = loss(out, y)
    assert out.dtype == dtype
    assert value.dtype == torch.float32
    close(value, loss(out.detach().float(), y), rtol=1e-5, atol=1e-6)
    value.backward()
    assert torch.isfinite(net.weight.grad).all()
    with torch.autocast("cpu", dtype=dtype):  # float32 logits are not rounded
        close(loss(z.float(), y), loss(z, y).float(), rtol=1e-5, atol=1e-6)


def extreme():
    z = torch.tensor([[1e4, 0.0, -5.0], [-1e4, 0.0, 3.0], [2.0, -torch.inf, 1.0], [0.5, 0.25, -1.0], [0.0, 3.0, 9.0]])
    return z, torch.tensor([0, 0, 0, 2, -100])


def compiled(loss, backend):
    torch._dynamo.reset()
    return torch.compile(loss, fullgraph=True, backend=backend)


FAST = ("focal:3",)


@pytest.mark.parametrize(
    "spec", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in EXAMPLES]
)
def test_compiles_without_a_graph_break(spec):
    loss = losses.parse(spec)
    quick = compiled(loss, "aot_eager")
    for z, y in (batch(n=9, dtype=torch.float32), extreme()):
        close(quick(z, y), loss(z, y), rtol=1e-5, atol=1e-6)
        close(gradient(quick, z, y), gradient(loss, z, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("gamma", "detach"),
    [(-1.0, False), *(pytest.param(*each, marks=pytest.mark.slow) for each in [(0.25, False), (-1.0, True)])],
)
def test_compiled_gradients_are_exact_too(gamma, detach):
    loss = losses.Focal(gamma, detach_weight=detach, reduction="sum")
    quick = compiled(loss, "aot_eager")
    margins = torch.tensor([-1e4, -50.0, -3, 0, 3, 17, 40, 80, 1e4])
    z = torch.stack([margins, torch.zeros(9), torch.full((9,), -2.0)], 1)
    y = torch.zeros(9, dtype=torch.long)
    found, true = gradient(quick, z, y), gradient(loss, z, y)
    assert torch.isfinite(found).all()
    close(found, true, rtol=1e-5, atol=torch.finfo(torch.float32).tiny)


def test_a_compiled_schedule_moves():
    loss = losses.parse("focal-schedule:5,3,2")
    quick, (z, y) = compiled(loss, "aot_eager"), batch()
    for fraction in (0.0, 0.5, 0.9):
        loss.set_progress(fraction)
        close(quick(z, y), losses.Focal(float(loss.gamma.gamma))(z, y))


@pytest.mark.slow
def test_compiled_soft_targets_images_weights():
    z = torch.randn(3, 5, 4, 4, dtype=torch.float64)
    y = torch.randint(0, 5, (3, 4, 4))
    u = torch.randn_like(z).softmax(1)
    loss = losses.Focal(2, weight=[1.0, 2, 3, 4, 5])
    quick = compiled(loss, "aot_eager")
    for labels in (y, u):
        close(quick(z, labels), loss(z, labels))
        close(gradient(quick, z, labels), gradient(loss, z, labels))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["focal:3", "flsd-53", "brier", "cross-entropy+mmce:2"])
def test_compiles_with_inductor(spec):
    loss, (z, y) = losses.parse(spec), batch(n=9, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own making
        quick = compiled(loss, "inductor")
        close(quick(z, y), loss(z, y), rtol=1e-5, atol=1e-6)
        close(gradient(quick, z, y), gradient(loss, z, y), rtol=1e-5, atol=1e-6)


def test_a_training_step_with_double_backward():
    """A gradient penalty through the loss: the derivative of |gradient|^2 is finite and right."""
    net, loss = torch.nn.Linear(4, 3).double(), losses.Focal(2)
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 3, (5,))

    def norm(weight):
        z = F.linear(x, weight)
        (first,) = torch.autograd.grad(loss(z, y), weight, create_graph=True)
        return first.square().sum()

    assert torch.autograd.gradcheck(norm, net.weight.detach().requires_grad_())


@pytest.mark.parametrize("spec", ["cross-entropy", "focal:2", "focal:-0.5", "brier", "label-smoothing:0.1", "flsd-53"])
def test_forward_mode_within_forward_mode_is_the_second_derivative(spec):
    loss = losses.parse(spec, reduction="sum")
    z, v = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2])
    along = torch.func.jvp(lambda a: torch.func.jvp(lambda b: loss(b, y), (a,), (v,))[1], (z,), (v,))[1]
    hessian = torch.func.hessian(lambda a: loss(a, y))(z).reshape(12, 12)
    torch.testing.assert_close(along, v.reshape(-1) @ hessian @ v.reshape(-1))


@every_loss
def test_forward_mode_over_a_gradient_without_a_graph(spec):
    """As a loop with dual numbers has it: the tangent of ``autograd.grad`` is the Hessian's product."""
    loss, (z, y) = losses.parse(spec), batch(n=4, classes=3)
    tangent = torch.randn(z.shape, generator=torch.Generator().manual_seed(6), dtype=z.dtype)
    with forward_ad.dual_level():
        at = forward_ad.make_dual(z.clone().requires_grad_(), tangent)
        moved = forward_ad.unpack_dual(torch.autograd.grad(loss(at, y), at)[0]).tangent
    along = torch.tensordot(hessian(loss)(z, y), tangent, 2)
    close(torch.zeros_like(z) if moved is None else moved, along)
