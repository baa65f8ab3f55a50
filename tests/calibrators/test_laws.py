"""What holds for every calibrator."""

import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import trueup
from tests import cases

SETTINGS = {name: trueup.FocalMap(2.0) if name == "focal-map" else made() for name, made in trueup.CALIBRATORS.items()}
SETTINGS["softplus+vector"] = trueup.Chain(trueup.Softplus(), trueup.Vector())
SETTINGS["auto, keeping the ranking"] = trueup.Auto(keep_ranking=True)
QUICK = {name: made for name, made in SETTINGS.items() if "auto" not in name}
NEVER_WORSE = ("none", "temperature", "focal-temperature", "softplus")
"""Their families contain the identity, or come as close to it as one likes."""


def over_confident(n=1500, classes=5, seed=0, temperature=2.5):
    probs, labels = cases.drawn(n, classes, seed, temperature=temperature)
    return np.log(probs), labels


@pytest.mark.parametrize("name", SETTINGS)
def test_a_map_gives_distributions_in_the_kind_that_went_in(name):
    pandas = pytest.importorskip("pandas")
    logits, labels = over_confident(300)
    made = SETTINGS[name].fit(logits, labels)
    probs = made(logits)
    assert isinstance(probs, np.ndarray)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(1), 1)
    assert (probs > 0).all()
    single = made(torch.from_numpy(logits).float())
    assert isinstance(single, torch.Tensor)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, probs, atol=2e-5)
    assert made(torch.from_numpy(logits).half()).dtype == torch.float32
    frame = made(pandas.DataFrame(logits, columns=list("abcde")))
    assert list(frame.columns) == list("abcde")
    np.testing.assert_allclose(frame.to_numpy(), probs)
    assert isinstance(made(logits.tolist()), list)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_mends_an_over_confident_network(name):
    if name in ("none", "focal-map"):  # the focal map raises confidence
        return
    logits, labels = over_confident(3000)
    test_logits, test_labels = over_confident(3000, seed=1)
    fixed = SETTINGS[name].fit(logits, labels)(test_logits)
    plain = np.exp(test_logits)
    assert trueup.ece(fixed, test_labels) < 0.4 * trueup.ece(plain, test_labels)
    assert trueup.nll(fixed, test_labels) < trueup.nll(plain, test_labels)


@pytest.mark.parametrize("name", SETTINGS)
def test_on_calibrated_data_it_changes_little(name):
    if name == "focal-map":
        return
    logits, labels = over_confident(4000, temperature=1.0)
    probs = SETTINGS[name].fit(logits, labels)(logits)
    tolerance = 0.06 if name in ("histogram", "isotonic") else 0.02
    assert np.abs(probs - np.exp(logits)).mean() < tolerance


@pytest.mark.parametrize("name", NEVER_WORSE)
@given(cases.calibration_sets())
def test_the_fitted_nll_is_never_worse_than_before(name, data):
    report = SETTINGS[name].fit(*data).fit_report
    assert report.after <= report.before + 1e-9


@given(cases.calibration_sets())
def test_richer_maps_are_never_worse_than_temperature_on_their_own_data(data):
    temperature = trueup.Temperature().fit(*data).fit_report.after
    for settings in (trueup.FocalTemperature(), trueup.Softplus()):
        assert settings.fit(*data).fit_report.after <= temperature + 1e-9


@pytest.mark.parametrize("name", QUICK)
@given(cases.calibration_sets())
def test_the_report_tells_the_nll_of_the_map(name, data):
    made = QUICK[name].fit(*data)
    report = made.fit_report
    log_probs = made.log_probs(torch.from_numpy(data[0])).numpy()
    assert report.after == pytest.approx(-log_probs[np.arange(len(data[1])), data[1]].mean(), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", [name for name, made in SETTINGS.items() if made.keeps_ranking])
@given(cases.calibration_sets())
def test_maps_that_keep_the_ranking_keep_every_prediction(name, data):
    logits, labels = data
    probs = SETTINGS[name].fit(logits, labels)(logits)
    largest = probs.max(1)
    assert (probs[np.arange(len(labels)), logits.argmax(1)] >= largest * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", QUICK)
@given(data=cases.calibration_sets(), shift=st.floats(-50, 50))
def test_adding_a_constant_to_a_row_changes_nothing(name, data, shift):
    logits, labels = data
    made = QUICK[name].fit(logits, labels)
    np.testing.assert_allclose(made(logits + shift), made(logits), atol=1e-7)


@pytest.mark.parametrize("name", SETTINGS)
def test_saved_and_loaded_is_the_same(name, tmp_path):
    logits, labels = over_confident(400)
    made = SETTINGS[name].fit(logits, labels)
    made.save(tmp_path / "map.json")
    again = trueup.load_map(tmp_path / "map.json")
    np.testing.assert_array_equal(again(logits), made(logits))
    assert again.fit_report == made.fit_report
    assert json.loads((tmp_path / "map.json").read_text())["format"] == "trueup-map"


@pytest.mark.parametrize("name", QUICK)
def test_a_state_dict_holds_the_whole_map(name, tmp_path):
    logits, labels = over_confident()
    made, other = SETTINGS[name].fit(logits, labels), SETTINGS[name].fit(logits / 3, labels)
    if name not in ("none", "focal-map"):  # nothing is fitted
        assert not np.allclose(made(logits), other(logits), atol=0.01)
    safetensors.torch.save_file(made.state_dict(), tmp_path / "map.safetensors")
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "map.safetensors"))
    np.testing.assert_array_equal(other(logits), made(logits))
    assert other.fit_report == made.fit_report


def test_the_state_of_another_map_is_refused():
    logits, labels = over_confident(300)
    made = trueup.Temperature().fit(logits, labels)
    with pytest.raises(
        trueup.InputError, match="kind 'none' with 5 classes, where this is a map of kind 'temperature'"
    ):
        made.load_state_dict(trueup.CALIBRATORS["none"]().fit(logits, labels).state_dict())
    with pytest.raises(trueup.InputError, match="2 classes, where this is a map of kind 'temperature' with 5"):
        made.load_state_dict(trueup.Temperature().fit(*over_confident(300, 2)).state_dict())


def stated(content):
    return torch.frombuffer(bytearray(content.encode()), dtype=torch.uint8)


@pytest.mark.parametrize("content", ["{}", "nope", "[1]", "[" * 100_000, '{"kind": "linear"}'])
def test_a_damaged_state_is_refused_and_nothing_is_overwritten(content):
    logits, labels = over_confident(300)
    made, other = (SETTINGS["softplus+vector"].fit(z, labels) for z in (logits, logits / 3))
    before = made(logits)
    settings = json.loads(bytes(other.state_dict()["maps.1._extra_state"].tolist()))
    negative = settings | {"values": {"temperature": -2.0}}
    extra = settings | {"values": settings["values"] | {"forward": 1}}
    for bad in (content, *(json.dumps(each) for each in (negative, extra))):
        state = other.state_dict() | {"maps.1._extra_state": stated(bad)}
        with pytest.raises(trueup.InputError, match="state_dict"):
            made.load_state_dict(state)
    for key in ("maps.1.weight", "maps.1._extra_state"):
        with pytest.raises(trueup.InputError, match="state_dict"):
            made.load_state_dict({name: value for name, value in other.state_dict().items() if name != key})
    np.testing.assert_array_equal(made(logits), before)
    with pytest.raises(RuntimeError, match="Missing key"):
        made.load_state_dict({})


@pytest.mark.parametrize(("name", "other"), [("bias-temperature", "vector"), ("isotonic", "histogram")])
def test_a_map_takes_the_tables_of_another_of_its_kind(name, other):
    logits, labels = over_confident(300)
    made, theirs = SETTINGS[name].fit(logits, labels), SETTINGS[other].fit(logits / 3, labels)
    made.load_state_dict(theirs.state_dict())
    np.testing.assert_array_equal(made(logits), theirs(logits))
    assert made.to_dict() == theirs.to_dict()


@pytest.mark.parametrize("name", ["focal-temperature", "bias-temperature", "vector", "matrix", "dirichlet"])
def test_logits_whose_squares_are_no_numbers_are_refused(name):
    logits, labels = over_confident(30)
    logits[3, 1] = -1e200
    with pytest.raises(trueup.InputError, match=r"logits: row 3 spans 2e\+199"):
        SETTINGS[name].fit(logits, labels)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_class_without_labels_is_no_error(name):
    logits, labels = over_confident(400)
    labels = np.where(labels == 2, 0, labels)
    probs = SETTINGS[name].fit(logits, labels)(logits)
    assert np.isfinite(probs).all()
    assert (probs > 0).all()
    one_class = SETTINGS[name].fit(logits, np.zeros_like(labels))(logits)
    assert np.isfinite(one_class).all()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("n", [2, 3, 10])
def test_a_handful_of_samples_is_no_error(name, n):
    logits, labels = over_confident(n, 3)
    probs = SETTINGS[name].fit(logits, labels)(logits)
    np.testing.assert_allclose(probs.sum(1), 1)


@pytest.mark.parametrize("name", SETTINGS)
def test_two_classes_are_enough(name):
    logits, labels = over_confident(500, 2)
    probs = SETTINGS[name].fit(logits, labels)(logits)
    np.testing.assert_allclose(probs.sum(1), 1)
    if name not in ("none", "focal-map"):
        assert trueup.nll(probs, labels) < trueup.nll(np.exp(logits), labels)


@pytest.mark.parametrize("name", [name for name in QUICK if name != "histogram"])  # which is a step function
def test_a_map_has_gradients(name):
    logits, labels = over_confident(200)
    made = QUICK[name].fit(logits, labels)
    z = torch.from_numpy(logits[:5]).requires_grad_()
    made(z)[:, 0].sum().backward()
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().max() > 0


@pytest.mark.parametrize("name", QUICK)
def test_a_map_survives_torch_export_and_a_file(name, tmp_path):
    logits, labels = over_confident(200)
    made = QUICK[name].fit(logits, labels)
    z = torch.from_numpy(logits).float()
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(made, (z,), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "map.pt2")
    again = torch.export.load(tmp_path / "map.pt2").module()
    for rows in (z[:7], z):
        torch.testing.assert_close(again(rows), made(rows))


@pytest.mark.parametrize("name", QUICK)
def test_float32_agrees_with_float64(name):
    logits, labels = over_confident(400)
    made = QUICK[name].fit(logits, labels)
    extreme = np.random.default_rng(0).normal(0, 30, (200, 5))
    low, high = made(extreme.astype(np.float32)), made(extreme.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(low, high, atol=5e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_fitting_is_deterministic(name):
    logits, labels = over_confident(300)
    first, second = (SETTINGS[name].fit(logits, labels)(logits) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_no_unfitted_settings_can_be_called():
    for settings in SETTINGS.values():
        assert not callable(settings)
        with pytest.raises((AttributeError, TypeError)):
            settings.temperature = 3


CHAINS = '{"format": "trueup-map", "version": 1, "kind": "chain", "values": {"maps": ['


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[1]", '{"format": "trueup-map", "version": 2}', "not json", "[" * 100_000, CHAINS * 300 + "]}}" * 300],
)
def test_damaged_maps_are_refused(content, tmp_path):
    (tmp_path / "map.json").write_text(content)
    with pytest.raises(trueup.InputError, match=r"map\.json"):
        trueup.load_map(tmp_path / "map.json")
    with pytest.raises(trueup.InputError, match="no such file"):
        trueup.load_map(tmp_path / "nothing.json")


IMPOSSIBLE = [
    *(("temperature", {"temperature": t}, "temperature") for t in (-2, 0, math.nan, 1e9, True, "2", None)),
    *(("focal-temperature", {"gamma": g}, "gamma") for g in (-1.5, math.nan, math.inf)),
    *(("softplus", {name: -1.0}, name) for name in ("slope", "rate", "bend")),
    ("softplus", {"rate": 0.0}, "rate"),
    ("vector", {"bias": [math.nan, 0, 0, 0, 0]}, "bias"),
    ("vector", {"weight": [[1, 2], [3]]}, "weight"),
    ("vector", {"weight": [1.0, 2.0]}, "weight"),
    ("histogram", {"levels": [[-0.5] * 15] * 5}, "levels"),
    ("histogram", {"knots": [[0.5, 0.4] * 7] * 5}, "knots"),
    ("histogram", {"interpolate": "no"}, "interpolate"),
    ("softplus+vector", {"maps": []}, "maps"),
    ("softplus+vector", {"maps": 3}, "maps"),
]


@pytest.mark.parametrize(("name", "change", "field"), IMPOSSIBLE)
def test_a_map_with_an_impossible_value_is_refused_by_its_name(name, change, field, tmp_path):
    content = SETTINGS[name].fit(*over_confident(200)).to_dict()
    (tmp_path / "map.json").write_text(json.dumps(content | {"values": content["values"] | change}))
    with pytest.raises(trueup.InputError, match=rf"map\.json: .*{field}"):
        trueup.load_map(tmp_path / "map.json")


@pytest.mark.parametrize("change", [
    *({"classes": k} for k in (0, -1, 1, 2.5, "five", None)),
    *({"fit_report": report} for report in (3, "abc", [], {}, {"criterion": 1})),
    *({"values": values} for values in (3, [1], None)), {"kind": []},
])  # fmt: skip
def test_a_map_whose_frame_is_damaged_is_refused(change, tmp_path):
    content = trueup.Temperature().fit(*over_confident(200)).to_dict()
    (tmp_path / "map.json").write_text(json.dumps(content | change))
    with pytest.raises(trueup.InputError, match=rf"map\.json: .*{next(iter(change))}"):
        trueup.load_map(tmp_path / "map.json")


def test_a_map_with_impossible_values_is_refused(tmp_path):
    logits, labels = over_confident(200)
    content = trueup.Vector().fit(logits, labels).to_dict()
    for change in ({"kind": "magic"}, {"values": {"temperature": 1.0}}, {"classes": 7}):
        (tmp_path / "map.json").write_text(json.dumps(content | change))
        with pytest.raises(trueup.InputError):
            trueup.load_map(tmp_path / "map.json")
