"""Losses by name, sums of them, and their hooks."""

import pytest
import torch

import trueup
from tests.losses.small import EXAMPLES, batch
from trueup import losses
from trueup.inputs import InputError


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("cross-entropy", "CrossEntropy()"),
        ("focal:3", "Focal(gamma=3)"),
        ("focal:-0.5", "Focal(gamma=-0.5)"),
        ("focal-detached:1", "Focal(gamma=1, detach_weight=True)"),
        ("label-smoothing:0.05", "LabelSmoothing(eps=0.05)"),
        ("dual-focal:5", "DualFocal(gamma=5)"),
        ("adafocal", "AdaFocal(bins=15, rate=1)"),
        ("brier", "Brier()"),
    ],
)
def test_a_spec_is_a_loss(spec, shown):
    assert repr(losses.parse(spec)) == shown
    assert repr(losses.parse(f"  {spec} ")) == shown


def test_every_example_parses_and_every_name_has_one():
    assert all(isinstance(losses.parse(spec), torch.nn.Module) for spec in EXAMPLES)
    for name in [*losses.LOSSES, *losses.PENALTIES]:
        assert any(name in spec for spec in EXAMPLES)


def test_settings_go_to_the_loss():
    loss = losses.parse("focal:3+mmce:2", reduction="sum", ignore_index=7, weight=[1.0, 2.0])
    assert isinstance(loss, losses.Sum)
    assert (loss.reduction, loss.loss.ignore_index) == ("sum", 7)
    assert "reduction='sum', ignore_index=7, weight=..." in repr(loss)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (3, "is not a string"),
        (None, "is not a string"),
        ("list", "^loss: 'list' names no loss; good ones are"),
        ("focl:3", "names no loss 'focl'"),
        ("focal", "focal takes a number, as in focal:3"),
        ("focal:", "focal takes a number"),
        ("focal:three", "'three' is not a number"),
        ("focal:3,5", "focal takes one number"),
        ("focal:3:5", "'3:5' is not a number"),
        ("brier:2", "brier takes no argument"),
        ("brier:", "brier takes no argument"),
        ("mmce:2", "names no loss 'mmce'"),
        ("cross-entropy+", "names no penalty ''"),
        ("cross-entropy+focal:3", "names no penalty 'focal'"),
        ("cross-entropy+mmce", "mmce takes a number"),
        ("cross-entropy+mmce:-1", "weight: .*-1"),
        ("focal:-2", "gamma: -2 .*at least -1"),
        ("focal:nan", "gamma: nan"),
        ("label-smoothing:-0.1", "eps: .*-0.1"),
        ("focal-schedule:5,,2", "'5,,2' is not a number"),
        ("focal-schedule:5,-3,2", "gamma: -3"),
    ],
)
def test_a_bad_spec_is_named(spec, says):
    with pytest.raises(InputError, match=says) as caught:
        losses.parse(spec)
    if "gamma" not in says and "eps" not in says and "weight" not in says:
        assert all(good in str(caught.value) for good in EXAMPLES)
        assert repr(spec) in str(caught.value)


def test_flsd_is_focal_with_the_gamma_of_each_sample():
    z, y = batch(n=200)
    p = z.softmax(1)[torch.arange(200), y]
    each = {g: losses.Focal(g, reduction="none")(z, y) for g in (2, 3, 5)}
    of_53 = torch.where(p < 0.2, each[5], each[3])
    of_532 = torch.where(p < 0.2, each[5], torch.where(p < 0.5, each[3], each[2]))
    torch.testing.assert_close(losses.parse("flsd-53", reduction="none")(z, y), of_53)
    torch.testing.assert_close(losses.parse("flsd-532", reduction="none")(z, y), of_532)
    first = losses.Focal(losses.ByConfidence((0.19, 5), (1.0, 3)), reduction="none")
    torch.testing.assert_close(first(z, y), torch.where(p < 0.19, each[5], each[3]))


def test_a_schedule_moves_at_its_bounds():
    """mukhoti2020: 5 for epochs 0-99, 3 for 100-249, 2 for 250-349."""
    loss, (z, y) = losses.parse("focal-schedule:5,3,2"), batch()
    for epoch in (0, 99, 100, 249, 250, 349):
        loss.set_progress(epoch / 350)
        gamma = 5 if epoch < 100 else 3 if epoch < 250 else 2
        assert float(loss.gamma.gamma) == gamma, epoch
        assert torch.equal(loss(z, y), losses.Focal(gamma)(z, y))
    loss.set_progress(1.0)
    assert float(loss.gamma.gamma) == 2
    even = losses.parse("focal-schedule:4,1")
    for fraction, gamma in ((0, 4), (0.49, 4), (0.5, 1), (1, 1)):
        even.set_progress(fraction)
        assert float(even.gamma.gamma) == gamma


def test_a_schedule_is_saved_with_the_model_and_its_buffer_stays():
    loss = losses.parse("focal-schedule:5,3,2")
    where = loss.gamma.gamma.data_ptr()
    loss.set_progress(0.5)
    assert loss.gamma.gamma.data_ptr() == where  # a captured graph reads this address
    again = losses.parse("focal-schedule:5,3,2")
    again.load_state_dict(loss.state_dict())
    assert float(again.gamma.gamma) == 3


def test_penalties_add_up_in_any_number():
    z, y = batch()
    loss = trueup.Focal(3) + trueup.MMCE(2) + trueup.EntropyPenalty(0.1) + trueup.LogitNorm(1, 0.01)
    parts = [trueup.Focal(3), trueup.MMCE(2), trueup.EntropyPenalty(0.1), trueup.LogitNorm(1, 0.01)]
    torch.testing.assert_close(loss(z, y), sum(part(z, y) for part in parts))
    same = losses.parse("focal:3+mmce:2+entropy:0.1+l1:0.01")
    assert torch.equal(same(z, y), loss(z, y))
    assert repr(same) == repr(loss)


def test_hooks_reach_through_a_sum_and_exist_only_where_a_part_has_them():
    loss, (z, y) = losses.parse("focal-schedule:5,3,2+mmce:2"), batch(n=60)
    loss.set_progress(0.9)
    assert float(loss.loss.gamma.gamma) == 2
    assert not hasattr(loss, "observe_validation")
    assert not hasattr(loss, "penalty")
    assert not hasattr(losses.CrossEntropy() + losses.MMCE(2), "set_progress")
    ada = losses.parse("adafocal+entropy:0.1")
    before = ada.loss.gammas.clone()
    ada.observe_validation(z.softmax(1), y)
    assert not torch.equal(ada.loss.gammas, before)


class Ridge(torch.nn.Module):
    """A penalty of the model, as a hook."""

    def penalty(self, model, inputs, labels):
        return sum(parameter.square().sum() for parameter in model.parameters())


def test_a_penalty_of_the_model_is_left_to_the_training_loop():
    z, y = batch()
    loss = losses.CrossEntropy() + Ridge() + losses.MMCE(1) + Ridge()
    assert torch.equal(loss(z, y), (losses.CrossEntropy() + losses.MMCE(1))(z, y))
    net = torch.nn.Linear(2, 2)
    torch.testing.assert_close(loss.penalty(net, None, None), 2 * Ridge().penalty(net, None, None))


def test_what_is_no_hook_is_no_attribute_of_a_sum():
    with pytest.raises(AttributeError, match="nothing"):
        _ = (losses.CrossEntropy() + losses.MMCE(2)).nothing
