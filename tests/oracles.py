"""Slow float64 loops written from the formulas, to hold the fast code against."""

from __future__ import annotations

import math

import numpy as np


def top(probs, labels):
    """(confidence, right) of each sample; the first of equal probabilities is the prediction."""
    for row, label in zip(probs, labels, strict=True):
        best = 0
        for k in range(len(row)):
            if row[k] > row[best]:
                best = k
        yield float(row[best]), int(best == label)


def nll(probs, labels):
    return sum(math.inf if row[y] == 0 else -math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(
        labels
    )


def brier(probs, labels):
    return sum((row[k] - (k == y)) ** 2 for row, y in zip(probs, labels, strict=True) for k in range(len(row))) / len(
        labels
    )


def error(probs, labels):
    return sum(1 - right for _, right in top(probs, labels)) / len(labels)


def bin_of(p, bins):
    """Which of ((i-1)/M, i/M] holds p; 0 is in the first."""
    for i in range(bins):
        if p <= (i + 1) / bins or i == bins - 1:
            return i
    raise AssertionError


def gaps(pairs, bins):
    """(number, sum of confidence - outcome) of each bin."""
    number, gap = [0] * bins, [0.0] * bins
    for p, right in pairs:
        number[bin_of(p, bins)] += 1
        gap[bin_of(p, bins)] += p - right
    return number, gap


def ece(probs, labels, bins=15):
    return sum(abs(g) for g in gaps(top(probs, labels), bins)[1]) / len(labels)


def mce(probs, labels, bins=15):
    return max(abs(g) / n for n, g in zip(*gaps(top(probs, labels), bins), strict=True) if n)


def mass_bins(probs, labels, bins=15):
    """Per bin of equal mass, (sum of confidence - outcome, number right); equals are spread pro rata."""
    groups: dict[float, list[float]] = {}
    for p, right in top(probs, labels):
        group = groups.setdefault(p, [0, 0.0, 0])
        group[0] += 1
        group[1] += p - right
        group[2] += right
    n, begin, found = len(labels), 0, [[0.0, 0.0] for _ in range(bins)]
    for p in sorted(groups):
        many, gap, right = groups[p]
        for b in range(bins):
            overlap = max(0.0, min(begin + many, (b + 1) * n / bins) - max(begin, b * n / bins))
            found[b][0] += gap * overlap / many
            found[b][1] += right * overlap / many
        begin += many
    return found


def adaptive_ece(probs, labels, bins=15):
    return sum(abs(gap) for gap, _ in mass_bins(probs, labels, bins)) / len(labels)


def classwise_ece(probs, labels, bins=15):
    classes = len(probs[0])
    total = 0.0
    for k in range(classes):
        pairs = [(row[k], int(y == k)) for row, y in zip(probs, labels, strict=True)]
        total += sum(abs(g) for g in gaps(pairs, bins)[1])
    return total / (classes * len(labels))


def debiased_ece(probs, labels, bins=15):
    n = len(labels)
    each = n / bins
    if each <= 1:
        return 0.0
    square = 0.0
    for gap, right in mass_bins(probs, labels, bins):
        accuracy = right / each
        square += each / n * ((gap / each) ** 2 - accuracy * (1 - accuracy) / (each - 1))
    return math.sqrt(max(0.0, square))


def smooth_ece(probs, labels, points=4000):
    """The fixed point of s -> integral of |sum of residuals under a Gaussian of width s reflected at 0 and 1|."""
    pairs = list(top(probs, labels))
    t = (np.arange(points) + 0.5) / points

    def integral(s):
        curve = np.zeros(points)
        for p, right in pairs:
            for turn in range(-3, 4):
                for x in (p, -p):
                    curve += (p - right) * np.exp(-(((t - x - 2 * turn) / s) ** 2) / 2)
        return np.abs(curve).mean() / (s * math.sqrt(2 * math.pi) * len(pairs))

    low, high = 1e-4, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if integral(middle) > middle else (low, middle)
    return high


def softmax(row):
    largest = max(row)
    powers = [math.exp(z - largest) for z in row]
    return [power / sum(powers) for power in powers]


def focal_map(row, gamma):
    """Psi of softmax(row) from its definition, h(v) = v / phi(v), for moderate logits."""
    v = softmax(row)

    def phi(x):
        return (1 - x) ** gamma - gamma * x * (1 - x) ** (gamma - 1) * math.log(x)

    h = [x / phi(x) for x in v]
    return [x / sum(h) for x in h]


def nll_of_logits(logits, labels, temperature=1.0, gamma=0.0):
    rows = [focal_map([z / temperature for z in row], gamma) for row in logits]
    return nll(rows, labels)
