"""What runs on the GPU: the programs of ``trueup.losses.kernel``. Imported only where a GPU is used, or their test.

A program takes a row, or a part of a long one, in tiles of (R, C). Every column of the tile keeps a running maximum and
sum of its own, so that the threads meet once a row and not once a tile. The first reading comes from memory; the
second, backwards, mostly from the cache. In place or not, the whole row is read before any of it is written.

The programs of a long row meet between the two readings: each leaves its sum where the others find it, and waits for
theirs. They are neighbours, and a GPU starts programs in their order, so that those waited for are running or done.

Tried on an H200 and slower: rows or their parts held in registers between the readings, packed in pairs or not; two
programs to a row of 32 768 classes, four to one of 131 072; no running maximum but that of some classes; fewer programs
than rows.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
THERE = tl.constexpr(1 << 31)
"""In what a program leaves for the others, the sign of its sum, which has none, says that it is there."""
WHOLE, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Both readings in one launch, or one of them: programs that run one after the other cannot wait for each other."""


@triton.jit
def _tile(row, columns, K, EVEN: tl.constexpr, KEEP: tl.constexpr):
    """One tile of a row in float32, -inf behind its end; it should stay in the cache where it is needed again."""
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    if EVEN:
        x = tl.load(row + columns, eviction_policy=policy)
    else:
        x = tl.load(row + columns, mask=columns < K, other=-float("inf"), eviction_policy=policy)
    return x.to(tl.float32)


@triton.jit
def _mass(
    row, label, K, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """(top, mass): the largest logit and the sum of exp(logit - top), over the other classes if ``MASK``.

    Half precision has few digits, so that one multiply-add may take the place of a subtraction and a multiplication.
    """
    tile = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tops = tl.full((C,), -1e38, tl.float32)  # times log2(e) it is still a number
    sums = tl.zeros((C,), tl.float32)
    for i in tl.range(tl.cdiv(K, R * C), num_stages=STAGES):
        columns = i * (R * C) + tile
        x = _tile(row, columns, K, EVEN, True)
        if MASK:
            x = tl.where(columns == label, -float("inf"), x)
        higher = tl.maximum(tops, tl.max(x, 0))
        sums *= tl.exp(tops - higher)
        if WIDE:
            sums += tl.sum(tl.exp(x - higher[None, :]), 0)
        else:
            sums += tl.sum(tl.exp2(x * LOG2E - (higher * LOG2E)[None, :]), 0)
        tops = higher
    top = tl.max(tops, 0)
    return top, tl.sum(sums * tl.exp(tops - top), 0)


@triton.jit
def _others_mass(
    row, label, own, K, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """(top, mass) over the other classes; ``label`` may be none of these.

    In half precision the label's own share is taken off again, unless it is so much of the whole that too few digits
    would be left.
    """
    if WIDE:
        top, mass = _mass(row, label, K, R, C, STAGES, WIDE, EVEN, True)
    else:
        top, mass = _mass(row, label, K, R, C, STAGES, WIDE, EVEN, False)
        if (label >= 0) & (label < K):
            mine = tl.exp(own - top)
            if mine > 0.99 * mass:
                top, mass = _mass(row, label, K, R, C, STAGES, WIDE, EVEN, True)
            else:
                mass -= mine
    return top, mass


@triton.jit
def _leave(place, top, mass):
    bits = top.to(tl.int32, bitcast=True).to(tl.int64) << 32 | mass.to(tl.int32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(place, bits | THERE)


@triton.jit
def _gather(places, PARTS: tl.constexpr):
    """(top, mass) of a whole row, once all of its programs have left theirs."""
    places += tl.arange(0, PARTS)
    found = tl.load(places, volatile=True)
    while tl.min(found & THERE, 0) == 0:
        found = tl.load(places, volatile=True)
    tops = (found >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    masses = (found & (THERE - 1)).to(tl.int32).to(tl.float32, bitcast=True)
    top = tl.max(tops, 0)
    return top, tl.sum(masses * tl.exp(tops - top), 0)


@triton.jit
def _log1p(x):
    """For x in [0, 1], exact also where 1 + x rounds to 1."""
    w = 1 + x
    return tl.where(w == 1, x, tl.log(w) * (x / (w - 1)))


@triton.jit
def _value_and_slope(u, bounds, gammas, STEPS: tl.constexpr, DETACH: tl.constexpr):
    """Focal loss of u and its derivative: ``trueup.focal.loss_at`` and ``slope_at``."""
    e = tl.exp(-tl.abs(u))
    small, large, tail = e / (1 + e), 1 / (1 + e), _log1p(e)
    near = u < 0
    p, q = tl.where(near, large, small), tl.where(near, small, large)
    log_q, c = tl.minimum(u, 0) - tail, tl.maximum(u, 0) + tail
    gamma = tl.load(gammas + STEPS - 1).to(u.dtype)
    for step in tl.static_range(STEPS - 2, -1, -1):
        gamma = tl.where(p < tl.load(bounds + step).to(u.dtype), tl.load(gammas + step).to(u.dtype), gamma)
    # 1 - r: by the series of atanh where p is near 1, as in trueup.focal.loss_of_r
    t = tl.where(near, q / (2 - q), 0.3)
    square = t * t
    series = square / 19 + 1.0 / 17
    for i in tl.static_range(7):
        series = series * square + 1.0 / (15 - 2 * i)
    inside = tl.where(t < 0.1, series, (c / (2 * t) - 1) / square)
    gap = tl.where(near, q * (1 + t) * (1 - t * (1 - t) * inside) / 2, 1 - p * c / q)
    power = tl.exp((gamma + 1) * log_q)
    value = power * tl.where(near, (1 - gap) / p, c / q)
    slope = power if DETACH else power * ((1 + gamma) - gamma * gap)
    return value, slope


@triton.jit
def focal_rows(
    logits,
    grad,
    labels,
    losses,
    bounds,
    gammas,
    weights,
    divisor,
    meeting,
    logits_stride,
    grad_stride,
    K,
    ignore_index,
    STEPS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DIVIDED: tl.constexpr,
    DETACH: tl.constexpr,
    WIDE: tl.constexpr,
    EVEN: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    PHASE: tl.constexpr,
):
    at = (tl.program_id(0) // PARTS).to(tl.int64)
    row, out = logits + at * logits_stride, grad + at * grad_stride
    label = tl.load(labels + at)
    used = label != ignore_index
    label = tl.where(used, label, 0).to(tl.int32)  # compared with every column
    own = tl.load(row + label).to(tl.float32)
    weight = tl.load(weights + label) if WEIGHTED else 1.0

    part = tl.program_id(0) % PARTS
    if PARTS > 1:
        each = tl.cdiv(tl.cdiv(K, R * C), PARTS) * (R * C)
        row, out = row + part * each, out + part * each
        label -= part * each
        K = tl.minimum(K - part * each, each)
        if PHASE != SECOND:
            top, mass = _others_mass(row, label, own, K, R, C, STAGES, WIDE, EVEN)
            _leave(meeting + tl.program_id(0), top, mass)
        if PHASE == FIRST:
            return
        top, mass = _gather(meeting + at * PARTS, PARTS)
    else:
        top, mass = _others_mass(row, label, own, K, R, C, STAGES, WIDE, EVEN)
    if WIDE:
        u = (top.to(tl.float64) - own.to(tl.float64)) + tl.log(tl.maximum(mass, 1e-37).to(tl.float64))
    else:
        u = (top - own) + tl.log(tl.maximum(mass, 1e-37))
    u = tl.where(mass > 0, tl.maximum(u, -1e30), -1e30)
    top = tl.where(mass > 0, top, 0.0)  # or, where all others are masked, -inf would meet inf below
    value, slope = _value_and_slope(u, bounds, gammas, STEPS, DETACH)
    factor = tl.where(used, weight, 0.0)
    if DIVIDED:
        factor /= tl.load(divisor).to(tl.float32)
    if part == 0:
        tl.store(losses + at, tl.where(used, (value * factor).to(tl.float32), 0.0))
    at_label = (slope * factor).to(tl.float32)
    spread = (slope * factor / tl.maximum(mass, 1e-37)).to(tl.float32)

    tile = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tiles = tl.cdiv(K, R * C)
    shift = tl.log2(spread) - top * LOG2E
    for i in tl.range(tiles, num_stages=STAGES):
        columns = (tiles - 1 - i) * (R * C) + tile
        x = _tile(row, columns, K, EVEN, False)
        slopes = spread * tl.exp(x - top) if WIDE else tl.exp2(x * LOG2E + shift)
        if EVEN:
            tl.store(out + columns, slopes.to(grad.dtype.element_ty), eviction_policy="evict_first")
        else:
            tl.store(out + columns, slopes.to(grad.dtype.element_ty), mask=columns < K, eviction_policy="evict_first")
    if (label >= 0) & (label < K):
        tl.debug_barrier()  # the label's entry comes last
        tl.store(out + label, (-at_label).to(grad.dtype.element_ty))


@triton.jit
def survey(labels, used, meeting, N, K, ignore_index, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """How many labels are not ``ignore_index``; those have to be below K, or the device asserts it. Clears ``meeting``.

    By one program: labels are few beside logits, and a launch is dear. The assertion is here because a program that can
    assert is a slower one.
    """
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, N, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        label = tl.load(labels + rows, mask=rows < N, other=0)
        counts = (rows < N) & (label != ignore_index)
        tl.device_assert(~counts | ((label >= 0) & (label < K)), "label out of range")
        found += counts.to(tl.int32)
        if PARTS > 1:
            for part in tl.static_range(PARTS):
                tl.store(meeting + part * N + rows, tl.zeros((BLOCK,), tl.int64), mask=rows < N)
    tl.store(used, tl.sum(found, 0))


@triton.jit
def rescale(grad, above, stride, each, N, K, BLOCK: tl.constexpr):
    """Row i of ``grad`` times above[i * each], where that is not 1."""
    for i in range(tl.program_id(0), N, tl.num_programs(0)):
        factor = tl.load(above + i * each)
        if factor != 1.0:
            row = grad + tl.cast(i, tl.int64) * stride
            for start in range(0, K, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                g = tl.load(row + columns, mask=columns < K)
                tl.store(row + columns, (g.to(tl.float32) * factor).to(grad.dtype.element_ty), mask=columns < K)
