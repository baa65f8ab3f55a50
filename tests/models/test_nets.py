"""What holds for every net, and what each is fed with."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

from tests.models.cases import NAMES, ONE_OF_EACH_KIND, SHAPES, SMALL, batch, built, settled, slow
from trueup import models
from trueup.inputs import InputError
from trueup.models.resnet import Projection, ZeroPadded, grid_means


@pytest.mark.parametrize("name", NAMES)
def test_logits_come_out_of_the_last_layer_and_gradients_reach_every_parameter(name):
    net = built(name, classes=7).eval()
    seen = []
    models.last_layer(net).register_forward_hook(lambda layer, inputs, output: seen.append(output))
    logits = net(batch(name, 1))
    assert logits.shape == (1, 7)
    assert len(seen) == 1
    assert seen[0] is logits
    (logits * torch.arange(1.0, 8.0)).sum().backward()
    for parameter, value in net.named_parameters():
        assert value.grad is not None, parameter
        assert torch.isfinite(value.grad).all(), parameter
        assert value.grad.any(), parameter


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_in_eval_mode_samples_are_independent_and_nothing_changes(name):
    net = settled(name)
    before = copy.deepcopy(net.state_dict())
    x = batch(name, 3, dtype=torch.float64)
    with torch.no_grad():
        together = net(x)
        alone = torch.cat([net(row[None]) for row in x])
        permuted = net(x[[2, 0, 1]])
    torch.testing.assert_close(alone, together, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(permuted, together[[2, 0, 1]], rtol=1e-9, atol=1e-9)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH_KIND if name != "text-cnn"])  # which drops out
def test_in_training_mode_the_order_of_the_batch_does_not_matter(name):
    net, x = built(name).double().train(), batch(name, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(x[[3, 1, 0, 2]]), net(x)[[3, 1, 0, 2]], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_the_seed_decides_the_weights(name):
    first, again, other = (built(name, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    assert not all(torch.equal(value, other[key]) for key, value in first.items())


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH_KIND if name not in ("mlp", "text-cnn")])
def test_channels_last_gives_the_same_logits_and_stays_channels_last(name):
    net, x = settled(name), batch(name, 2, dtype=torch.float64)
    with torch.no_grad():
        plain = net(x)
        net = net.to(memory_format=torch.channels_last)
        strays = []
        for layer_name, layer in net.named_modules():
            if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | ZeroPadded):
                layer.register_forward_hook(
                    lambda _, __, out, at=layer_name: (
                        strays.append((at, out.stride()))
                        if not out.is_contiguous(memory_format=torch.channels_last)
                        else None
                    )
                )
        torch.testing.assert_close(net(x.contiguous(memory_format=torch.channels_last)), plain, rtol=1e-9, atol=1e-9)
    assert not strays


@pytest.mark.parametrize("name", SMALL)
def test_each_sample_of_a_small_net_has_a_gradient(name):
    net, x, y = built(name), batch(name, 5), torch.tensor([0, 3, 3, 9, 1])
    weights = dict(net.named_parameters())

    def loss(weights, sample, label):
        return F.cross_entropy(functional_call(net, weights, (sample[None],)), label[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    for i in range(5):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        for key, value in net.named_parameters():
            torch.testing.assert_close(per_sample[key][i], value.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, at its first forward mode
@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "resnet32", "vit-tiny", *(slow(name) for name in ("densenet121", "vgg16", "vgg16-bn"))]
)
def test_forward_over_reverse_is_double_backward(name):
    """Hessian times vector by two ways, in eval mode, in double precision."""
    net, x, y = settled(name), batch(name, 2, dtype=torch.float64), torch.tensor([1, 8])
    weights = {key: value.detach() for key, value in net.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    v = {key: torch.randn(w.shape, generator=generator, dtype=w.dtype) for key, w in weights.items()}

    def loss(weights):
        return F.cross_entropy(functional_call(net, weights, (x,)), y)

    _, forward = jvp(grad(loss), (weights,), (v,))
    leaves = {key: w.clone().requires_grad_() for key, w in weights.items()}
    first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
    slope = sum((g * v[key]).sum() for key, g in zip(leaves, first, strict=True))
    second = torch.autograd.grad(slope, list(leaves.values()), allow_unused=True)
    scale = max(float(f.abs().max()) for f in forward.values())
    assert scale > 0
    for key, s in zip(leaves, second, strict=True):
        s = torch.zeros_like(forward[key]) if s is None else s
        torch.testing.assert_close(s, forward[key], rtol=1e-6, atol=1e-9 * scale)


def test_option_a_takes_every_second_pixel_between_zeros():
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    out = ZeroPadded(16, 32, 2)(x)
    assert out.shape == (2, 32, 4, 4)
    for n, c, i, j in itertools.product(range(2), range(32), range(4), range(4)):
        assert out[n, c, i, j] == (x[n, c - 8, 2 * i, 2 * j] if 8 <= c < 24 else 0)
    with torch.device("meta"):
        net = models.build("resnet110", 10, (3, 32, 32))
    assert sum(isinstance(layer, ZeroPadded) for layer in net.modules()) == 2
    assert not any(isinstance(layer, Projection) for layer in net.modules())


@pytest.mark.parametrize("grid", [1, 2])
def test_grid_means_are_adaptive_pooling(grid):
    x = torch.randn(3, 5, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(grid_means(x, grid), F.adaptive_avg_pool2d(x, grid).flatten(1))


def test_pooling_before_the_convolution_is_pooling_after_it():
    layer = built("densenet121").layers[7].double().eval()
    x = torch.randn(2, 256, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(layer(x), F.avg_pool2d(layer.conv(F.relu(layer.bn(x))), 2))


def test_attention_is_that_of_torch():
    attention = built("vit-tiny").blocks[0].attention.double()
    x = torch.randn(2, 65, 192, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = nn.MultiheadAttention(192, 3, batch_first=True, dtype=torch.float64)
    reference.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.out.weight,
            "out_proj.bias": attention.out.bias,
        }
    )
    torch.testing.assert_close(attention(x), reference(x, x, x, need_weights=False)[0])


def test_the_plain_vgg_keeps_its_signal():
    """How far images are apart before the head: PyTorch's defaults would make them all alike."""

    def spread(net):
        with torch.no_grad():
            features = net[:-1](batch("vgg16", 8))
        return float(features.std(0).mean())

    net = built("vgg16")
    ours = spread(net)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    assert ours > 1000 * spread(net)


@pytest.mark.parametrize(("name", "fan"), [("wrn26-10", "out"), ("resnet50-tiny", "out"), ("resnet32", "in")])
def test_he_initialisation_has_the_variance_of_its_fan(name, fan):
    for layer in built(name).modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 20_000:
            channels = layer.out_channels if fan == "out" else layer.in_channels
            expected = (2 / (channels * layer.kernel_size[0] ** 2)) ** 0.5
            assert float(layer.weight.detach().std()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", ["linear", "mlp", "mlp:7", "mlp:30,20"])
def test_an_mlp_takes_anything(name):
    for shape in [(1,), (5,), (1, 8, 8), (3, 4, 9)]:
        assert models.build(name, 3, shape)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 9, 31), (3, 32, 32)])
def test_a_cnn_takes_images_of_any_size_from_eight_on(shape):
    assert models.build("cnn", 4, shape)(torch.zeros(2, *shape)).shape == (2, 4)


def test_hidden_widths():
    widths = [layer.out_features for layer in models.build("mlp:30,20", 3, (5,)) if isinstance(layer, nn.Linear)]
    assert widths == [30, 20, 3]
    assert models.build("mlp", 3, (5,))[1].out_features == 100
    assert len(models.build("linear", 3, (5,))) == 2


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet32", "densenet121", "vit-tiny"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64)])
def test_other_squares_that_fit(name, shape):
    net = models.build(name, 5, shape).eval()
    with torch.no_grad():
        assert net(torch.zeros(1, *shape)).shape == (1, 5)


IMAGE_NETS = [name for name in NAMES if name not in (*SMALL, *models.OF_WORDS)]


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("shape", [(5,), (3, 32), (3, 32, 30), (3, 9, 9), (3, 1, 1)])
def test_an_image_net_says_which_images_it_takes(name, shape):
    with pytest.raises(InputError, match=rf"input_shape: {name} takes images .* H = W = (32|64)"):
        models.build(name, 10, shape)


def test_bad_requests_name_what_is_wrong():
    for name, classes, shape, message in [
        ("resnet19", 10, (3, 32, 32), "unknown model 'resnet19'; known: linear, mlp, cnn, resnet18"),
        ("resnet18:3", 10, (3, 32, 32), "resnet18 takes no argument"),
        ("mlp:", 10, (5,), "widths"),
        ("mlp:3,x", 10, (5,), "widths"),
        ("mlp:0", 10, (5,), "above 0"),
        ("mlp", 1, (5,), "classes: expected a whole number of at least 2"),
        ("mlp", 2, (0,), "input_shape"),
        ("mlp", 2, (), "input_shape: empty"),
        ("cnn", 2, (1, 7, 8), "at least 8 x 8"),
        ("cnn", 2, (64,), "mlp takes anything"),
        ("vgg16", 2, (3, 64, 64), "H = W = 32"),
        ("resnet50-tiny", 2, (3, 40, 40), "multiple of 16"),
    ]:
        with pytest.raises(InputError, match=message):
            models.build(name, classes, shape)


def test_words_and_nets_have_to_fit():
    words = torch.zeros(5, 3)
    for name, shape, given, message in [
        ("text-cnn", (40,), None, "reads words, and these data have none"),
        ("tree-lstm", (9, 2), None, "reads words"),
        ("resnet18", (40,), words, "cannot read words, which these data are; text-cnn and tree-lstm can"),
        ("text-cnn", (20,), words, "at least 21 tokens"),
        ("text-cnn", (9, 2), words, "reads documents, and these data are trees"),
        ("text-cnn", (9,), words, "takes documents"),
        ("tree-lstm", (40,), words, "reads trees, and these data are documents"),
        ("tree-lstm", (40, 3), words, "takes packed trees"),
        ("tree-lstm:3", (9, 2), words, "tree-lstm takes no argument"),
    ]:
        with pytest.raises(InputError, match=message):
            models.build(name, 3, shape, given)


def test_last_layer_needs_one():
    with pytest.raises(InputError, match="no linear layer"):
        models.last_layer(nn.Conv2d(3, 4, 1))


def test_every_net_has_a_case():
    assert set(SHAPES) == set(models.MODELS)
