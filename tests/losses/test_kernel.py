"""The fused kernel: its logic by Triton's interpreter, what it refuses, and on a GPU the whole way through autograd."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.losses.small import batch, gradient
from trueup import losses
from trueup.inputs import InputError
from trueup.losses import kernel

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
close = torch.testing.assert_close


@needs_triton
def test_the_logic_by_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "interpreted.py")],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@needs_triton
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("classes", [1000, 100_000])
def test_it_compiles_for_a_gpu_that_is_not_here(dtype, classes):
    """The interpreter takes what no GPU would: sizes that are no powers of two, types that do not meet."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trueup.losses import programs

    pointers = {"labels": "*i64", "losses": "*fp32", "bounds": "*fp64", "gammas": "*fp64", "divisor": "*i32"}
    pointers |= {"meeting": "*i64"}
    types = {"logits": f"*{dtype}", "grad": f"*{dtype}"} | pointers
    types |= dict.fromkeys(("logits_stride", "grad_stride", "K", "ignore_index"), "i32")
    sizes = kernel.configuration(classes, 2 if dtype == "bf16" else 4)
    warps = sizes.pop("num_warps")
    fixed = {"weights": None, "STEPS": 2, "WEIGHTED": False, "DIVIDED": True, "DETACH": False, "EVEN": False}
    fixed |= {"WIDE": dtype == "fp32", "PHASE": 0} | sizes
    names = programs.focal_rows.arg_names
    source = ASTSource(
        programs.focal_rows,
        {name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in fixed.items()},
    )
    options = {"num_warps": warps, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert "st.global" in made.asm["ptx"]


@needs_triton
@pytest.mark.parametrize(
    ("z", "y", "says"),
    [
        (torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.long), "float64; it takes float16"),
        (torch.zeros(4, 3, 2), torch.zeros(4, 2, dtype=torch.long), r"\(N, K\) logits and \(N,\) classes"),
        (torch.zeros(4, 3), torch.zeros(4, 3), "classes"),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long), "1 classes; it takes 2 to 262144"),
        (torch.zeros(1, 1).expand(1, 262_145), torch.zeros(1, dtype=torch.long), "262145 classes"),
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.long), "4 rows, 5 labels"),
        (torch.zeros(3, 4).T, torch.zeros(4, dtype=torch.long), "not next to each other"),
    ],
)
def test_what_it_cannot_serve_it_refuses_with_the_reason(z, y, says):
    with pytest.raises(InputError, match=f"the fused kernel cannot serve: .*{says}"):
        kernel.fused(losses.Focal(3), z, y)


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(kernel, "_programs", lambda: None)
    assert kernel.refusal(*batch(dtype=torch.float32)) == "Triton is not installed"


def test_on_the_cpu_the_plain_path_is_taken():
    z, y = batch(dtype=torch.float32)
    assert not kernel.serves(z.requires_grad_(), y)


@pytest.mark.parametrize("width", [2, 4])
def test_programs_have_sizes_that_triton_takes(width):
    for classes in [*range(2, 300), 1000, 1024, 8191, 8192, 32_768, 65_535, 65_536, 131_072, 262_144]:
        sizes = kernel.configuration(classes, width)
        assert all(value > 0 and value & (value - 1) == 0 for name, value in sizes.items() if name != "STAGES")
        assert sizes["R"] * sizes["C"] <= max(2 * classes, 64 * 16 // width)


GPU_LOSSES = {
    "cross-entropy": losses.CrossEntropy,
    "focal": lambda **kw: losses.Focal(3, **kw),
    "negative gamma": lambda **kw: losses.Focal(-0.5, **kw),
    "detached": lambda **kw: losses.Focal(2, detach_weight=True, **kw),
    "flsd-53": lambda **kw: losses.parse("flsd-53", **kw),
    "schedule": lambda **kw: losses.parse("focal-schedule:5,3,2", **kw),
}


@needs_gpu
@pytest.mark.parametrize("name", GPU_LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 100, 1000, 50_257, 128_256])
def test_fused_is_plain_on_a_gpu(name, reduction, dtype, classes):
    loss = GPU_LOSSES[name](reduction=reduction).cuda()
    z, y = (x.cuda() for x in batch(n=32, classes=classes, dtype=dtype, scale=4))
    y[3] = -100
    z = z.requires_grad_()
    assert kernel.serves(z, y)
    above = torch.randn(32, device="cuda") if reduction == "none" else torch.tensor(3.0, device="cuda")
    (ours,) = torch.autograd.grad(loss(z, y), z, above)
    wide = z.detach().double().requires_grad_()
    value = loss(wide, y)
    (plain,) = torch.autograd.grad(value, wide, above.double())
    close(loss(z, y).double(), value, rtol=1e-4, atol=1e-6)
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}[dtype]
    close(ours.double(), plain, rtol=rounding, atol=2e-7 if dtype == torch.float16 else 1e-30)


@needs_gpu
def test_overwritten_logits_hold_the_gradient_and_whoever_needs_them_is_told():
    net = torch.nn.Linear(8, 1000, device="cuda")
    x, y = torch.randn(16, 8, device="cuda"), torch.randint(0, 1000, (16,), device="cuda")
    kept, overwriting = losses.Focal(3), losses.Focal(3, overwrite_logits=True)
    true = torch.autograd.grad(kept(net(x), y), net.weight)[0]
    close(torch.autograd.grad(overwriting(net(x), y), net.weight)[0], true)
    z = net(x)
    z.retain_grad()
    overwriting(z, y).backward()
    close(z.grad, z.detach(), rtol=0, atol=0)
    z = net(x)
    saved = z.exp().sum()  # saves its own output: no harm
    saved_logits = z.square().sum()  # saves the logits
    overwriting(z, y)
    saved.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved_logits.backward()


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [1000, 65_536, 99_999, 262_144])
def test_in_place_or_not_it_is_the_same(classes, dtype):
    """Also of rows that several programs share, many more of them than can run at once."""
    z = torch.randn(2000 if classes < 200_000 else 700, classes, device="cuda", dtype=dtype)
    y = torch.randint(0, classes, (len(z),), device="cuda")
    kept, overwritten = z.clone().requires_grad_(), z.requires_grad_()
    losses.Focal(3)(kept, y).backward()
    losses.Focal(3, overwrite_logits=True)(overwritten, y).backward()
    assert torch.equal(kept.grad, overwritten.grad)


@needs_gpu
def test_double_backward_says_what_to_do():
    z, y = (x.cuda() for x in batch(dtype=torch.float32))
    z = z.requires_grad_()
    with pytest.raises(InputError, match="no second derivative"):
        torch.autograd.grad(losses.Focal(3)(z, y), z, create_graph=True)
    value = losses.Focal(3)(z, y)
    value.backward(retain_graph=True)
    with pytest.raises(InputError, match="already handed out"):
        value.backward()


@needs_gpu
def test_transforms_take_the_plain_path_on_a_gpu():
    z, y = (x.cuda() for x in batch(dtype=torch.float32))
    loss = losses.Focal(3)
    true = gradient(loss, z, y)
    close(torch.func.grad(loss)(z, y), true)
    assert torch.func.hessian(loss)(z, y).shape == (7, 5, 7, 5)
    tangent = torch.randn_like(z)
    close(torch.func.jvp(lambda x: loss(x, y), (z,), (tangent,))[1], (true * tangent).sum())


@needs_gpu
@pytest.mark.parametrize(
    "spec", ["focal-schedule:5,3,2", "brier", "adafocal", "label-smoothing:0.05", "cross-entropy+mmce:2"]
)
def test_a_captured_graph_sees_what_changes(spec):
    loss = losses.parse(spec).cuda()
    z, y = (x.cuda() for x in batch(n=64, classes=100, dtype=torch.float32))
    z = z.requires_grad_()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(loss(z, y), z)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(z, y)
        (grad,) = torch.autograd.grad(value, z)
    for fraction in (0.0, 0.5, 0.9):
        if hasattr(loss, "set_progress"):
            loss.set_progress(fraction)
        with torch.no_grad():
            z += 0.1 * torch.randn_like(z)
            y.copy_(torch.randint(0, 100, (64,)))
        graph.replay()
        close(value, loss(z.detach(), y), rtol=1e-5, atol=1e-6)
        close(grad, gradient(loss, z, y), rtol=1e-4, atol=1e-7)


@needs_gpu
@pytest.mark.parametrize("spec", losses.examples())
def test_every_loss_agrees_with_the_cpu(spec):
    loss, (z, y) = losses.parse(spec), batch(n=40, dtype=torch.float32)
    there = losses.parse(spec).cuda()
    close(there(z.cuda(), y.cuda()).cpu(), loss(z, y), rtol=1e-5, atol=1e-6)
    close(gradient(there, z.cuda(), y.cuda()).cpu(), gradient(loss, z, y), rtol=1e-4, atol=1e-7)


@needs_gpu
def test_a_label_out_of_range_is_asserted_on_the_device():
    """In a process of its own: after an assertion the device is lost to it."""
    code = (
        "import torch, trueup\n"
        "z = torch.zeros(8, 1000, device='cuda', requires_grad=True)\n"
        "y = torch.tensor([0, 1, -100, 999, 1000, 2, 3, 4], device='cuda')\n"
        "trueup.Focal(3)(z, y)\n"
        "torch.cuda.synchronize()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "label out of range" in done.stderr
