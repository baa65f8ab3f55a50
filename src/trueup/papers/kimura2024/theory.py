"""What can be judged without a network: Figure 1, Lemma 1, both theorems, the PAC-Bayes remark.

The text that we have of the paper names its theorems and says what they are about; their displays are lost. Each is
read as the abstract and the captions have it, derived here, and checked by calculation.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from scipy.special import lambertw
from torch import Tensor

from trueup.focal import bend_at, entropy_lower_bound, loss_at, risk_minimiser, slope_at
from trueup.papers.reproduction import UNTESTED, Finding, Sheet, at_most, verdict

SHOWN_GAMMAS = (0.0, 0.5, 1.0, 2.0, 5.0)
TINY = 1e-12
READ = " (as we read it: the formula is not in our text)"
"""Said with every verdict on a lemma or theorem."""


# ---------------------------------------------------------------------- Figure 1


def loss_and_slope(p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """FL and dFL/dp at probabilities p of the true class."""
    u = torch.log1p(-p) - p.log()
    return loss_at(u, gamma), -slope_at(u, gamma) / (p * (1 - p))  # du/dp = -1 / (p (1 - p))


def figure_1() -> Sheet:
    """Loss and slope in p for several gamma."""
    p = torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64)
    rows = []
    for gamma in SHOWN_GAMMAS:
        loss, slope = loss_and_slope(p, gamma)
        rows.append((f"{gamma:g}", *(f"{a:.4f}, {b:.4f}" for a, b in zip(loss.tolist(), slope.tolist(), strict=True))))
    columns = ("gamma", *(f"p = {value:g}: loss, dloss/dp" for value in p.tolist()))
    return Sheet("Loss and gradient (Figure 1)", columns, tuple(rows))


def caption_of_figure_1() -> list[Finding]:
    """Its three sentences."""
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    plain = loss_and_slope(p, 0.0)
    off = {gamma: float((loss_and_slope(p, gamma)[0] + p.log()).abs().max()) for gamma in (0.0, 1.0)}
    same = Finding(
        "Focal loss coincides with cross-entropy when gamma = 1.", "Figure 1, caption", verdict(off[1.0] < TINY),
        "999 probabilities",
        f"they differ by up to {off[1.0]:.2f} at gamma 1, and by at most {at_most(off[0.0])} at gamma 0",
    )  # fmt: skip
    near = 1 - torch.tensor([1e-2, 1e-4, 1e-6], dtype=torch.float64)
    ends = {gamma: loss_and_slope(near, gamma)[1].abs() for gamma in (0.25, 0.5, 0.75)}
    u = torch.log1p(-near) - near.log()
    slope, bend = slope_at(u, 0.5), bend_at(u, 0.5)
    second = (bend - slope * (2 * near - 1)) / (near * (1 - near)).square()
    goes = all(bool((values[1:] < values[:-1]).all()) and float(values[-1]) < 0.05 for values in ends.values())
    converges = Finding(
        "For gamma between 0 and 1 the gradient does not converge as p goes to 1.", "Figure 1, caption",
        verdict(not goes), "gamma 0.25, 0.5 and 0.75; p = 0.99, 0.9999, 0.999999",
        "dloss/dp at gamma 0.5: " + ", ".join(f"-{value:.2g}" for value in ends[0.5].tolist())
        + ": it goes to 0 as (1 + gamma)(1 - p)^gamma. It is the second derivative that does not: "
        + ", ".join(f"{value:.2g}" for value in second.tolist()),
    )  # fmt: skip
    sure = p > 0.5

    def less(gamma: float) -> bool:
        both = zip(loss_and_slope(p, gamma), plain, strict=True)
        return all(bool((ours[sure].abs() < theirs[sure].abs()).all()) for ours, theirs in both)

    smaller = Finding(
        "For gamma of at least 1, loss and gradient of well-classified samples are smaller than cross-entropy's.",
        "Figure 1, caption", verdict(all(map(less, (1.0, 2.0, 5.0, 10.0)))),
        "gamma 1, 2, 5 and 10; p from 0.5 to 0.999",
        f"at gamma 0.25, 0.5 and 0.75 they are {'too' if all(map(less, (0.25, 0.5, 0.75))) else 'not'}",
    )  # fmt: skip
    return [same, converges, smaller]


# ---------------------------------------------------------------------- Lemma 1


def lemma_1() -> Finding:
    """FL >= CE - gamma H, over random predictions and targets, and where one class has all the mass."""
    generator = torch.Generator().manual_seed(0)
    slack, draws = np.inf, 0
    gammas = (1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    for classes in (2, 3, 10, 100):
        logits = 3 * torch.randn(5000, classes, generator=generator, dtype=torch.float64)
        targets = (4 * torch.randn(5000, classes, generator=generator, dtype=torch.float64)).softmax(1)
        log_p = logits.log_softmax(1)
        for gamma in gammas:
            focal = -(targets * (-torch.expm1(log_p)) ** gamma * log_p).sum(1)
            slack = min(slack, float((focal - entropy_lower_bound(logits, targets, gamma)).min()))
        draws += len(logits)
    # one class against the rest: g h(q) >= (1 - (1-q)^g)(-log q) implies it for every target
    q = torch.linspace(1e-6, 1 - 1e-6, 20_001, dtype=torch.float64)
    entropy = -torch.xlogy(q, q) - torch.xlogy(1 - q, 1 - q)
    binary = min(float((g * entropy + (1 - (1 - q) ** g) * q.log()).min()) for g in np.geomspace(1e-3, 10, 60))
    bernoulli = float(((1 - q) ** 0.5 - (1 - 0.5 * q)).min())
    return Finding(
        "Focal loss is at least cross-entropy less gamma times the entropy, for gamma of at least 0.", "Lemma 1",
        verdict(slack >= -TINY and binary >= -TINY),
        f"{draws // 1000} 000 random predictions and targets of 2 to 100 classes, gamma 0.001 to 10; 20 001 binary",
        f"least slack {slack:.1e}, in the binary form {binary:.1e}. Bernoulli's inequality (1 - q)^gamma >= 1 - gamma "
        f"q, with which it is usually proved, needs gamma of at least 1 (off by {-bernoulli:.2f} at 0.5); the lemma "
        f"does not{READ}",
    )  # fmt: skip


# ---------------------------------------------------------------------- Theorem 1, its corollaries, Maxwell-Boltzmann


def entropy_constrained(posterior: np.ndarray, multiplier: float) -> np.ndarray:
    """The q that minimises CE(u, q) - t H(q) for a posterior u and t > 0.

    Where the derivative is the same for every class, t log q_i - u_i / q_i = const. With x = u_i / (t q_i) that is
    x + log x = c + log(u_i / t), so that q_i = u_i / (t W(e^c u_i / t)), W Lambert's function; c is found from the sum.
    """

    def solution(c: float) -> np.ndarray:
        return posterior / (multiplier * lambertw(np.exp(c) * posterior / multiplier).real)

    c = brentq(lambda c: solution(c).sum() - 1, -50, 300)
    return solution(float(c))  # pyright: ignore[reportArgumentType]


def theorem_1() -> list[Finding]:
    """The entropy-constrained problem has the Maxwell-Boltzmann form; focal loss is another problem."""
    posterior = np.array([0.6, 0.3, 0.1])
    gammas = (0.5, 1.0, 3.0)
    form, best, gaps, nearest = 0.0, True, [], []
    generator = np.random.default_rng(0)
    for gamma in gammas:
        q = entropy_constrained(posterior, gamma)
        energy = -posterior / q  # the derivative of the cross-entropy in q
        boltzmann = np.exp(-(energy - energy.min()) / gamma)
        form = max(form, float(np.abs(boltzmann / boltzmann.sum() - q).max()))
        # of all predictions with at least its entropy none has a smaller cross-entropy
        others = generator.dirichlet(np.ones(3), 50_000)
        allowed = others[_entropy(others) >= _entropy(q)]
        best &= bool((-(posterior * np.log(allowed)).sum(1) >= -(posterior * np.log(q)).sum()).all())
        focal = np.asarray(risk_minimiser(posterior, gamma))
        gaps.append(float(np.abs(focal - q).max()))

        def off(log_t: float, focal: np.ndarray = focal) -> float:
            return float(np.abs(entropy_constrained(posterior, np.exp(log_t)) - focal).max())

        nearest.append(float(minimize_scalar(off, bounds=(-4, 6), method="bounded").fun))  # pyright: ignore
    told = "the posterior (.6, .3, .1), gamma 0.5, 1 and 3"
    return [
        Finding(
            "Cross-entropy under an entropy constraint has a solution of the Maxwell-Boltzmann form exp(-E / gamma).",
            "Theorem 1, corollaries", verdict(form < 1e-9 and best), told,
            "with the energy E_i = -u_i / q_i, the derivative of the cross-entropy, it is off by at most "
            f"{at_most(form)}; none of 50 000 random predictions of at least that entropy has a smaller cross-entropy. "
            "The energy contains q itself: solved for it, q_i = u_i / (gamma W(e^c u_i / gamma)), W Lambert's "
            f"function{READ}",
        ),
        Finding(
            "Minimising focal loss is minimising cross-entropy under an entropy constraint.", "Theorem 1",
            verdict(max(gaps) < 1e-3), told + ": the minimiser of focal loss and of CE - gamma H",
            "they differ by up to " + ", ".join(f"{gap:.3f}" for gap in gaps) + "; with the multiplier that fits best "
            "in place of gamma by " + ", ".join(f"{gap:.4f}" for gap in nearest) + ". CE - gamma H bounds focal loss "
            f"from below and flattens as it does, but has another minimiser{READ}",
        ),
    ]  # fmt: skip


def _entropy(q: np.ndarray) -> np.ndarray:
    return -(q * np.log(q)).sum(-1)


def gibbs() -> list[Finding]:
    """The same over weights: the distribution of least mean loss and most entropy, and the PAC-Bayes remark."""
    generator = torch.Generator().manual_seed(0)
    loss = 3 * torch.rand(500, generator=generator, dtype=torch.float64)
    prior = torch.rand(500, generator=generator, dtype=torch.float64).softmax(0)
    off, worst = 0.0, np.inf
    for gamma in (0.3, 1.0, 3.0):
        rho = (prior.log() - loss / gamma).softmax(0)
        value = _bound(rho, loss, prior, gamma)
        off = max(off, abs(value + gamma * float((prior.log() - loss / gamma).logsumexp(0))))
        for _ in range(200):
            step = torch.randn(500, generator=generator, dtype=torch.float64)
            for size in (1e-3, 0.1, 1.0):
                worst = min(worst, _bound((rho.log() + size * step).softmax(0), loss, prior, gamma) - value)
    form = Finding(
        "Weights drawn for a small loss and a large entropy follow a Maxwell-Boltzmann distribution.",
        "Theorem 1, corollaries", verdict(off < 1e-9 and worst > 0), "500 states with random losses and a random prior",
        f"rho ~ prior exp(-loss / gamma) minimises E loss + gamma KL(rho, prior), which is then -gamma log Z (off "
        f"by at most {at_most(off)}); 1 800 other distributions are all above it. True of any loss: focal loss has no "
        f"part{READ}",
    )  # fmt: skip
    remark = Finding(
        "Low curvature means a small PAC-Bayes bound, hence better calibration.", "PAC-Bayes remark", UNTESTED, "",
        "the same distribution minimises a PAC-Bayes bound, and around a minimum its entropy is -1/2 log det H: "
        "so flat minima do have smaller bounds. The bound is on the risk: logits times any constant have the same "
        "error and another calibration, and constants are not given; there is nothing to test" + READ,
    )  # fmt: skip
    return [form, remark]


def _bound(rho: Tensor, loss: Tensor, prior: Tensor, gamma: float) -> float:
    return float((rho * loss).sum() + gamma * (torch.xlogy(rho, rho) - rho * prior.log()).sum())


# ---------------------------------------------------------------------- Theorem 2


def theorem_2() -> Finding:
    """For one sample and two classes: curvature in the margin, focal loss against cross-entropy."""
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    p, plain = torch.sigmoid(-u), bend_at(u, 0.0)
    told, everywhere = [], True
    for gamma in (0.5, 1.0, 3.0, 5.0):
        own = bend_at(u, gamma)
        above, below = p[own > plain], p[own < 0]
        everywhere &= not len(above)
        told.append(
            f"gamma {gamma:g}: larger for p in ({above.min():.3f}, {above.max():.3f}), negative below {below.max():.3f}"
        )
    return Finding(
        "The largest eigenvalue of the Hessian falls as gamma grows, whatever the weights.", "Theorem 2",
        verdict(everywhere), "the curvature of one sample's loss in its margin, two classes",
        "; ".join(told) + ". It is smaller where the fit is good, and larger where samples are unsure: it can hold of "
        f"trained networks, and not of all weights{READ}",
    )  # fmt: skip


def analysis() -> list[Finding]:
    return [*caption_of_figure_1(), lemma_1(), *theorem_1(), *gibbs(), theorem_2()]
