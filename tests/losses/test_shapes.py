"""The arguments and shapes of torch.nn.CrossEntropyLoss, and the input that is refused."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from tests.losses.small import EXAMPLES, batch, gradient
from trueup import losses
from trueup.inputs import InputError

close = torch.testing.assert_close
WEIGHT = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.0])
SHAPES = {"one": (), "many": (6,), "sequence": (2, 4), "image": (2, 3, 4)}


def shaped(shape, soft, seed=0):
    """Logits (N, K, d1, ...) or (K,) and targets."""
    generator = torch.Generator().manual_seed(seed)
    n = max(1, torch.Size(shape).numel())
    z = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (n,), generator=generator)
    u = torch.randn(n, 5, generator=generator, dtype=torch.float64).softmax(1)
    if not shape:
        return z[0], u[0] if soft else torch.tensor(2)

    def put(x):
        return x.reshape(*shape, 5).movedim(-1, 1)

    return put(z), put(u) if soft else y.reshape(shape)


@pytest.mark.parametrize(
    ("shape", "reduction", "weight", "soft"),
    list(itertools.product(SHAPES, ["mean", "sum", "none"], [None, WEIGHT], [False, True])),
)
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_cross_entropy_and_label_smoothing_are_pytorchs(shape, reduction, weight, soft, eps):
    z, y = shaped(SHAPES[shape], soft)
    ours = (
        losses.LabelSmoothing(eps, weight=weight, reduction=reduction)
        if eps
        else losses.CrossEntropy(weight=weight, reduction=reduction)
    )
    theirs = torch.nn.CrossEntropyLoss(
        weight=None if weight is None else weight.double(), reduction=reduction, label_smoothing=eps
    )
    if not soft and z.ndim > 1:
        y = torch.where(torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.3, -100, y)
    close(ours(z, y), theirs(z, y), rtol=1e-10, atol=1e-12)
    found, true = (gradient(lambda *a, loss=loss: loss(*a).sum(), z, y) for loss in (ours, theirs))
    close(found, true, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 3.0])
@pytest.mark.parametrize("detach", [False, True])
def test_soft_targets_are_a_mixture_of_classes(gamma, detach):
    z, u = shaped((6,), soft=True)
    loss = losses.Focal(gamma, reduction="none", detach_weight=detach)
    each = torch.stack([loss(z, torch.full((6,), k)) for k in range(5)], 1)
    close(loss(z, u), (u * each).sum(1))
    hard = F.one_hot(z.argmax(1), 5).double()
    close(loss(z, hard), loss(z, z.argmax(1)))
    close(gradient(lambda *a: loss(*a).sum(), z, hard), gradient(lambda *a: loss(*a).sum(), z, z.argmax(1)))


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.Brier(), losses.LabelSmoothing(0.1), losses.Focal(2)])
def test_one_hot_targets_are_classes_also_where_a_class_is_masked(loss):
    z, y = batch()
    z[:, 4] = -torch.inf
    y = y.clamp(max=3)
    hard = F.one_hot(y, 5).double()
    close(loss(z, hard), loss(z, y))
    found = gradient(loss, z, hard)
    assert torch.isfinite(found).all()
    close(found, gradient(loss, z, y))


def test_soft_focal_is_finite_where_a_target_is_certain():
    z = torch.tensor([[1e4, 0.0, -1e4], [0.0, 1e4, -torch.inf], [90.0, 0.0, 0.0]])
    u = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    for gamma in (-1.0, -0.5, 0.0, 0.5, 1.0, 5.0):
        assert torch.isfinite(losses.Focal(gamma)(z, u)), gamma
        assert torch.isfinite(gradient(losses.Focal(gamma), z, u)).all(), gamma


@pytest.mark.parametrize(
    "loss",
    [
        losses.DualFocal(),
        losses.AdaFocal(),
        losses.Focal(losses.ByConfidence((0.2, 5), (1.0, 3))),
    ],
)
def test_losses_that_need_one_true_class_say_so(loss):
    z, u = shaped((6,), soft=True)
    with pytest.raises(InputError, match=r"labels: .*one true class"):
        loss(z, u)


@pytest.mark.parametrize("spec", EXAMPLES)
def test_an_empty_batch_and_one_that_is_all_ignored(spec):
    empty = torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.long)
    z, y = batch()
    ignored = z.requires_grad_(), torch.full_like(y, -100)
    for logits, labels in (empty, ignored):
        assert losses.parse(spec, reduction="sum")(logits, labels) == 0
        each = losses.parse(spec, reduction="none")(logits, labels)
        assert each.shape == labels.shape
        mean = losses.parse(spec)(logits, labels)
        assert mean.isnan() == F.cross_entropy(logits, labels).isnan()
        (found,) = torch.autograd.grad(losses.parse(spec, reduction="sum")(logits, labels), logits)
        assert torch.equal(found, torch.zeros_like(logits))


def test_labels_of_any_whole_type_are_taken():
    z, y = batch()
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(losses.Focal(3)(z, y.to(dtype)), losses.Focal(3)(z, y))


@pytest.mark.parametrize("spec", [*EXAMPLES, "cross-entropy+mmce:2+l2:0.1"])
def test_arrays_lists_and_frames_are_taken_at_the_edge(spec):
    pandas = pytest.importorskip("pandas")
    loss, (z, y) = losses.parse(spec), batch()
    true = loss(z, y)
    for logits, labels in (
        (z.numpy(), y.numpy()),
        (z.tolist(), y.tolist()),
        (pandas.DataFrame(z.numpy()), pandas.Series(y.numpy())),
        (z, y.numpy()),
        (z.numpy(), y),
    ):
        found = loss(logits, labels)
        assert isinstance(found, torch.Tensor)
        close(found, true)
    assert torch.equal(loss([[2, 0, 0]], [0]), loss([[2.0, 0.0, 0.0]], [0]))
    with pytest.raises(InputError, match="logits: not a rectangular array"):
        loss([[1.0], [1.0, 2.0]], [0, 0])


def test_adafocal_refuses_what_no_validation_set_gives():
    z, y = batch(n=30)
    for probs, labels, says in (
        (z.softmax(1), y[:-1], "29 labels for 30 rows"),
        (z, y, "probs: .*apply softmax first"),
        (z[:0], y[:0], "probs: empty"),
    ):
        with pytest.raises(InputError, match=says):
            losses.AdaFocal().observe_validation(probs, labels)
    ours, theirs = losses.AdaFocal(bins=3), losses.AdaFocal(bins=3)
    ours.observe_validation(z.softmax(1), y)
    theirs.observe_validation(z.softmax(1).numpy(), y.tolist())
    assert torch.equal(ours.gammas, theirs.gammas)


@pytest.mark.parametrize(
    ("z", "y", "says"),
    [
        (torch.zeros(4, 3), torch.zeros(3, dtype=torch.long), r"labels: shape \(3,\).* need \(4,\)"),
        (torch.zeros(4, 3), torch.zeros(4), "labels: torch.float32 .*whole numbers"),
        (torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.long), "labels: shape"),
        (torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, dtype=torch.long), "logits: expected floating-point"),
        (torch.zeros(()), torch.zeros((), dtype=torch.long), "logits"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "labels: shape"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), r"need \(2, 4\)"),
    ],
)
def test_wrong_shapes_are_named(z, y, says):
    with pytest.raises(InputError, match=says):
        losses.Focal(3)(z, y)
    with pytest.raises(InputError, match=says):
        (losses.CrossEntropy() + losses.MMCE(2))(z, y)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: losses.Focal(-1.5), "gamma: -1.5 .* at least -1"),
        (lambda: losses.Focal(float("nan")), "gamma: nan"),
        (lambda: losses.Focal(float("inf")), "gamma: inf"),
        (lambda: losses.Focal("3"), "gamma: .*'3'"),
        (lambda: losses.Focal(True), "gamma: .*True"),
        (lambda: losses.ByConfidence((0.2, 5), (1.0, -2)), "gamma: -2"),
        (lambda: losses.ByConfidence((0.2, 5), (0.9, 3)), r"\[0.2, 0.9\] must rise .* to 1"),
        (lambda: losses.ByConfidence((0.5, 5), (0.2, 3), (1.0, 1)), "must rise"),
        (lambda: losses.ByConfidence((0.0, 5), (1.0, 1)), "above 0"),
        (lambda: losses.ByConfidence((float("nan"), 5), (1.0, 1)), "must rise"),
        (lambda: losses.ByConfidence(), "expected pairs"),
        (lambda: losses.ByConfidence(5, 3), "expected pairs"),
        (lambda: losses.Scheduled((0.5, 5)), r"Scheduled: its bounds \[0.5\] .* cover 0 to 1"),
        (lambda: losses.Scheduled((0.5, 5), (1.5, 3)), "cover 0 to 1"),
        (lambda: losses.Scheduled((1.0, float("nan"))), "gamma: nan"),
        (lambda: losses.Scheduled((1.0, 3)).set_progress(1.5), "fraction: 1.5"),
        (lambda: losses.Scheduled((1.0, 3)).set_progress(float("nan")), "fraction: nan"),
        (lambda: losses.Scheduled((1.0, 3)).set_progress("0.5"), "fraction: '0.5'"),
        (lambda: losses.LabelSmoothing(-0.1), "eps: .*-0.1"),
        (lambda: losses.LabelSmoothing(1.0), "eps: .*1.0"),
        (lambda: losses.LabelSmoothing(float("nan")), "eps: .*nan"),
        (lambda: losses.DualFocal(-1), "gamma: .*-1"),
        (lambda: losses.DualFocal(float("nan")), "gamma: .*nan"),
        (lambda: losses.MMCE(-2), "weight: .*-2"),
        (lambda: losses.MMCE(2, form="weighted"), "form: 'weighted' is neither 'paper' nor 'mukhoti2020'"),
        (lambda: losses.EntropyPenalty(float("inf")), "alpha: .*inf"),
        (lambda: losses.LogitNorm(0.5), "p: .*0.5"),
        (lambda: losses.LogitNorm(2, -1), "alpha: .*-1"),
        (lambda: losses.AdaFocal(bins=0), "bins: .*0"),
        (lambda: losses.AdaFocal(bins=2.5), "bins: .*2.5"),
        (lambda: losses.AdaFocal(start=30), "start: 30"),
        (lambda: losses.AdaFocal(rate=float("nan")), "rate: nan"),
        (lambda: losses.Focal(3, reduction="average"), "reduction: 'average' is none of mean, sum, none"),
        (lambda: losses.Focal(3, weight=[1.0, -1.0]), "weight: .*negative"),
        (lambda: losses.Focal(3, weight=[1.0, float("nan")]), "weight: .*finite"),
        (lambda: losses.Focal(3, weight=[[1.0]]), "weight"),
        (lambda: losses.Focal(3, weight=[1.0, 2.0])(*batch()), "weight: 2 weights for 5 classes"),
        (lambda: losses.Focal(3) + losses.Focal(2), "penalty"),
        (lambda: losses.Focal(3) + 2, "penalty"),
    ],
)
def test_bad_settings_are_named(make, says):
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_weights_in_float64_keep_their_digits(eps):
    """and do not widen a loss in float32."""
    z, y = shaped((6,), soft=False)
    weight = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = losses.LabelSmoothing(eps, weight=weight) if eps else losses.CrossEntropy(weight=weight)
    close(ours(z, y), torch.nn.CrossEntropyLoss(weight, label_smoothing=eps)(z, y), rtol=1e-14, atol=0)
    assert ours(z.float(), y).dtype == torch.float32
    with pytest.raises(InputError, match="weight"):
        losses.CrossEntropy(weight="balanced")


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.LabelSmoothing(0.1), losses.Focal(2)])
def test_a_label_that_is_masked_costs_infinity(loss):
    z = torch.tensor([[1.0, -math.inf, 0.0]])
    assert loss(z, torch.tensor([1])) == math.inf
