"""What holds for every loss of the registry: a new entry is tested with no further edit."""

import copy
import io
import pickle

import pytest
import torch

from tests.losses.small import EXAMPLES, batch, gradient, is_norm, of_a_batch
from trueup import losses
from trueup.inputs import InputError

every_loss = pytest.mark.parametrize("spec", EXAMPLES)
close = torch.testing.assert_close


@every_loss
def test_a_constant_added_to_a_row_changes_nothing(spec):
    if is_norm(spec):
        pytest.skip("the norm of the logits is meant to change")
    loss, (z, y) = losses.parse(spec), batch()
    close(loss(z + torch.arange(7.0)[:, None], y), loss(z, y))
    close(gradient(loss, z, y).sum(1), torch.zeros(7, dtype=torch.float64), atol=1e-14, rtol=0)


@every_loss
def test_the_order_of_samples_and_the_names_of_classes_do_not_matter(spec):
    loss, (z, y) = losses.parse(spec), batch()
    rows, names = torch.randperm(7), torch.randperm(5)
    close(loss(z[rows], y[rows]), loss(z, y))
    close(loss(z[:, names], names.argsort()[y]), loss(z, y))


@every_loss
def test_the_three_reductions_agree(spec):
    z, y = batch(n=8)
    each = losses.parse(spec, reduction="none")(z, y)
    assert each.shape == (8,)
    close(losses.parse(spec, reduction="sum")(z, y), each.sum())
    close(losses.parse(spec)(z, y), each.mean())


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_samples_are_as_if_they_were_not_there(spec, reduction):
    loss, (z, y) = losses.parse(spec, reduction=reduction, ignore_index=3), batch(n=12)
    y = torch.where(torch.arange(12) % 3 == 0, 3, torch.where(y == 3, 1, y))
    kept = y != 3
    close(loss(z, y), losses.parse(spec, reduction=reduction)(z[kept], y[kept]))
    found = gradient(loss, z, y)
    assert found[~kept].abs().max() == 0
    close(found[kept], gradient(losses.parse(spec, reduction=reduction), z[kept], y[kept]))


@every_loss
def test_further_dimensions_are_further_samples(spec):
    z, y = batch(n=24)
    images, labels = z.reshape(2, 3, 4, 5).permute(0, 3, 1, 2), y.reshape(2, 3, 4)
    close(losses.parse(spec)(images, labels), losses.parse(spec)(z, y))
    each = losses.parse(spec, reduction="none")(images, labels)
    close(each, losses.parse(spec, reduction="none")(z, y).reshape(2, 3, 4))
    assert losses.parse(spec, reduction="none")(z[0], y[0]).shape == ()
    close(losses.parse(spec)(z[0], y[0]), losses.parse(spec)(z[:1], y[:1]))


@every_loss
def test_the_gradient_is_that_of_finite_differences(spec):
    loss, (z, y) = losses.parse(spec), batch()
    if "detached" in spec:
        pytest.skip("its gradient is not that of its value, by design")
    assert torch.autograd.gradcheck(lambda x: loss(x, y), z.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: loss(x, y), z)


@every_loss
def test_single_and_double_precision_agree(spec):
    loss, (z, y) = losses.parse(spec), batch(n=40, scale=8)
    z = z.float()
    close(loss(z, y).double(), loss(z.double(), y), rtol=1e-6, atol=1e-7)
    close(gradient(loss, z, y).double(), gradient(loss, z.double(), y), rtol=1e-5, atol=1e-7)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_float32_and_only_rounds_the_gradient(spec, dtype):
    loss, (z, y) = losses.parse(spec), batch(n=40, scale=4, dtype=dtype)
    assert loss(z, y).dtype == torch.float32
    close(loss(z, y), loss(z.float(), y))
    assert gradient(loss, z, y).dtype == dtype
    wide = gradient(loss, z.float(), y)
    # each part of a sum is rounded
    close(gradient(loss, z, y).float(), wide, rtol=2**-7, atol=2**-7 * float(wide.abs().max()) if "+" in spec else 1e-6)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_and_masked_logits_give_finite_losses_and_gradients(spec, dtype):
    loss = losses.parse(spec, reduction="sum")
    rows = [[1e4, -1e4, 0.0, 5.0], [-1e4, 1e4, 0.0, 5.0], [1e4, 1e4, 1e4, 1e4], [0.0] * 4, [800.0, -800.0, 0.0, 3.0]]
    rows += [[1.0, -torch.inf, 0.0, 2.0], [50.0, -torch.inf, -torch.inf, 0.0], [0.0, *[-torch.inf] * 3]]
    rows += [[0.0, 1.0, *[-torch.inf] * 2], [-1e4, 1e4, *[-torch.inf] * 2], [3e4, *[-torch.inf] * 3]]
    z = torch.tensor(rows, dtype=dtype, requires_grad=True)
    for y in (torch.zeros(len(rows), dtype=torch.long), z.detach().argmax(1)):
        value = loss(z, y)
        assert torch.isfinite(value)
        (first,) = torch.autograd.grad(value, z, create_graph=True)
        assert torch.isfinite(first).all()
        (second,) = torch.autograd.grad((first * first).sum(), z, allow_unused=True)
        assert second is None or torch.isfinite(second).all()
        assert first[z == -torch.inf].abs().max() == 0


@every_loss
def test_a_masked_class_is_as_if_it_were_not_there(spec):
    loss, (z, y) = losses.parse(spec), batch()
    masked = torch.cat([z, torch.full((7, 2), -torch.inf, dtype=z.dtype)], 1)
    close(loss(masked, y), loss(z, y))
    close(gradient(loss, masked, y)[:, :5], gradient(loss, z, y))


@every_loss
@pytest.mark.parametrize("bad", [-1, 5, 99])
def test_a_label_out_of_range_is_an_input_error_that_names_the_row(spec, bad):
    loss, (z, y) = losses.parse(spec), batch()
    y[4] = bad
    with pytest.raises(InputError, match=f"labels: row 4 is {bad}, outside 0 to 4"):
        loss(z, y)


@every_loss
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["copy", "pickle"]
)
def test_copies_give_the_same_and_go_their_own_way(spec, copied):
    loss, (z, y) = losses.parse(spec, weight=[1.0, 2, 3, 4, 5]), batch()
    twin = copied(loss)
    assert torch.equal(twin(z, y), loss(z, y))
    assert repr(twin) == repr(loss)
    for mine, theirs in zip(loss.buffers(), twin.buffers(), strict=True):
        assert mine.data_ptr() != theirs.data_ptr()


@every_loss
def test_state_comes_back_from_a_file(spec):
    loss, (z, y) = losses.parse(spec), batch(n=60)
    for part in (loss, getattr(loss, "loss", loss)):
        if hasattr(part, "set_progress"):
            part.set_progress(0.5)
        if hasattr(part, "observe_validation"):
            part.observe_validation(z.softmax(1), y)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    again = losses.parse(spec)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again(z, y), loss(z, y))


@every_loss
def test_a_step_down_the_gradient_lowers_it(spec):
    loss, (z, y) = losses.parse(spec), batch(n=30)
    if "detached" in spec:
        pytest.skip("its gradient is not that of its value, by design")
    assert loss(z - 1e-3 * gradient(loss, z, y), y) < loss(z, y)


@every_loss
def test_a_penalty_alone_and_no_gradient_when_none_is_wanted(spec):
    loss, (z, y) = losses.parse(spec), batch()
    with torch.no_grad():
        quiet = loss(z.requires_grad_(), y)
    assert not quiet.requires_grad
    close(quiet, loss(z, y).detach())
    if isinstance(loss, losses.Sum):
        parts = [loss.loss, *(part for part in loss.penalties if isinstance(part, losses.Penalty))]
        close(sum(part(z, y) for part in parts), loss(z, y))


@every_loss
def test_a_sample_does_not_see_the_others(spec):
    if of_a_batch(spec):
        pytest.skip("a measure of the batch")
    loss, (z, y) = losses.parse(spec, reduction="none"), batch()
    close(loss(z, y), torch.stack([loss(z[i], y[i]) for i in range(7)]))
