// The focal map with temperature, on the samples that travel with the page: the formulas of trueup/focal/parts.py.
//
//   v = softmax(z / T),  log h(v) = log v - g log(1 - v) - log(1 + g r(v)),  r(v) = -v log v / (1 - v)
//   Psi(v) = h(v) / sum h
//
// Everything is in log space and float64. Only the largest class of a row can be above one half; its 1 - v is the mass
// of the others and is never taken from 1 - exp(log v).
"use strict";

const focal = (() => {
  /** (atanh(t)/t - 1) / t^2 = 1/3 + t^2/5 + t^4/7 + ..., for t in [0, 1). */
  function atanhTail(t) {
    if (t >= 0.1) return (Math.atanh(t) / t - 1) / (t * t);
    const square = t * t;
    let series = square / 19 + 1 / 17;
    for (let odd = 15; odd > 2; odd -= 2) series = series * square + 1 / odd;
    return series;
  }

  /** (1 - r(1 - q)) / q, from 1/2 at q = 0, without cancellation. */
  function lossOfR(q) {
    const t = q / (2 - q);
    return ((1 + t) * (1 - t * (1 - t) * atanhTail(t))) / 2;
  }

  /** log(1 + g r(1 - q)), also where q = exp(logQ) underflows. */
  function logGrowth(logQ, gamma) {
    const q = Math.exp(logQ);
    const s = lossOfR(q);
    if (gamma >= 0) return Math.log1p(gamma * (1 - q * s));
    const rest = Math.log(-gamma) + logQ + Math.log(s);
    if (gamma <= -1) return rest;
    const whole = Math.log1p(gamma);
    const high = Math.max(rest, whole);
    return high + Math.log1p(Math.exp(Math.min(rest, whole) - high));
  }

  /** The samples of a set, decoded: logits row by row, the predicted class of each (the first of equals) and whether it is right. */
  function samples(live, classes) {
    const logits = new Float32Array(bytes(live.logits));
    const labels = new Int32Array(bytes(live.labels));
    const count = labels.length;
    const top = new Int32Array(count);
    const right = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      let best = 0;
      for (let k = 1; k < classes; k++) if (logits[i * classes + k] > logits[i * classes + best]) best = k;
      top[i] = best;
      right[i] = best === labels[i] ? 1 : 0;
    }
    return { logits, labels, top, right, count, classes, bins: live.bins };
  }

  function bytes(base64) {
    const text = atob(base64);
    const found = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
    return found.buffer;
  }

  /** log of the mass of the others where every exp of it underflows: from the largest of them. */
  function logRestFar(logits, base, classes, top, temperature) {
    let second = -Infinity;
    for (let k = 0; k < classes; k++) if (k !== top) second = Math.max(second, logits[base + k]);
    let sum = 0;
    for (let k = 0; k < classes; k++) if (k !== top) sum += Math.exp((logits[base + k] - second) / temperature);
    return (second - logits[base + top]) / temperature + Math.log(sum);
  }

  /** NLL, ECE, mean confidence, accuracy, and the bins of the reliability diagram, at a temperature and a gamma. */
  function calibrated(set, temperature, gamma) {
    const { logits, labels, top, right, count, classes, bins } = set;
    const powers = new Float64Array(classes);
    const number = new Float64Array(bins);
    const confidences = new Float64Array(bins);
    const rights = new Float64Array(bins);
    const variance = new Float64Array(bins);
    let loss = 0;
    let hits = 0;
    for (let i = 0; i < count; i++) {
      const base = i * classes;
      const best = top[i];
      const highest = logits[base + best];
      let rest = 0;
      for (let k = 0; k < classes; k++) {
        if (k === best) continue;
        powers[k] = Math.exp((logits[base + k] - highest) / temperature);
        rest += powers[k];
      }
      const logMass = Math.log1p(rest);
      const logRest = rest > 1e-290 ? Math.log(rest) : logRestFar(logits, base, classes, best, temperature);
      const logQ = logRest - logMass;
      const topScore = -logMass - gamma * logQ - logGrowth(logQ, gamma);
      let own = topScore;
      let sum = 1; // of h over the classes, divided by that of the largest
      for (let k = 0; k < classes; k++) {
        if (k === best) continue;
        const v = powers[k] / (1 + rest);
        const logV = (logits[base + k] - highest) / temperature - logMass;
        let score = logV;
        if (v > 1e-18) score -= gamma * Math.log1p(-v) + Math.log1p((-gamma * v * logV) / (1 - v)); // else both are 0
        sum += Math.exp(score - topScore);
        if (k === labels[i]) own = score;
      }
      const confidence = 1 / sum;
      loss += topScore + Math.log(sum) - own;
      hits += right[i];
      const bin = binOf(confidence, bins);
      number[bin] += 1;
      confidences[bin] += confidence;
      rights[bin] += right[i];
      variance[bin] += confidence * (1 - confidence);
    }
    return summary(set, { number, confidences, rights, variance, loss, hits });
  }

  /** Bin i of M is (i/M, (i+1)/M], counted from 0; what lies at an edge is settled by the edge itself. */
  function binOf(value, bins) {
    let bin = Math.min(bins - 1, Math.max(0, Math.ceil(value * bins) - 1));
    while (bin > 0 && value <= bin / bins) bin -= 1;
    while (bin < bins - 1 && value > (bin + 1) / bins) bin += 1;
    return bin;
  }

  function summary(set, sums) {
    const { count, bins } = set;
    const rows = [];
    const shares = [];
    let gap = 0;
    let total = 0;
    for (let b = 0; b < bins; b++) {
      const n = sums.number[b];
      const edges = { left: b / bins, right: (b + 1) / bins };
      shares.push({ ...edges, share: n / count });
      if (n === 0) continue;
      gap += Math.abs(sums.confidences[b] - sums.rights[b]);
      total += sums.confidences[b];
      const confidence = sums.confidences[b] / n;
      const accuracy = sums.rights[b] / n;
      const spread = (1.96 * Math.sqrt(sums.variance[b])) / n; // of the accuracy, were these the true probabilities
      const low = Math.max(0, confidence - spread);
      const high = Math.min(1, confidence + spread);
      const off = accuracy < low || accuracy > high ? 1 : 0;
      rows.push({ ...edges, confidence, accuracy, low, high, off, samples: n });
    }
    return {
      rows,
      shares,
      nll: sums.loss / count,
      ece: gap / count,
      confidence: total / count,
      accuracy: sums.hits / count,
    };
  }

  return { samples, calibrated };
})();
