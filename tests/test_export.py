"""What was calibrated can be served: torch.export and ONNX files give the map's own probabilities."""

import builtins
import importlib.util
import sys

import pytest
import torch
from torch import nn

import trueup
from trueup.calibrators.softplus import SoftplusMap
from trueup.export import Calibrated, export
from trueup.inputs import InputError

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")), reason="no ONNX here"
)


def fitted(name, classes=5, n=400):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, classes, generator=generator) * 4
    y = (z / 2).softmax(1).multinomial(1, generator=generator)[:, 0]
    return trueup.calibrator("focal-map:3" if name == "focal-map" else name).fit(z, y), z


def run_onnx(path, batch):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (given,), (probs,) = session.get_inputs(), session.get_outputs()
    assert probs.name == "probs"
    return given.name, torch.as_tensor(session.run(None, {given.name: batch.numpy()})[0])


@needs_onnx
@pytest.mark.parametrize("name", [*trueup.CALIBRATORS, "softplus+vector"])
def test_onnx_gives_the_maps_probabilities(name, tmp_path):
    made, z = fitted(name)
    path = export(made, tmp_path / "map.onnx")
    for batch in (z, z[:1], z * 10):
        given, probs = run_onnx(path, batch)
        assert given == "logits"
        torch.testing.assert_close(probs, made(batch), rtol=1e-4, atol=1e-6)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.LazyLinear(5))


@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".onnx", marks=needs_onnx)])
def test_a_network_and_its_map_in_one_file(suffix, tmp_path):
    made, _ = fitted("focal-temperature")
    model, images = net(), torch.randn(7, 1, 8, 8)
    model(images)  # shapes, and running means
    model[2].eval()  # a mode of its own, which has to stay
    path = export(made, tmp_path / f"whole{suffix}", model=model, example=images[:2])
    assert model.training
    assert model[1].training
    assert not model[2].training
    model.eval()
    with torch.no_grad():
        wanted = made(model(images))
        if suffix == ".onnx":
            given, probs = run_onnx(path, images)
            assert given == "inputs"
        else:
            probs = torch.export.load(path).module()(images)
            torch.testing.assert_close(Calibrated(model, made)(images), wanted)
    torch.testing.assert_close(probs, wanted, rtol=1e-4, atol=1e-6)


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(sys.modules["trueup.export"], "write_whole", full)  # torch's own writer would end the process
    made = trueup.Temperature().fit(torch.randn(50, 3), torch.arange(50) % 3)
    with pytest.raises(OSError, match="No space left"):
        export(made, tmp_path / "map.pt2")
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_a_file_that_is_refused_takes_no_ones_place(tmp_path, monkeypatch):
    path = tmp_path / "map.onnx"
    path.write_text("what was there")
    monkeypatch.setattr(sys.modules["trueup.export"], "TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match=r"map\.onnx: not written; onnxruntime's probabilities would differ"):
        export(fitted("temperature")[0], path)
    assert [file.name for file in tmp_path.iterdir()] == ["map.onnx"]
    assert path.read_text() == "what was there"


def test_bad_requests_are_told(tmp_path, monkeypatch):
    made, _ = fitted("temperature")
    for path, says in [
        (tmp_path / "map.txt", "ends in .pt2"),
        (tmp_path / "nowhere" / "map.onnx", "does not exist"),
        (tmp_path, "a folder"),
    ]:
        with pytest.raises(InputError, match=says):
            export(made, path)
    with pytest.raises(InputError, match="give both"):
        export(made, tmp_path / "m.pt2", model=net())
    with pytest.raises(InputError, match="one sample"):
        export(made, tmp_path / "m.pt2", model=net(), example=torch.zeros(1, 1, 8, 8))
    with pytest.raises(InputError, match=r"gives \(2, 3\), where the map is for \(N, 5\)"):
        export(made, tmp_path / "m.pt2", model=nn.Linear(4, 3), example=torch.zeros(2, 4))
    real = builtins.__import__

    def without_onnx(name, *rest, **named):
        if name.startswith("onnx"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(InputError, match=r"pip install 'trueup\[onnx\]'"):
        export(made, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
@pytest.mark.parametrize(("slope", "rate", "bend"), [(4e-7, 35.0, 1e6), (0.4, 0.06, 1.6e4), (0.5, 3.0, 0.5)])
@pytest.mark.parametrize("confidence", [1e-4, 1.0, 100.0])
def test_a_bent_softplus_map_keeps_its_digits_in_float32_and_onnx(slope, rate, bend, confidence, tmp_path):
    """Fits where data are few end there: the slope is a small difference of large numbers in the plain formula."""
    made = SoftplusMap(5, slope, rate, bend)
    z = fitted("none")[1] * confidence
    true = made(z.double())
    torch.testing.assert_close(made(z).double(), true, rtol=0, atol=3e-6)
    path = export(made, tmp_path / "map.onnx")
    torch.testing.assert_close(run_onnx(path, z)[1].double(), true, rtol=0, atol=3e-6)
