"""One graph from input to gradient, compiled or captured."""

import pytest
import torch
import torch.nn.functional as F

from tests.models.cases import NAMES, batch, built, slow
from trueup import models

QUICK = {"linear", "mlp", "cnn", "resnet32", "vgg16", "vit-tiny"}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in NAMES])
def test_a_training_step_is_one_graph(name):
    net, x, y = built(name), batch(name, 2), torch.tensor([0, 1])
    twin = built(name)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    for each in (compiled, twin):
        torch.manual_seed(0)  # of dropout
        F.cross_entropy(each(x), y).backward()
    for (key, ours), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=key)
    assert models.last_layer(compiled) is models.last_layer(net)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_autograd_can_be_traced_ahead_of_time(name):
    net, x = built(name).double(), batch(name, 2, dtype=torch.float64)
    expected = built(name).double()(x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, at its first compilation
@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_the_compiled_net_gives_the_same_logits(name):
    net, x = built(name).eval(), batch(name, 2)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, fullgraph=True)(x), net(x), rtol=1e-3, atol=1e-4)


@needs_cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_fits_into_a_cuda_graph(name):
    """bf16, channels-last where there are channels; the graph's gradients are those of the eager step."""
    net, x, y = built(name).cuda().train(), batch(name, 8).cuda(), (torch.arange(8) % 10).cuda()
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # or every step would be another one
    if x.ndim == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            logits = net(x)
        F.cross_entropy(logits.float(), y).backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net.zero_grad(set_to_none=True)
            step()
        eager = {key: value.grad.clone() for key, value in net.named_parameters()}
    torch.cuda.current_stream().wait_stream(side)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for value in net.parameters():
        value.grad.zero_()
    graph.replay()
    norm = sum(value.square().sum() for value in eager.values()).sqrt()
    missed = sum((value.grad - eager[key]).square().sum() for key, value in net.named_parameters()).sqrt()
    assert norm > 0
    assert missed <= 0.05 * norm
