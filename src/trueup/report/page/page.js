// The page's own behaviour: draws the charts, turns the knobs, sorts the tables. Needs focal.js and Vega before it.
"use strict";

(() => {
  const page = JSON.parse(document.getElementById("content").textContent);
  const find = (id) => document.getElementById(id);
  const percent = (x, digits = 2) => (x === null ? "∞" : `${(100 * x).toFixed(digits)} %`);
  const shown = (metric, x) => (metric.share ? percent(x) : x === null ? "∞" : x.toFixed(4));

  // ------------------------------------------------------------------ charts

  /** The spec with every text "$name" replaced by the value of that name. */
  function filled(spec, values) {
    if (typeof spec === "string" && spec.startsWith("$")) return values[spec.slice(1)];
    if (Array.isArray(spec)) return spec.map((part) => filled(part, values));
    if (spec === null || typeof spec !== "object") return spec;
    return Object.fromEntries(Object.entries(spec).map(([key, part]) => [key, filled(part, values)]));
  }

  const charts = new Map(); // by the element: what is drawn there, and as what
  const drawings = new Map(); // by the element: the promise of the drawing that is under way

  /** Draws a spec into an element, or gives the chart that is there new data. Drawings of one element wait for each other. */
  function draw(element, name, data, values = {}) {
    const before = drawings.get(element) || Promise.resolve();
    const drawn = before.then(() => drawNow(element, name, data, values));
    drawings.set(element, drawn);
    return drawn;
  }

  async function drawNow(element, name, data, values) {
    const as = JSON.stringify([name, values]);
    const there = charts.get(element);
    if (there && there.as === as) {
      for (const [key, rows] of Object.entries(data)) there.view.data(key, rows);
      there.view.run();
      return there.view;
    }
    if (there) there.finalize();
    const spec = { ...filled(page.specs[name], values), config: page.config, datasets: data };
    // ast: expressions are interpreted, so that the page may forbid eval
    const made = await vegaEmbed(element, spec, { mode: "vega-lite", renderer: "svg", actions: false, ast: true });
    charts.set(element, { view: made.view, as, finalize: made.finalize });
    return made.view;
  }

  const columns = (of, names) => of[names[0]].map((_, i) => Object.fromEntries(names.map((name) => [name, of[name][i]])));

  // ------------------------------------------------------------------ the set that is shown

  let set = null; // its content
  let samples = null; // its logits, decoded

  function choose(index) {
    set = page.sets[index];
    samples = focal.samples(set.live, set.class_names.length);
    listClasses();
    drawReliability();
    drawOutcomes();
    listMistakes();
    prepareKnobs();
  }

  const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

  function onChange(name, then) {
    for (const input of document.querySelectorAll(`input[name="${name}"]`)) input.addEventListener("change", then);
  }

  // ------------------------------------------------------------------ reliability

  function listClasses() {
    const select = find("class");
    if (!select) return;
    select.replaceChildren(new Option("all classes", "all"));
    for (const k of set.listed) select.add(new Option(set.class_names[k], String(k)));
    find("class-row").hidden = set.listed.length === 0;
    find("class-note").textContent =
      set.listed.length && set.listed.length < set.class_names.length
        ? `The ${set.listed.length} of ${set.class_names.length} classes whose probabilities are furthest off are listed.`
        : "";
  }

  function drawReliability() {
    const forecast = chosen("forecast");
    const which = find("class").value || "all";
    const both = set.reliability[forecast][which];
    const empty = find("reliability-empty");
    empty.hidden = both !== null;
    find("reliability-charts").hidden = both === null;
    if (both === null) {
      empty.textContent = `No sample is predicted as ${set.class_names[Number(which)]}, so there is nothing to draw.`;
      find("reliability-words").replaceChildren();
      return;
    }
    const found = both[chosen("scheme")];
    const rows = columns(found, ["left", "right", "confidence", "accuracy", "low", "high", "share"]);
    for (const row of rows) {
      row.off = row.accuracy < row.low || row.accuracy > row.high ? 1 : 0;
      row.samples = row.share * found.samples;
    }
    const width = 1 / found.histogram.length;
    const shares = found.histogram.map((share, i) => ({ left: i * width, right: (i + 1) * width, share }));
    draw(find("reliability"), `reliability_${forecast}`, { bins: rows });
    draw(find("shares"), "shares", { shares });
    const off = rows.filter((row) => row.off).length;
    const what = chosen("scheme") === "width" ? "Calibration error, bins of equal width" : "Calibration error, bins of equal mass";
    facts(find("reliability-words"), [
      [what, percent(found.error)],
      ["Bins off the band", `${off} of ${rows.length}`],
      [forecast === "top" ? "Samples" : "Forecasts", found.samples.toLocaleString("en")],
    ]);
  }

  function facts(list, pairs) {
    list.replaceChildren();
    for (const [term, value] of pairs) {
      const row = list.appendChild(document.createElement("div"));
      row.appendChild(document.createElement("dt")).textContent = term;
      row.appendChild(document.createElement("dd")).textContent = value;
    }
  }

  // ------------------------------------------------------------------ right and wrong

  function drawOutcomes() {
    const { edges } = set.histogram;
    for (const kind of ["right", "wrong"]) {
      const part = set.histogram[kind];
      const bars = part.bins.map((share, i) => ({ left: edges[i], right: edges[i + 1], share }));
      const none = kind === "right" ? "No prediction is right." : "No prediction is wrong.";
      find(`${kind}-title`).textContent = part.bins.length ? `${kind}: ${percent(part.share, 1)} of all` : none;
      find(kind).hidden = part.bins.length === 0;
      if (part.bins.length) draw(find(kind), kind, { bars });
    }
    const told = set.coverage[0].coverage.length > 1;
    find("coverage-empty").hidden = told;
    find("coverage").hidden = !told;
    const curve = set.coverage.flatMap((each) =>
      columns(each, ["coverage", "risk", "threshold"]).map((row) => ({ ...row, name: each.name })));
    if (told) draw(find("coverage"), "coverage", { curve }, { names: set.coverage.map((each) => each.name) });
  }

  function listMistakes() {
    const list = find("mistakes");
    list.replaceChildren();
    find("mistakes-empty").hidden = set.mistakes.length > 0;
    find("mistakes-empty").textContent = `There is none: all ${set.samples} predictions are right.`;
    for (const each of set.mistakes) {
      const item = list.appendChild(document.createElement("li"));
      if (each.image) {
        const image = item.appendChild(document.createElement("img"));
        image.src = each.image;
        image.alt = `sample ${each.row}`;
      }
      const words = item.appendChild(document.createElement("div"));
      name(words, "said", each.said, each.confidence);
      name(words, "is", each.label, each.probability);
      words.appendChild(document.createElement("small")).textContent = `row ${each.row}`;
    }
  }

  function name(into, verb, k, probability) {
    const line = into.appendChild(document.createElement("p"));
    line.className = verb;
    line.append(`${verb} `);
    line.appendChild(document.createElement("bdi")).textContent = set.class_names[k];
    line.appendChild(document.createElement("b")).textContent = nearly(probability);
  }

  /** Rounded, but neither to 0 nor to 100 % what is not. */
  function nearly(probability) {
    if (probability > 0 && probability < 0.0005) return "<0.1 %";
    if (probability < 1 && probability > 0.9995) return ">99.9 %";
    return percent(probability, 1);
  }

  // ------------------------------------------------------------------ knobs

  const knobs = { temperature: 1, gamma: 0 };
  const scale = {
    temperature: { to: Math.log, from: Math.exp, digits: 3 },
    gamma: { to: (x) => x, from: (x) => x, digits: 3 },
  };
  const METRICS = ["ece", "nll", "confidence"];

  function prepareKnobs() {
    const { ranges, fitted } = set.live;
    for (const knob of ["temperature", "gamma"]) {
      const slider = find(knob);
      const [low, high] = ranges[knob].map(scale[knob].to);
      Object.assign(slider, { min: low, max: high, step: (high - low) / 1000 });
      Object.assign(find(`${knob}-number`), { min: ranges[knob][0], max: ranges[knob][1] });
      const place = (x) => Math.min(1, Math.max(0, (scale[knob].to(x) - low) / (high - low)));
      find(`${knob}-fitted`).style.setProperty("--at", place(fitted[knob]));
      find(`${knob}-plain`).style.setProperty("--at", place(knob === "temperature" ? 1 : 0));
    }
    const whole = set.live.samples === set.live.of;
    find("knobs-note").textContent = [
      `The numbers are those of ${whole ? "all" : `${set.live.samples} of the`} ${set.live.of} samples${whole ? "" : ", drawn at random"}.`,
      `Fitted optimum: the lowest NLL on ${fitted.where}, T = ${round(fitted.temperature)}, γ = ${round(fitted.gamma)}.`,
      fitted.at_bound ? "It lies at the limit of its range: these samples cannot tell where the best is." : "",
    ].join(" ");
    const plain = focal.calibrated(samples, 1, 0);
    const best = focal.calibrated(samples, fitted.temperature, fitted.gamma);
    for (const metric of METRICS) {
      find(`${metric}-plain`).textContent = told(metric, plain[metric]);
      find(`${metric}-fitted`).textContent = told(metric, best[metric]);
    }
    find("accuracy-live").textContent = `accuracy ${percent(plain.accuracy)}, which T and γ do not change`;
    turn(1, 0);
    drawLandscape();
  }

  const round = (x) => Number(x.toPrecision(3)).toString().replace("-", "−");
  const told = (metric, x) => (metric === "nll" ? x.toFixed(4) : percent(x));

  /** Everything that follows from the knobs' position. */
  function turn(temperature, gamma) {
    Object.assign(knobs, { temperature, gamma });
    const found = focal.calibrated(samples, temperature, gamma);
    for (const knob of ["temperature", "gamma"]) {
      const value = scale[knob].to(knobs[knob]);
      const slider = find(knob);
      if (Math.abs(slider.valueAsNumber - value) > slider.step / 2) slider.value = value;
      slider.setAttribute("aria-valuetext", knobs[knob].toFixed(3));
      if (document.activeElement !== find(`${knob}-number`)) find(`${knob}-number`).value = knobs[knob].toFixed(3);
      find(knob).dataset.value = knobs[knob];
    }
    for (const metric of METRICS) {
      find(`${metric}-now`).textContent = told(metric, found[metric]);
      find(`${metric}-now`).dataset.value = found[metric];
    }
    const drawn = [
      draw(find("live"), "reliability_top", { bins: found.rows }),
      draw(find("live-shares"), "shares", { shares: found.shares }),
    ];
    const landscape = charts.get(find("landscape"));
    if (landscape) landscape.view.data("now", [{ t: temperature, g: gamma }]).run();
    return Promise.all(drawn);
  }

  function drawLandscape() {
    const metric = chosen("height");
    const { temperatures, gammas } = set.live.landscape;
    const { values, heights } = set.live.landscape[metric];
    const cells = values.flatMap((row, i) => row.map((value, j) => ({
      t0: temperatures[j], t1: temperatures[j + 1], g0: gammas[i], g1: gammas[i + 1],
      t: Math.sqrt(temperatures[j] * temperatures[j + 1]), g: (gammas[i] + gammas[i + 1]) / 2, value,
    })));
    const { ranges, fitted } = set.live;
    const within = (x, [low, high]) => Math.min(high, Math.max(low, x));
    const marks = [
      { t: 1, g: 0, what: "as it is" },
      { t: within(fitted.temperature, ranges.temperature), g: within(fitted.gamma, ranges.gamma), what: "fitted" },
    ];
    const now = [{ t: knobs.temperature, g: knobs.gamma }];
    const blanks = { temperatures: ranges.temperature, gammas: ranges.gamma, heights };
    draw(find("landscape"), `landscape_${metric}`, { cells, marks, now }, blanks).then(goWhereClicked);
    const legend = find("legend");
    legend.replaceChildren();
    page.levels.forEach((colour, i) => {
      const level = legend.appendChild(document.createElement("li"));
      level.style.setProperty("--level", colour);
      if (i % 2 === 0 || i >= heights.length) return; // every second label has room
      const text = metric === "ece" ? `${Number((100 * heights[i]).toPrecision(2))}\u202f%` : heights[i].toPrecision(3);
      level.appendChild(document.createElement("span")).textContent = text;
    });
  }

  const listening = new WeakSet();

  function goWhereClicked(view) {
    if (listening.has(view)) return;
    listening.add(view);
    view.addEventListener("click", (event) => {
      const [left, top] = view.origin();
      const box = find("landscape").querySelector("svg").getBoundingClientRect();
      const padding = view.padding();
      const t = view.scale("x").invert(event.clientX - box.left - padding.left - left);
      const g = view.scale("y").invert(event.clientY - box.top - padding.top - top);
      const { ranges } = set.live;
      const inside = t >= ranges.temperature[0] && t <= ranges.temperature[1] && g >= ranges.gamma[0] && g <= ranges.gamma[1];
      if (inside) turn(t, g);
    });
  }

  function listenToKnobs() {
    for (const knob of ["temperature", "gamma"]) {
      const set_to = (value) => turn(...(knob === "temperature" ? [value, knobs.gamma] : [knobs.temperature, value]));
      find(knob).addEventListener("input", () => set_to(scale[knob].from(find(knob).valueAsNumber)));
      find(`${knob}-number`).addEventListener("input", (event) => {
        const [low, high] = set.live.ranges[knob];
        const value = event.target.valueAsNumber;
        if (value >= low && value <= high) set_to(value);
      });
      find(`${knob}-number`).addEventListener("blur", (event) => { event.target.value = knobs[knob].toFixed(3); });
    }
    find("reset").addEventListener("click", () => turn(1, 0));
    find("to-fitted").addEventListener("click", () => turn(set.live.fitted.temperature, set.live.fitted.gamma));
    onChange("height", drawLandscape);
  }

  // ------------------------------------------------------------------ tables

  /** Rows in the order of a column; a second press turns it round. Cells without a number come last. */
  function sortable(table, then) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const key = (row) => row.cells[column].dataset.sort;
        const rows = [...body.rows].sort((a, b) => compared(key(a), key(b)) * (down ? -1 : 1));
        body.append(...rows.filter((row) => key(row) !== ""), ...rows.filter((row) => key(row) === ""));
        if (then) then(column);
      });
    });
  }

  const compared = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);

  function drawComparison(column) {
    const { columns: metrics, rows } = page.comparison;
    const index = column >= 1 && column <= metrics.length ? column - 1 : drawComparison.index;
    drawComparison.index = index;
    const order = [...find("comparison").tBodies[0].rows].map((row) => row.dataset.name);
    const data = rows.map((row) => {
      const { value, low, high, text, interval } = row.cells[index];
      return { name: row.name, value, low: low ?? value, high: high ?? value, text, interval, order: order.indexOf(row.name) };
    });
    find("comparison-title").textContent = metrics[index].title;
    const known = data.filter((row) => row.value !== null);
    draw(find("intervals"), "intervals", { rows: known }, { format: metrics[index].share ? ".1~%" : ".3~g", height: 26 * rows.length });
  }

  // ------------------------------------------------------------------ a study

  const setting = () => page.study.settings[find("setting") ? Number(find("setting").value) : 0];

  function drawStudy() {
    const found = setting();
    const calibrators = find("calibrator");
    const before = calibrators.value || "none";
    calibrators.replaceChildren(...found.calibrators.map((each) => new Option(each === "none" ? "none (as trained)" : each, each)));
    calibrators.value = found.calibrators.includes(before) ? before : found.calibrators[0];
    for (const body of document.querySelectorAll("#study-table tbody tr")) body.hidden = body.dataset.setting !== found.name;
    drawSeeds();
    drawCurves();
  }

  function drawSeeds() {
    const found = setting();
    const index = Number(find("metric").value);
    const metric = page.study.columns[index];
    const rows = found.rows.filter((row) => row.calibrator === find("calibrator").value);
    const order = (loss) => found.losses.indexOf(loss);
    const means = [];
    const seeds = [];
    for (const row of rows) {
      const cell = row.cells[index];
      if (cell.value !== null) means.push({ loss: row.loss, value: cell.value, text: cell.text, order: order(row.loss) });
      cell.seeds.forEach((value, i) => {
        if (value !== null) seeds.push({ loss: row.loss, value, seed: row.seeds[i], text: shown(metric, value), order: order(row.loss) });
      });
    }
    const baseline = means.filter((mean) => mean.loss === page.study.baseline);
    draw(find("seeds"), "seeds", { seeds, means, baseline }, { format: metric.share ? ".1~%" : ".3~g", height: 26 * rows.length });
  }

  function drawCurves() {
    const { curves } = setting();
    const metric = chosen("curve");
    const names = Object.keys(curves);
    const part = (loss) => columns(curves[loss][metric], ["epoch", "mean", "low", "high"]);
    // the first tenth may leave at the top: the rest would be flat below it
    const later = names.flatMap((loss) => part(loss).slice(Math.floor(curves[loss][metric].epoch.length / 10)));
    const highest = Math.max(...later.map((row) => row.high ?? 0));
    const epochs = [1, Math.max(2, ...names.flatMap((loss) => curves[loss][metric].epoch))];
    const blanks = { domain: [0, 1.05 * highest || 1], epochs, format: metric === "nll" ? "~g" : ".0~%" };
    const grid = find("curves");
    grid.replaceChildren();
    for (const loss of names) {
      const figure = grid.appendChild(document.createElement("figure"));
      figure.appendChild(document.createElement("figcaption")).textContent = loss;
      const chart = figure.appendChild(document.createElement("div"));
      chart.className = "chart";
      const baseline = loss !== page.study.baseline && curves[page.study.baseline] ? part(page.study.baseline) : [];
      draw(chart, "curve", { curve: part(loss), baseline }, blanks);
    }
  }

  // ------------------------------------------------------------------ light and dark

  function listenToTheme() {
    const themes = ["auto", "light", "dark"];
    const button = find("theme");
    button.addEventListener("click", () => {
      const now = document.documentElement.dataset.theme || "auto";
      const next = themes[(themes.indexOf(now) + 1) % themes.length];
      document.documentElement.dataset.theme = next;
      button.querySelector("span").textContent = next;
    });
  }

  // ------------------------------------------------------------------ begin

  listenToTheme();
  if (page.comparison) {
    drawComparison.index = page.comparison.columns.findIndex((metric) => metric.name === "ece");
    sortable(find("comparison"), drawComparison);
    drawComparison(0);
  }
  if (page.study) {
    for (const id of ["setting"]) if (find(id)) find(id).addEventListener("change", drawStudy);
    for (const id of ["calibrator", "metric"]) find(id).addEventListener("change", drawSeeds);
    onChange("curve", drawCurves);
    sortable(find("study-table"));
    drawStudy();
  }
  if (page.sets.length) {
    onChange("forecast", drawReliability);
    onChange("scheme", drawReliability);
    find("class").addEventListener("change", drawReliability);
    listenToKnobs();
    if (find("set")) find("set").addEventListener("change", () => choose(Number(find("set").value)));
    choose(0);
  }
  Promise.all(drawings.values()).then(() => { document.documentElement.dataset.ready = "yes"; });
})();
