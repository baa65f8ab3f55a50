"""What runs on the GPU: the programs of ``trueup.losses.kernel``. Imported only where a GPU is used, or their test.

A program takes a row in tiles of (R, C). Every column of the tile keeps a sum (and a maximum) of its own, so that the
threads meet once a row and not once a tile. The first reading comes from memory; the second, last tile first, mostly
from the cache. In place or not, the whole row is read before any of it is written.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


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
def _others(row, label, K, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr):
    """(top, mass): the largest logit of the other classes and the sum of their exp(logit - top), exact in float32."""
    tile = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tops = tl.full((C,), -3e38, tl.float32)
    sums = tl.zeros((C,), tl.float32)
    for i in tl.range(tl.cdiv(K, R * C), num_stages=STAGES):
        columns = i * (R * C) + tile
        x = _tile(row, columns, K, EVEN, True)
        x = tl.where(columns == label, -float("inf"), x)
        higher = tl.maximum(tops, tl.max(x, 0))
        sums = sums * tl.exp(tops - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
        tops = higher
    top = tl.max(tops, 0)
    return top, tl.sum(sums * tl.exp(tops - top), 0)


@triton.jit
def _all(row, near, K, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr):
    """The sum of exp(logit - near) over all classes, in the fewest operations; inf where ``near`` is far too low."""
    tile = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    sums = tl.zeros((C,), tl.float32)
    shift = near * LOG2E
    for i in tl.range(tl.cdiv(K, R * C), num_stages=STAGES):
        x = _tile(row, i * (R * C) + tile, K, EVEN, True)
        sums += tl.sum(tl.exp2(x * LOG2E - shift), 0)
    return tl.sum(sums, 0)


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
):
    at = tl.program_id(0).to(tl.int64)
    row, out = logits + at * logits_stride, grad + at * grad_stride
    label = tl.load(labels + at)
    used = label != ignore_index
    label = tl.where(used, label, 0)
    tl.device_assert((label >= 0) & (label < K), "label out of range")
    label = label.to(tl.int32)  # compared with every column
    own = tl.load(row + label).to(tl.float32)

    if WIDE:
        top, mass = _others(row, label, K, R, C, STAGES, EVEN)
        u = (top.to(tl.float64) - own.to(tl.float64)) + tl.log(tl.maximum(mass, 1e-37).to(tl.float64))
    else:
        # Half precision has few digits, so less will do: a maximum of some classes, and all of their powers less the
        # label's own. Unless that takes nearly all, or the maximum was far too low: then as above.
        top = tl.maximum(tl.max(_tile(row, tl.arange(0, C), K, False, True), 0), own)
        mass = _all(row, top, K, R, C, STAGES, EVEN)
        mine = tl.exp2(own * LOG2E - top * LOG2E)
        if (mass < float("inf")) & (mine < 0.999 * mass):
            mass -= mine
        else:
            top, mass = _others(row, label, K, R, C, STAGES, EVEN)
        u = (top - own) + tl.log(tl.maximum(mass, 1e-37))
    u = tl.where(mass > 0, tl.maximum(u, -1e30), -1e30)
    value, slope = _value_and_slope(u, bounds, gammas, STEPS, DETACH)
    factor = tl.where(used, 1.0, 0.0)
    if WEIGHTED:
        factor *= tl.load(weights + label)
    if DIVIDED:
        factor /= tl.load(divisor).to(tl.float32)
    tl.store(losses + at, tl.where(used, (value * factor).to(tl.float32), 0.0))
    at_label = (slope * factor).to(tl.float32)
    spread = (slope * factor / tl.maximum(mass, 1e-37)).to(tl.float32)

    tile = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tiles = tl.cdiv(K, R * C)
    shift = tl.log2(spread) - top * LOG2E
    for i in tl.range(tiles, num_stages=STAGES):
        columns = (tiles - 1 - i) * (R * C) + tile
        x = _tile(row, columns, K, EVEN, False)
        g = spread * tl.exp(x - top) if WIDE else tl.exp2(x * LOG2E + shift)
        if EVEN:
            tl.store(out + columns, g.to(grad.dtype.element_ty), eviction_policy="evict_first")
        else:
            tl.store(out + columns, g.to(grad.dtype.element_ty), mask=columns < K, eviction_policy="evict_first")
    tl.debug_barrier()  # the label's entry comes last
    tl.store(out + label, (-at_label).to(grad.dtype.element_ty))


@triton.jit
def rescale(grad, above, stride, each, N, K, BLOCK: tl.constexpr):
    """Row i of ``grad`` times above[i * each], where that is not 1."""
    for i in range(tl.program_id(0), N, tl.num_programs(0)):
        factor = tl.load(above + i * each)
        if factor != 1.0:
            row = grad + i.to(tl.int64) * stride
            for start in range(0, K, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                g = tl.load(row + columns, mask=columns < K)
                tl.store(row + columns, (g.to(tl.float32) * factor).to(grad.dtype.element_ty), mask=columns < K)
