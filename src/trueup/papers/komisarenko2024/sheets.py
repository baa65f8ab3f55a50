"""The tables, and the counts that the verdicts are read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from trueup.papers.komisarenko2024.gathering import Study
from trueup.papers.komisarenko2024.line import GAMMAS, limit_slopes
from trueup.papers.komisarenko2024.networks import PRESUMED
from trueup.papers.komisarenko2024.rivals import NAMES, SIZES
from trueup.papers.reproduction import Sheet

Entry = dict[str, Any]
TITLES = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "adaptive_ece": "adaptive ECE", "smooth_ece": "smooth ECE"}
SCALES = {"nll": 1000, "brier": 1000, "ece": 100, "adaptive_ece": 100, "smooth_ece": 100}
"""NLL and Brier in thousandths, errors of calibration in points."""
CRITERIA = {"nll": "NLL", "ece": "ECE", "adaptive_ece": "adaptive ECE (the paper's)"}
JUDGED = ("nll", "ece", "adaptive_ece", "smooth_ece", "brier")


@dataclass(frozen=True)
class Count:
    """How focal temperature scaling does against temperature scaling over some networks."""

    networks: int
    lower: int
    clearly_lower: int
    """Those whose interval is below 0."""
    clearly_higher: int
    same: int
    """Both maps are one."""
    mean: float
    low: float
    high: float
    """The means of the networks' own ends: an interval that holds whatever images they share."""

    def text(self, scale: float) -> str:
        return f"{scale * self.mean:+.2f} [{scale * self.low:+.2f}, {scale * self.high:+.2f}]"


def counted(entries: list[Entry], criterion: str, metric: str) -> Count:
    values = np.array([entry["criteria"][criterion]["difference"][metric] for entry in entries])
    value, low, high = values.T
    counts = (int(found.sum()) for found in (value < 0, high < 0, low > 0, value == 0))
    return Count(len(values), *counts, *values.mean(0).tolist())


def title(entry: Entry) -> str:
    data = {"cifar10": "C10", "cifar100": "C100", "fashionmnist": "Fashion"}.get(entry["data"], entry["data"])
    whose = "" if entry["ours"] else f" ({entry['name'].removesuffix('_cv').rpartition('_')[2]})"
    model = "" if entry["model"] == PRESUMED else f" {entry['model']}"
    return f"{data}{model}{whose}" + (_told_apart(entry) if entry["ours"] else "")


def named(entry: Entry) -> str:
    """The same with the training loss, where it is known."""
    return title(entry) if entry["loss"] == PRESUMED else f"{title(entry)}, {entry['loss']}"


def _told_apart(entry: Entry) -> str:
    """What a run's name says beside data, model and loss, in short: epochs, lr, how the batch is reduced and its
    gradient clipped, and seed."""
    said = (("epochs-", "{} epochs"), ("lr-", "lr {}"), ("reduction-", "{}"), ("clip-", "clip {}"), ("seed", "seed {}"))
    parts = entry["name"].split("_")[3:]
    told = [form.format(part.removeprefix(start)) for part in parts for start, form in said if part.startswith(start)]
    return f", {' '.join(told)}" if told else ""


def run_named(name: str, recipe: Mapping[str, Any]) -> str:
    """The same of a run that is known by its recipe."""
    return named({**recipe, "name": name, "ours": True})


def interval(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    value, low, high = (scale * each for each in values)
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


# ---------------------------------------------------------------------- focal temperature against temperature


def networks_sheet(study: Study) -> Sheet:
    rows = []
    for entry in study.networks:
        of = entry["criteria"]["nll"]
        focal, difference = of["focal-temperature"], of["difference"]
        rows.append((
            title(entry), entry["loss"], f"{of['temperature']['temperature']:.2f}",
            f"{focal['temperature']:.2f}, {focal['gamma']:+.2f}", f"{of['temperature']['test']['nll']:.4f}",
            *(interval(difference[metric], SCALES[metric]) for metric in ("nll", "ece", "adaptive_ece")),
            interval(entry["criteria"]["adaptive_ece"]["difference"]["adaptive_ece"], 100),
        ))  # fmt: skip
    columns = ("network", "training loss", "T", "T, γ", "NLL after T", "NLL, 10⁻³", "ECE, points",
               "adaptive ECE, points", "by adaptive ECE: adaptive ECE")  # fmt: skip
    note = (
        "Focal temperature scaling less temperature scaling on test, both fitted on val by NLL; in the last column "
        "by adaptive ECE on the paper's grid. Below 0 the focal map helps. 95 % intervals, the same rows resampled "
        "for both."
    )
    return Sheet("Each network", columns, tuple(rows), note)


def criteria_sheet(study: Study) -> Sheet:
    rows = []
    for criterion, name in CRITERIA.items():
        for metric in JUDGED:
            found = counted(study.networks, criterion, metric)
            rows.append((
                name, TITLES[metric], f"{found.lower} of {found.networks}", str(found.clearly_lower),
                str(found.clearly_higher), str(found.same), found.text(SCALES[metric]),
            ))  # fmt: skip
    columns = ("fitted by", "judged by", "lower on", "clearly lower", "clearly higher", "the same map", "mean change")
    note = (
        "Focal temperature less temperature, on test. Clearly: the network's own 95 % interval does not hold 0. Mean "
        "change: of NLL and Brier in thousandths, of the others in points; its interval is the mean of the networks' "
        "own ends, which holds although many networks share their test images."
    )
    return Sheet("Where it helps: by criterion", columns, tuple(rows), note)


def losses_sheet(study: Study) -> Sheet:
    rows = []
    for loss in sorted({entry["loss"] for entry in study.networks}):
        some = [entry for entry in study.networks if entry["loss"] == loss]
        gammas = [entry["criteria"]["nll"]["focal-temperature"]["gamma"] for entry in some]
        cells = []
        for criterion, metric in (("nll", "nll"), ("nll", "ece"), ("adaptive_ece", "adaptive_ece")):
            found = counted(some, criterion, metric)
            cells += [f"{found.lower} of {found.networks}", found.text(SCALES[metric])]
        rows.append((loss, f"{np.mean(gammas):+.2f}", *cells))
    columns = ("training loss", "mean γ by NLL", "NLL lower on", "NLL, 10⁻³", "ECE lower on", "points",
               "adaptive ECE by itself: lower on", "points")  # fmt: skip
    return Sheet("Where it helps: by training loss", columns, tuple(rows), "As in the table before.")


# ---------------------------------------------------------------------- question 1


def bounds_sheet(study: Study) -> Sheet:
    rows = []
    for each in study.bounds:
        if each.gamma in (0.25, 1.0, 3.0, 5.0, 10.0):
            rows.append((
                str(each.classes), f"{each.gamma:g}", f"{each.low:.4f}", f"{each.found_low:.4f}",
                f"{each.sampled_low:.4f} to {each.sampled_high:.4f}", f"{each.found_high:.4f}", f"{each.high:.4f}",
                f"{each.theorem:.4f}",
            ))  # fmt: skip
    columns = ("K", "γ", "1/(1+γ)", "lowest found", "40 000/K draws", "highest found", "highest, derived",
               "theorem for K = 2")  # fmt: skip
    note = (
        "The temperature that gives the most probable class what the focal map gives it. Found: by descent over the "
        "simplex; derived: docs/theory.md, section 6. Where the derived one is 1 it is approached, slowly, as "
        "classes vanish beside a tie at the top; a descent stops at about 1e-10. Draws: flat Dirichlet, all too "
        "narrow."
    )
    return Sheet("The temperatures that the map acts like", columns, tuple(rows), note)


# ---------------------------------------------------------------------- question 2


def line_sheet(study: Study) -> Sheet:
    rows = []
    for entry in study.networks:
        line, small = entry["line"], limit_slopes(entry["classes"])[0]
        zero = line["temperatures"][GAMMAS.index(0.0)]
        error = 1.96 * line["slope_error"]
        one = line["one_parameter"]
        rows.append((
            title(entry), entry["loss"],
            f"{line['intercept']:.2f}",
            f"{line['slope']:.3f} [{line['slope'] - error:.3f}, {line['slope'] + error:.3f}]",
            f"{100 * line['worst']:.1f}", f"{line['tangent']:.3f}", f"{line['predicted']:.3f}",
            f"{small * zero:.2f} to {zero:.2f}",
            f"{line['temperatures'][-1] / (line['intercept'] + 5 * line['slope']):.2f}",
            interval(one["less_two"], 1000), interval(one["ece_less_two"], 100),
        ))  # fmt: skip
    columns = ("network", "training loss", "T at 0", "slope", "off the line, %", "slope at 0", "predicted",
               "limits", "T at γ = 5 over the line", "1 parameter less 2: NLL, 10⁻³", "ECE, points")  # fmt: skip
    note = (
        "The best T by NLL on val for γ from -0.75 to 1, and the line through them; 95 % interval over the samples. "
        "Predicted: from the network's own probabilities, without labels. Limits: T times the slope of samples of no "
        "margin and of large margin. Last: γ alone is searched along T (1 + s γ), s being predicted, against both; "
        "on test."
    )
    return Sheet("The line of γ and T", columns, tuple(rows), note)


def lines_by_loss_sheet(study: Study) -> Sheet:
    rows = []
    for loss in sorted({entry["loss"] for entry in study.networks}):
        lines = [entry["line"] for entry in study.networks if entry["loss"] == loss]
        relative = np.array([line["slope"] / line["intercept"] for line in lines])
        ratio = np.array([line["tangent"] / line["predicted"] for line in lines])
        one = np.mean([line["one_parameter"]["less_two"] for line in lines], axis=0).tolist()
        rows.append((
            loss, str(len(lines)), f"{np.mean([line['intercept'] for line in lines]):.2f}", _student(relative, ".3f"),
            f"{relative.min():.3f} to {relative.max():.3f}", f"{ratio.mean():.2f}", interval(one, 1000),
        ))  # fmt: skip
    columns = ("training loss", "networks", "T at 0", "slope over T at 0", "from, to", "measured over predicted",
               "1 parameter less 2: NLL, 10⁻³")  # fmt: skip
    note = (
        "Means over the networks, with Student's interval where there are several. Networks of one loss differ as much "
        "as losses do: it is the data, and how well a network fits them, that set the slope."
    )
    return Sheet("The line by training loss", columns, tuple(rows), note)


# ---------------------------------------------------------------------- question 3


def rivals_sheet(study: Study) -> Sheet:
    rows = []
    for size in SIZES:
        table = {name: by_network(study.networks, size, name) for name in NAMES}
        for name in NAMES:
            shared = sorted(set(table[name]) & set(table["temperature"]))
            if not shared:
                continue
            means = {
                metric: np.mean([table[name][each][metric] for each in shared]) for metric in ("ece", "smooth_ece")
            }
            nll = [table[name][each]["nll"] for each in shared]
            less = [table[name][each]["ece"] - table["temperature"][each]["ece"] for each in shared]
            wins = sum(table[name][each]["nll"] < table["temperature"][each]["nll"] for each in shared)
            accuracy = [table["none"][each]["error"] - table[name][each]["error"] for each in shared]
            rows.append((
                str(size), name, f"{np.mean(nll):.4f}", f"{np.median(nll):.4f}", f"{100 * means['ece']:.2f}",
                f"{100 * means['smooth_ece']:.2f}", _student(100 * np.array(less)),
                f"{wins} of {len(shared)}" if name != "temperature" else "-",
                f"{100 * np.mean(accuracy):+.2f}", f"{100 * np.min(accuracy):+.2f}",
            ))  # fmt: skip
    columns = ("samples", "calibrator", "NLL", "its median", "ECE %", "smooth ECE %", "ECE less temperature's, points",
               "NLL below temperature's", "accuracy, points", "at worst")  # fmt: skip
    few = sorted({f"{e['size']} for {entry['classes']} classes" for entry in study.networks
                  for e in entry["rivals"] if e["few"]})  # fmt: skip
    note = (
        "Fitted on so many samples of val, judged on test; means over the networks, with Student's interval over them."
    )
    if any(float(row[2]) > 100 * float(row[3]) for row in rows):
        note += (
            " Where all of a few samples are right the NLL knows no bound for T, and one error on test makes a mean of "
            "thousands: the median tells more."
        )
    short = Counter(e["calibrator"] for entry in study.networks for e in entry["rivals"] if not e["converged"])
    if short:
        told = ", ".join(f"{name} in {count} cases" for name, count in short.most_common())
        note += f" A fit ended before its solver was sure of the optimum: {told} of a network and a size."
    if few:
        note += (
            f" Fewer samples than classes ({', '.join(few)}): calibrators with parameters for each class are left out."
        )
    return Sheet("Among the other calibrators", columns, tuple(rows), note)


def by_network(entries: list[Entry], size: int, name: str) -> dict[str, Entry]:
    """Network -> the rival's figures at that size; without those whose NLL is not finite."""
    return {
        entry["name"]: each
        for entry in entries
        for each in entry["rivals"]
        if (each["size"], each["calibrator"]) == (size, name) and each["nll"] is not None
    }


def _student(values: np.ndarray, form: str = "+.2f") -> str:
    mean = values.mean()
    if len(values) < 2 or not values.any():
        return f"{mean:{form}}"
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    return f"{mean:{form}} [{mean - half:{form}}, {mean + half:{form}}]"


# ---------------------------------------------------------------------- question 4 and shift


def histories_sheet(study: Study) -> Sheet:
    found = {entry["name"]: entry for entry in study.networks}
    rows = []
    for name, history in sorted(
        study.histories.items(), key=lambda item: (item[1]["model"], item[1]["gamma"], item[0])
    ):
        train, test = (history["epochs"][part][-1] for part in ("train", "test"))
        entry = found.get(name)
        if entry is None:
            continue
        psi = entry["psi"]
        rows.append((
            named(entry), f"{history['gamma']:g}", f"{100 * train['accuracy']:.2f}",
            f"{100 * train['true_probability']:.2f}", f"{100 * train['ece']:.2f}", f"{100 * test['accuracy']:.2f}",
            f"{100 * test['true_probability']:.2f}", interval(entry["overconfidence"], 100),
            interval(psi["overconfidence"], 100) if psi else "-",
            f"{100 * entry['before']['ece']:.2f} → {100 * psi['test']['ece']:.2f}" if psi else "-",
        ))  # fmt: skip
    columns = ("run", "γ", "train: accuracy", "p of the label", "ECE", "test: accuracy", "p of the label",
               "over-confidence as trained", "after the map", "ECE as trained → after the map")  # fmt: skip
    note = (
        "In %, after the last epoch; over-confidence is mean confidence less accuracy on test, in points. Where "
        "train accuracy is near 100 %, its ECE is what confidence lacks. The map is that of the training γ."
    )
    return Sheet("Train and test against γ", columns, tuple(rows), note)


def weights_sheet(study: Study) -> Sheet | None:
    rows = []
    for run in sorted(study.shift, key=lambda run: (run["recipe"]["model"], run["gamma"] or 0.0, run["name"])):
        cells = []
        for part in ("train", "test"):
            of = run["confidence"][part]
            cells += [f"{100 * of['accuracy']:.2f}", f"{100 * of['before']:.2f}", f"{100 * of['after']:.2f}"]
        rows.append((run_named(run["name"], run["recipe"]), f"{run['gamma'] or 0:g}", *cells))
    if not rows:
        return None
    columns = ("run", "γ", "train: accuracy", "confidence", "after the map", "test: accuracy", "confidence",
               "after the map")  # fmt: skip
    return Sheet("Confidence on the training samples, before and after the map", columns, tuple(rows), "In %.")


def shift_sheet(study: Study) -> Sheet | None:
    """Means over the severities and over all corruptions."""
    rows = []
    for run in study.shift:
        kinds = sorted({cell["kind"] for cell in run["cells"]}, key=lambda kind: (kind != "clean", kind))
        for kind in kinds:
            cells = [cell for cell in run["cells"] if cell["kind"] == kind]
            ece = {name: np.mean([cell["maps"][name]["ece"] for cell in cells]) for name in cells[0]["maps"]}
            difference = {
                metric: np.mean([cell["difference"][metric] for cell in cells], axis=0).tolist()
                for metric in ("nll", "ece")
            }
            clear = [sum(cell["difference"]["ece"][i] * sign > 0 for cell in cells) for i, sign in ((2, -1), (1, 1))]
            rows.append((
                run_named(run["name"], run["recipe"]) if kind == "clean" else "", kind,
                f"{100 * np.mean([cell['error'] for cell in cells]):.1f}",
                *(f"{100 * value:.2f}" for value in ece.values()), interval(difference["nll"], 1000),
                interval(difference["ece"], 100), f"{clear[0]}, {clear[1]} of {len(cells)}",
            ))  # fmt: skip
    if not rows:
        return None
    names = list(study.shift[0]["cells"][0]["maps"])
    columns = ("run", "images", "error", *(f"ECE, {name}" for name in names), "focal T less T: NLL, 10⁻³",
               "ECE, points", "ECE clearly lower, higher")  # fmt: skip
    note = (
        "In %, means over five severities; maps fitted on clean val. Intervals: the means of the severities' own ends."
    )
    return Sheet("Corrupted test images", columns, tuple(rows), note)
