"""The Tree-LSTM against the recursion, and the CNN for texts against a plain one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call, grad, jvp

from tests.conftest import SHARED
from tests.data.test_trees import TREES
from tests.models.cases import batch, built, word_vectors
from tests.models.recursion import nested, node_logits
from trueup.data import load, trees
from trueup.models.text import REACH, TextCNN
from trueup.models.tree_lstm import EveryNode, TreeLSTM, levels_of


def packed(some):
    """(N, M, 2) of trees, their words numbered anew from 1 to 29."""
    rows = [trees.pack(tree) for tree in some]
    index = {word: 1 + i % 29 for i, word in enumerate(trees.vocabulary(rows))}
    return torch.from_numpy(trees.arrays(rows, index, max(len(row.words) for row in rows))[0])


def double(seed=0):
    torch.manual_seed(seed)
    net = TreeLSTM(2, word_vectors(), width=5).double()
    net.dropout.p = 0.0
    return net


def gradients(net, logits):
    net.zero_grad()
    weights = torch.arange(logits.numel(), dtype=torch.float64).reshape(logits.shape).cos()
    (logits * weights).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


@given(st.lists(TREES, min_size=1, max_size=6))
def test_all_nodes_are_those_of_the_recursion(some):
    inputs, net = packed(some), double().train()
    ours, theirs = net.of_nodes(inputs), node_logits(net, [nested(tree) for tree in inputs])
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    for a, b in zip(gradients(net, net.of_nodes(inputs)), gradients(net, theirs), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@given(st.lists(TREES, min_size=1, max_size=6))
def test_the_roots_are_judged_without_the_last_class(some):
    inputs, net = packed(some), double()
    sizes = (inputs[..., 1] >= 0).sum(1)
    roots = net.of_nodes(inputs)[sizes.cumsum(0) - sizes]
    torch.testing.assert_close(net(inputs), roots[:, :2])
    torch.testing.assert_close(EveryNode(net)(inputs), net.of_nodes(inputs))


def test_real_trees_in_single_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUEUP_CACHE", str(tmp_path))
    if not (SHARED / "data" / "sst").is_dir():
        pytest.skip("the real trees are not here (TRUEUP_DATA)")
    data = load("sst", SHARED)
    torch.manual_seed(0)
    net = TreeLSTM(2, data.words).train()
    net.dropout.p = 0.0
    inputs = data.train.inputs[:25]
    ours, theirs = net.of_nodes(inputs), node_logits(net, [nested(tree) for tree in inputs])
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for a, b in zip(gradients(net, net.of_nodes(inputs)), gradients(net, theirs), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(b.abs().max()), rtol=1e-4)


def test_a_plan_has_every_node_once_and_no_python_step_for_a_node(monkeypatch):
    """As many matrix products as levels, however many trees there are."""
    chain = trees.parse("(2 (1 a) (3 (2 b) (4 (0 c) (1 d))))")
    few, many = packed([chain]), packed([chain] * 40)
    plan = levels_of(many)
    assert sorted(plan.order.tolist()) == list(range(40 * 7))
    assert plan.leaves == [0, 40, 40, 80]
    calls = []
    original = F.linear
    monkeypatch.setattr(F, "linear", lambda *args: (calls.append(1), original(*args))[1])
    for inputs in (few, many):
        double().of_nodes(inputs)
    assert len(calls) == 2 * (1 + 3 + 1)


def test_trees_of_a_batch_do_not_see_each_other():
    some = [trees.parse(t) for t in ("(2 (1 a) (3 (2 b) (4 c)))", "(3 d)", "(2 (1 (1 a) (2 e)) (3 b))")]
    net, inputs = double().eval(), packed(some)
    together = net(inputs)
    torch.testing.assert_close(torch.cat([net(tree[None]) for tree in inputs]), together)
    torch.testing.assert_close(net(inputs[[2, 0, 1]]), together[[2, 0, 1]])
    padded = F.pad(inputs, (0, 0, 0, 4)) - F.pad(torch.zeros_like(inputs), (0, 0, 0, 4), value=1) * torch.tensor([0, 1])
    torch.testing.assert_close(net(padded.int()), together)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_forward_over_reverse_is_double_backward():
    net = double().train()
    inputs = packed([trees.parse("(2 (1 a) (3 (2 b) (4 c)))"), trees.parse("(3 d)")])
    y = torch.tensor([0, 1, 2, 1, 0, 2])
    weights = {key: value.detach() for key, value in net.named_parameters()}
    v = {
        key: torch.randn(w.shape, generator=torch.Generator().manual_seed(2), dtype=w.dtype)
        for key, w in weights.items()
    }

    def loss(weights):
        of_net = {f"net.{key}": w for key, w in weights.items()}
        return F.cross_entropy(functional_call(EveryNode(net), of_net, (inputs,)), y)

    _, forward = jvp(grad(loss), (weights,), (v,))
    leaves = {key: w.clone().requires_grad_() for key, w in weights.items()}
    first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
    second = torch.autograd.grad(
        sum((g * v[key]).sum() for key, g in zip(leaves, first, strict=True)), list(leaves.values())
    )
    for key, s in zip(leaves, second, strict=True):
        torch.testing.assert_close(s, forward[key], rtol=1e-8, atol=1e-10)


def test_the_cells_are_not_rounded_by_autocast():
    net = double().float().eval()
    inputs = packed([trees.parse("(2 (1 a) (3 (2 b) (4 c)))")])
    with torch.autocast("cpu", torch.bfloat16):
        states = net.states(levels_of(inputs))
        rounded = net(inputs)
    assert all(state.dtype == torch.float32 for state in states)
    torch.testing.assert_close(rounded.float(), net(inputs), atol=0.02, rtol=0.05)


# ---------------------------------------------------------------------- text-cnn


def plain(net, tokens):
    """The layers one by one, in torch's own convolutions of one dimension, with all padding."""
    x = net.words.weight[tokens.long()].transpose(1, 2)
    for layer, pooled in ((net.conv1, True), (net.conv2, True), (net.conv3, False)):
        x = F.conv1d(x, layer.weight.squeeze(2), layer.bias).relu()
        x = F.max_pool1d(x, 5, 1) if pooled else x
    return net.fc(net.hidden(x.max(2).values).relu())


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_documents_of_any_length_are_those_of_plain_convolutions(lengths):
    torch.manual_seed(0)
    net = TextCNN(4, word_vectors()).double().eval()
    tokens = torch.randint(0, 30, (len(lengths), 60), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    tokens *= torch.arange(60, 0, -1) <= torch.tensor(lengths)[:, None]
    torch.testing.assert_close(net(tokens), plain(net, tokens))
    torch.testing.assert_close(net.features(tokens), net.features_by_length(tokens))
    (net(tokens) ** 2).sum().backward()
    ours = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    (plain(net, tokens) ** 2).sum().backward()
    for p, mine in zip(net.parameters(), ours, strict=True):
        if p is not net.words.weight:  # where values tie, as in padding, amax shares the slope among them
            torch.testing.assert_close(mine, p.grad, atol=1e-9, rtol=1e-7)


def test_one_feature_sees_so_many_tokens():
    net = TextCNN(4, word_vectors()).eval()
    assert net.features(torch.ones(1, REACH, dtype=torch.int32)).shape == (1, 128)
    x = net.words(torch.ones(1, REACH, dtype=torch.int32)).unsqueeze(1).permute(0, 3, 1, 2)
    for layer in (net.conv1, net.conv2):
        x = F.max_pool2d(layer(x), (1, 5), stride=1)
    assert net.conv3(x).shape[3] == 1


def test_padding_stays_zero_while_words_are_trained():
    net = built("text-cnn").train()
    optimiser = torch.optim.SGD(net.parameters(), 0.5)
    before = net.words.weight.detach().clone()
    net(batch("text-cnn", 8)).square().sum().backward()
    optimiser.step()
    assert not net.words.weight[0].any()
    assert not torch.equal(net.words.weight, before)
