"""Every block of docs/loops.md runs, a section at a time."""

import math
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "loops.md"


def sections():
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def run(section):
    """One block after another in one namespace, as a reader would paste them."""
    blocks = re.findall(r"^```python\n(.*?)^```", sections()[section], flags=re.MULTILINE | re.DOTALL)
    assert blocks, section
    names = {"__name__": "__main__"}
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, f"{PAGE.name}, {section}", "exec"), names)
    return names


def test_all_sections_are_tested():
    assert list(sections()) == ["Plain PyTorch", "Lightning", "Hugging Face transformers"]


def test_plain(capsys):
    found = run("Plain PyTorch")
    assert float(capsys.readouterr().out) == pytest.approx(found["meter"].compute()["ece"])
    assert found["meter"].n == len(found["val_y"])
    assert not torch.all(found["criterion"].state_dict()["gammas"] == 1)
    assert found["meter"].compute()["error"] < 0.2


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # of the library itself
def test_lightning():
    found = run("Lightning")
    module, trainer = found["module"], found["trainer"]
    assert trainer.current_epoch == 2
    assert any(name.startswith("criterion.") for name in module.state_dict())
    assert float(module.criterion.gamma.gamma) == pytest.approx(3)
    assert module.meter.compute()["ece"] == pytest.approx(float(trainer.callback_metrics["val_ece"]), abs=1e-6)
    assert module.meter.compute()["error"] < 0.5
    for loss in ("adafocal", "cross-entropy+hessian-trace:0.01"):
        other = found["Calibrated"](found["models"].build("mlp", 10, (1, 8, 8)), classes=10, loss=loss)
        before = {name: value.clone() for name, value in other.criterion.state_dict().items()}
        again = found["lightning"].Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            limit_train_batches=3,
        )  # fmt: skip
        again.fit(other, found["train"], found["val"])
        moved = [name for name, value in other.criterion.state_dict().items() if not torch.equal(value, before[name])]
        assert bool(moved) == (loss == "adafocal")


def test_transformers():
    found = run("Hugging Face transformers")
    trainer, criterion = found["trainer"], found["criterion"]
    assert trainer.state.global_step == 6
    # of a net that knows nothing, (2/3)^gamma log 3, with gamma 5 in the first epoch and 3 in the second
    expected = sum((2 / 3) ** gamma * math.log(3) / 2 for gamma in (5, 3))
    (whole,) = [entry["train_loss"] for entry in trainer.state.log_history if "train_loss" in entry]
    assert whole == pytest.approx(expected, rel=0.15)
    assert float(criterion.gamma.gamma) == 3
    logged = [entry for entry in trainer.state.log_history if "eval_ece" in entry]
    assert len(logged) == 3
    assert all(0 <= entry["eval_ece"] <= 1 for entry in logged)
