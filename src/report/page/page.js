// page.js -- the script of the page of `lockstep report` and `lockstep watch`.
//
// The element #data has all data as JSON.  Series are at one or more levels: the finest has all
// points or, of long runs, buckets of neighbouring points with minimum, maximum and mean.  A chart
// draws the coarsest level that has a point for each pixel, so the length of a run does not matter.
// Texts from logs only ever become text nodes.
"use strict";

// ---- Small helpers ---------------------------------------------------------------------------

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const NS = "http://www.w3.org/2000/svg";
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [], [7, 4], [2, 3], [9, 3, 2, 3]];
const DAY = 86400;

// Makes the key of a curve or, with `block`, of an area.
function swatch(index, block) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("width", "26");
  svg.setAttribute("height", "10");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(NS, "line");
  const values = { x1: 0, y1: 5, x2: 26, y2: 5, stroke: colour(index), "stroke-width": block ? 10 : 3,
                   "stroke-dasharray": block ? "" : DASHES[index % 8].join(" ") };
  for (const [key, value] of Object.entries(values)) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(index) {
  return css("--c" + (index % 8));
}

function decode(text, Type) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
}

// Writes a number with about four digits: 0.001234, 12.35, 1,234,000.
function short(value) {
  if (value === null || value === undefined) return "";
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not finite" : String(value);
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 1e-4 || size >= 1e9) return value.toExponential(3).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (seconds < 120) return short(seconds) + " s";
  if (seconds < 7200) return short(seconds / 60) + " min";
  return seconds < 2 * DAY ? short(seconds / 3600) + " h" : short(seconds / DAY) + " d";
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

// ---- Data ------------------------------------------------------------------------------------

class Series {
  constructor(run, source, xs) {
    this.run = run;
    this.name = source.name;
    this.t0 = source.t0;
    this.levels = source.levels.map((level, i) => ({
      width: level.width,
      x: xs[i],
      mean: decode(level.mean, Float32Array),
      min: level.min === undefined ? null : decode(level.min, Float32Array),
      max: level.max === undefined ? null : decode(level.max, Float32Array),
    }));
  }

  get finest() {
    return this.levels[this.levels.length - 1];
  }

  // Returns the coarsest level with at least `wanted` points in a part of the run, from 0 to 1.
  level(part, wanted) {
    return this.levels.find((level) => level.x.length * part >= wanted) || this.finest;
  }

  last() {
    const level = this.finest;
    for (let i = level.mean.length - 1; i >= 0; i--)
      if (Number.isFinite(level.mean[i])) return level.mean[i];
    return null;
  }

  least() {
    const values = (this.finest.min || this.finest.mean).filter(Number.isFinite);
    return values.length === 0 ? null : values.reduce((a, b) => Math.min(a, b));
  }
}

class Run {
  constructor(source, index) {
    Object.assign(this, source);
    this.index = index;
    const xs = source.xs.map((levels) => levels.map((level) => decode(level, Float64Array)));
    this.all = source.series.map((one) => new Series(this, one, xs[one.x]));
    this.map = new Map(this.all.map((one) => [one.name, one]));
  }

  find(...names) {
    for (const name of names) if (this.map.has(name)) return this.map.get(name);
    return null;
  }
}

// The setting of the slider as the weight that an average keeps from one step to the next.
function keepOf(slider) {
  return slider === 0 ? 0 : 1 - Math.pow(10, -3.5 * slider);
}

// State that a new version of the data does not change.
const state = { slider: 0, smooth: 0, logLoss: false, logStep: false, byTime: false, hidden: new Set(),
                range: null, cursor: null, parts: 0 };
let data = null;
let runs = [];
let charts = [];

function shown() {
  return runs.filter((run) => !state.hidden.has(run.path));
}

function read(source) {
  data = source;
  runs = source.runs.map((run, i) => new Run(run, i));
}

// Returns the position of points on the horizontal axis: steps, or seconds since the run began.
function positions(series, level) {
  if (!state.byTime) return level.x;
  const time = series.run.find("time");
  if (time === null) return level.x;
  const index = series.levels.indexOf(level);
  const same = time.levels[index];
  if (same !== undefined && same.x === level.x) return same.mean;
  return level.x.map((step) => interpolate(time.finest, step));
}

function interpolate(level, step) {
  const at = Math.min(search(level.x, step), level.x.length - 1);
  return level.mean[at];
}

// Returns the index of the first element that is not below `value`.
function search(list, value) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Smooths by an exponential average whose weights do not depend on the width of buckets.
function smoothed(values, width) {
  const keep = Math.pow(state.smooth, width);
  const out = new Float64Array(values.length);
  let sum = 0, weight = 0;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i])) {
      sum = keep * sum + (1 - keep) * values[i];
      weight = keep * weight + (1 - keep);
    }
    out[i] = weight > 0 && Number.isFinite(values[i]) ? sum / weight : NaN;
  }
  return out;
}

// ---- Axes ------------------------------------------------------------------------------------

class Axis {
  constructor(low, high, log) {
    this.log = log && high > 0;
    if (this.log) low = Math.max(low, high * 1e-12);
    if (!(high > low)) {
      const around = Math.abs(low) * 0.05 || 0.5;
      low -= around;
      high += around;
    }
    this.low = low;
    this.high = high;
  }

  // Returns the place of a value on the axis, from 0 to 1.
  place(value) {
    if (this.log) return Math.log(Math.max(value, this.low * 1e-3) / this.low) / Math.log(this.high / this.low);
    return (value - this.low) / (this.high - this.low);
  }

  value(place) {
    return this.log ? this.low * Math.pow(this.high / this.low, place)
                    : this.low + place * (this.high - this.low);
  }

  ticks(wanted, whole) {
    const out = [];
    if (this.log && this.high / this.low > 8) {
      const decades = Math.log10(this.high / this.low);
      const every = Math.max(1, Math.ceil(decades / wanted));
      const between = decades < 3 ? [1, 2, 5] : [1];
      for (let e = Math.floor(Math.log10(this.low)); e <= Math.log10(this.high) + 1; e += every)
        for (const m of between) out.push(m * Math.pow(10, e));
    } else {
      let step = Math.pow(10, Math.floor(Math.log10((this.high - this.low) / wanted)));
      const count = (this.high - this.low) / step / wanted;
      step *= count > 5 ? 10 : count > 2 ? 5 : count > 1 ? 2 : 1;
      if (whole) step = Math.max(1, Math.round(step));
      for (let i = Math.ceil(this.low / step); i <= this.high / step + 1e-9; i++)
        out.push(Number((i * step).toPrecision(12)));
    }
    return out.filter((tick) => tick >= this.low * (1 - 1e-12) - 1e-300 && tick <= this.high * (1 + 1e-12));
  }
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return short(value / 1e6) + "M";
  if (size >= 1e4) return short(value / 1e3) + "k";
  if (value !== 0 && size < 1e-4) return value.toExponential(0).replace("e-", "e−");
  return String(Number(value.toPrecision(6)));
}

// ---- Charts ----------------------------------------------------------------------------------

// A chart of lines over steps or time.  `items`: {series, index, label}; index selects the colour.
class Chart {
  constructor(title, items, options) {
    this.title = title;
    this.items = items;
    this.options = Object.assign({ unit: "", log: () => false, wide: false, marks: false,
                                   stacked: false, zero: false }, options);
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.output = make("output", { "aria-live": "polite" });
    this.table = make("div", { className: "scroll" });
    const details = make("details", {}, make("summary", {}, "Values as a table"), this.table);
    details.addEventListener("toggle", () => this.fill(details.open));
    const keys = make("ul", { className: "keys" },
      ...items.map((item) => make("li", {}, swatch(item.index, this.options.stacked), item.label)));
    this.element = make("figure", { className: "chart" + (this.options.wide ? " wide" : "") },
      make("div", { className: "top" }, make("h3", {}, title, make("span", { className: "soft" },
        this.options.unit === "" ? "" : ", " + this.options.unit)), keys),
      this.canvas, this.output, details);
    this.element.style.margin = 0;
    this.listen();
    register(this);
  }

  visible() {
    return this.items.filter((item) => !state.hidden.has(item.series.run.path));
  }

  listen() {
    const canvas = this.canvas;
    let from = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return this.x.value(Math.min(1, Math.max(0, (event.clientX - box.left - this.left) /
                                                  (box.width - this.left - this.right))));
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (this.x === undefined || event.button !== 0) return;
      from = place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.x === undefined) return;
      this.drag = from === null ? null : [from, place(event)];
      point(place(event), this);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = place(event), low = Math.min(from, to), high = Math.max(from, to);
      from = this.drag = null;
      if (Math.abs(this.x.place(high) - this.x.place(low)) > 0.01) zoom([low, high]);
    });
    canvas.addEventListener("pointerleave", () => {
      if (from === null) point(null, this);
    });
    canvas.addEventListener("dblclick", () => zoom(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => point(state.cursor === null && this.x !== undefined
      ? this.x.high : state.cursor, this));
  }

  // Moves the cursor from point to point, and zooms around it.
  key(event) {
    if (this.x === undefined) return;
    const width = this.x.high - this.x.low;
    const at = state.cursor === null ? this.x.high : state.cursor;
    const move = (event.shiftKey ? 0.1 : 0.01) * width;
    const around = (size) => [Math.max(this.full[0], at - size / 2), Math.min(this.full[1], at + size / 2)];
    const actions = {
      ArrowLeft: () => point(Math.max(this.x.low, at - move), this),
      ArrowRight: () => point(Math.min(this.x.high, at + move), this),
      Home: () => point(this.x.low, this), End: () => point(this.x.high, this),
      "+": () => zoom(around(width / 2)), "=": () => zoom(around(width / 2)),
      "-": () => zoom(around(width * 2)), 0: () => zoom(null), Escape: () => zoom(null),
    };
    if (actions[event.key] === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Prepares the points of each line that are to be drawn.
  lines(width) {
    const found = this.visible().map((item) => {
      const finest = item.series.finest;
      const all = positions(item.series, finest);
      return { item, first: all[0], last: all[all.length - 1] };
    }).filter((line) => line.first !== undefined);
    if (found.length === 0) return [];
    // all charts of a run have the same steps, so that one place is one step in all of them
    const ends = found.map((line) => (state.byTime ? [line.first, line.last]
      : [line.item.series.run.first_step, line.item.series.run.last_step]));
    this.full = [Math.min(...ends.map((end) => end[0])), Math.max(...ends.map((end) => end[1]))];
    const range = state.range || this.full;
    for (const line of found) {
      const span = Math.max(line.last - line.first, 1e-9);
      const part = Math.min(1, Math.max(1e-9, (range[1] - range[0]) / span));
      line.level = line.item.series.level(part, state.smooth > 0 ? width : width / 2);
      line.x = positions(line.item.series, line.level);
      line.from = Math.max(0, search(line.x, range[0]) - 1);
      line.to = Math.min(line.x.length, search(line.x, range[1]) + 1);
      line.raw = line.level.mean;
      line.y = state.smooth > 0 && !this.options.marks ? smoothed(line.raw, line.level.width) : line.raw;
    }
    this.x = new Axis(range[0], range[1], state.logStep && range[0] >= 0);
    if (this.x.log && range[0] === 0) this.x = new Axis(Math.min(1, range[1] / 10), range[1], true);
    return found;
  }

  extent(lines) {
    let low = Infinity, high = -Infinity;
    const take = (value) => {
      if (!Number.isFinite(value) || (this.options.log() && value <= 0)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const line of lines) {
      const quiet = state.smooth > 0 && !this.options.marks;
      for (let i = line.from; i < line.to; i++) {
        take(line.y[i]);
        if (quiet) take(line.raw[i]); // drawn behind the average
        if (!quiet && line.level.min) {
          take(line.level.min[i]);
          take(line.level.max[i]);
        }
      }
    }
    if (low > high) return null;
    if (this.options.zero && !this.options.log()) low = Math.min(0, low);
    const margin = this.options.log() ? Math.pow(high / low, 0.04) : (high - low) * 0.05;
    return this.options.log() ? new Axis(low / margin, high * margin, true)
                              : new Axis(this.options.zero && low === 0 ? 0 : low - margin, high + margin, false);
  }

  draw() {
    const box = this.canvas.getBoundingClientRect();
    if (box.width === 0) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    const g = this.canvas.getContext("2d");
    g.scale(scale, scale);
    this.left = 58;
    this.right = 12;
    this.top = 18; // with room for the tips of marks, which must not hide a line at the top
    this.bottom = 38;
    this.w = box.width - this.left - this.right;
    this.h = box.height - this.top - this.bottom;
    g.font = "12px " + getComputedStyle(document.body).fontFamily;
    const lines = this.lines(this.w);
    this.drawn = lines;
    if (this.options.stacked) this.y = this.stackExtent(lines);
    else this.y = lines.length > 0 ? this.extent(lines) : null;
    if (lines.length === 0 || this.y === null) {
      g.fillStyle = css("--soft");
      g.fillText(this.visible().length === 0 ? "All runs with this value are hidden." : "No finite value in this range.",
                 this.left, this.top + 20);
      this.canvas.setAttribute("aria-label", this.title + ": nothing to show");
      return;
    }
    this.axes(g);
    this.marks(g);
    g.save();
    g.beginPath();
    g.rect(this.left - 4, this.top - 4, this.w + 8, this.h + 8); // points on the border are whole
    g.clip();
    if (this.options.stacked) this.stack(g, lines);
    else for (const line of lines) this.line(g, line);
    g.restore();
    this.cursor(g);
    this.describe(lines);
  }

  px(value) {
    return this.left + this.x.place(value) * this.w;
  }

  py(value) {
    return this.top + (1 - this.y.place(value)) * this.h;
  }

  axes(g) {
    g.strokeStyle = css("--line");
    g.fillStyle = css("--soft");
    g.lineWidth = 1;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const tick of this.y.ticks(5)) {
      const y = Math.round(this.py(tick)) + 0.5;
      g.beginPath();
      g.moveTo(this.left, y);
      g.lineTo(this.left + this.w, y);
      g.stroke();
      g.fillText(tickText(tick), this.left - 8, y);
    }
    g.textAlign = "center";
    g.textBaseline = "top";
    const bottom = this.top + this.h;
    let free = -Infinity;
    for (const tick of this.x.ticks(Math.max(2, Math.floor(this.w / 110)), !state.byTime)) {
      const x = Math.round(this.px(tick)) + 0.5;
      const label = state.byTime ? duration(tick) : tickText(tick);
      const half = g.measureText(label).width / 2;
      g.beginPath();
      g.moveTo(x, bottom);
      g.lineTo(x, bottom + 5);
      g.stroke();
      if (x - half < free || x + half > this.left + this.w + this.right) continue;
      g.fillText(label, x, bottom + 8);
      free = x + half + 10;
    }
    g.textAlign = "right";
    g.fillText(state.byTime ? "time since the start" : "step", this.left + this.w, bottom + 23);
  }

  // Draws losses and entries of workers, and where runs part, as vertical lines: those of the runs
  // that have a curve here.
  marks(g) {
    if (state.byTime) return;
    g.lineWidth = 1;
    for (const mark of milestones(shown().filter((run) => this.drawn.some((line) => line.item.series.run === run)))) {
      if (mark.step < this.x.low || mark.step > this.x.high) continue;
      const x = Math.round(this.px(mark.step)) + 0.5;
      g.strokeStyle = g.fillStyle = css(mark.colour);
      g.setLineDash([3, 3]);
      g.beginPath();
      g.moveTo(x, this.top);
      g.lineTo(x, this.top + this.h);
      g.stroke();
      g.setLineDash([]);
      g.beginPath();
      const tip = this.top - (mark.down ? 4 : 12), base = this.top - (mark.down ? 12 : 4);
      g.moveTo(x, tip);
      g.lineTo(x - 5, base);
      g.lineTo(x + 5, base);
      g.fill();
    }
  }

  line(g, line) {
    const stroke = colour(line.item.index);
    const { x, level, from, to } = line;
    const quiet = state.smooth > 0 && !this.options.marks;
    if (level.min && !quiet) {
      g.fillStyle = stroke;
      g.globalAlpha = 0.22;
      g.beginPath();
      for (let i = from; i < to; i++) if (Number.isFinite(level.max[i])) g.lineTo(this.px(x[i]), this.py(level.max[i]));
      for (let i = to - 1; i >= from; i--) if (Number.isFinite(level.min[i])) g.lineTo(this.px(x[i]), this.py(level.min[i]));
      g.fill();
      g.globalAlpha = 1;
    }
    if (quiet) {
      g.globalAlpha = 0.25;
      this.path(g, line, line.raw, stroke, []);
      g.globalAlpha = 1;
    }
    const dense = to - from > this.w / 4 && !quiet; // dashes of a noisy curve are no pattern
    this.path(g, line, line.y, stroke, dense ? [] : DASHES[line.item.index % 8]);
    if (!this.options.marks && to - from > 40) return;
    g.fillStyle = stroke;
    for (let i = from; i < to; i++) {
      if (!Number.isFinite(line.y[i])) continue;
      g.beginPath();
      g.arc(this.px(x[i]), this.py(line.y[i]), 3, 0, 7);
      g.fill();
    }
  }

  path(g, line, y, stroke, dash) {
    g.strokeStyle = stroke;
    g.lineWidth = 1.7;
    g.lineJoin = "round";
    g.setLineDash(dash);
    g.beginPath();
    let down = false;
    for (let i = line.from; i < line.to; i++) {
      if (!Number.isFinite(y[i])) {
        down = false;
        continue;
      }
      if (down) g.lineTo(this.px(line.x[i]), this.py(y[i]));
      else g.moveTo(this.px(line.x[i]), this.py(y[i]));
      down = true;
    }
    g.stroke();
    g.setLineDash([]);
  }

  stackExtent(lines) {
    let high = 0;
    const first = lines[0];
    if (first === undefined) return null;
    for (let i = first.from; i < first.to; i++) {
      let sum = 0;
      for (const line of lines) sum += line.y[i] || 0;
      high = Math.max(high, sum);
    }
    return new Axis(0, high * 1.05, false);
  }

  stack(g, lines) {
    const { from, to, x } = lines[0];
    const below = new Float64Array(x.length);
    if (to - from === 1) { // an area of one step would have no width
      this.bar(g, lines, from);
      return;
    }
    for (const line of lines) {
      g.fillStyle = colour(line.item.index);
      g.globalAlpha = 0.75;
      g.beginPath();
      for (let i = from; i < to; i++) g.lineTo(this.px(x[i]), this.py(below[i] + (line.y[i] || 0)));
      for (let i = to - 1; i >= from; i--) g.lineTo(this.px(x[i]), this.py(below[i]));
      g.fill();
      g.globalAlpha = 1;
      for (let i = from; i < to; i++) below[i] += line.y[i] || 0;
    }
  }

  // Draws the values of a single step as a bar.
  bar(g, lines, at) {
    const middle = this.px(lines[0].x[at]);
    let below = 0;
    g.globalAlpha = 0.75;
    for (const line of lines) {
      const value = line.y[at] || 0;
      g.fillStyle = colour(line.item.index);
      g.fillRect(middle - 20, this.py(below + value), 40, this.py(below) - this.py(below + value));
      below += value;
    }
    g.globalAlpha = 1;
  }

  cursor(g) {
    this.output.textContent = "";
    if (this.drag) {
      g.fillStyle = css("--accent");
      g.globalAlpha = 0.15;
      const a = this.px(this.drag[0]), b = this.px(this.drag[1]);
      g.fillRect(Math.min(a, b), this.top, Math.abs(b - a), this.h);
      g.globalAlpha = 1;
    }
    if (state.cursor === null || state.cursor < this.x.low || state.cursor > this.x.high) return;
    const x = Math.round(this.px(state.cursor)) + 0.5;
    g.strokeStyle = css("--soft");
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x, this.top);
    g.lineTo(x, this.top + this.h);
    g.stroke();
    const parts = [state.byTime ? duration(state.cursor) : "step " + Math.round(state.cursor).toLocaleString("en")];
    for (const line of this.drawn) {
      const at = nearest(line.x, state.cursor);
      if (at < 0 || !Number.isFinite(line.y[at])) continue;
      const range = line.level.min && state.smooth === 0
        ? ` (${short(line.level.min[at])} to ${short(line.level.max[at])})` : "";
      parts.push(`${line.item.label} ${short(line.y[at])}${range}`);
      if (this.options.stacked) continue;
      g.fillStyle = colour(line.item.index);
      g.beginPath();
      g.arc(this.px(line.x[at]), this.py(line.y[at]), 4, 0, 7);
      g.fill();
    }
    this.output.textContent = parts.join("  ·  ");
  }

  describe(lines) {
    const parts = lines.map((line) => {
      const first = line.y[line.from], last = line.y[line.to - 1];
      return `${line.item.label} from ${short(first)} to ${short(last)}`;
    });
    this.canvas.setAttribute("aria-label", `${this.title}. ${parts.join("; ")}. Arrow keys read values, ` +
      "plus and minus zoom, Escape shows everything.");
  }

  // Fills the table with at most 40 of the points that are shown.
  fill(open) {
    this.table.textContent = "";
    if (!open || !this.drawn || this.drawn.length === 0) return;
    const first = this.drawn[0];
    const every = Math.max(1, Math.ceil((first.to - first.from) / 40));
    const rows = [];
    for (let i = first.from; i < first.to; i += every) {
      rows.push(make("tr", {}, make("td", { className: "n" }, state.byTime ? duration(first.x[i])
                                                                 : first.x[i].toLocaleString("en")),
        ...this.drawn.map((line) => {
          const at = nearest(line.x, first.x[i]);
          return make("td", { className: "n" }, at < 0 ? "" : short(line.y[at]));
        })));
    }
    this.table.append(make("table", {},
      make("thead", {}, make("tr", {}, make("th", { className: "n", scope: "col" }, state.byTime ? "time" : "step"),
        ...this.drawn.map((line) => make("th", { className: "n", scope: "col" }, line.item.label)))),
      make("tbody", {}, ...rows)));
  }
}

function nearest(list, value) {
  const at = search(list, value);
  if (at === 0) return list.length > 0 ? 0 : -1;
  if (at === list.length) return at - 1;
  return list[at] - value < value - list[at - 1] ? at : at - 1;
}

// Charts out of sight are drawn when they come into sight.
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.find((one) => one.canvas === entry.target);
    if (chart === undefined) continue;
    chart.inSight = entry.isIntersecting;
    if (chart.inSight && chart.stale) draw(chart);
  }
}, { rootMargin: "200px" });

function register(chart) {
  chart.stale = true;
  charts.push(chart);
  sight.observe(chart.canvas);
}

function draw(chart) {
  chart.stale = false;
  chart.draw();
}

let pending = false;

function redraw() {
  for (const chart of charts) chart.stale = true;
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    for (const chart of charts) if (chart.inSight) draw(chart);
  });
}

function point(value) {
  state.cursor = value;
  redraw();
}

function zoom(range) {
  state.range = range;
  redraw();
}

// ---- Events ----------------------------------------------------------------------------------

// Returns the step of an event.  A loss within a step is logged with the number of the step before,
// which was complete.
function stepOf(line) {
  return (line.step || 0) + (line.membership && line.membership.unfinished > 0 ? 1 : 0);
}

// Returns losses and entries of workers of some runs, and where they part from the first one.
function milestones(list) {
  const out = [];
  for (const run of list)
    for (const line of run.events) {
      const change = line.membership;
      if (!change) continue;
      if ((change.lost || change.left || []).length > 0) out.push({ step: stepOf(line), colour: "--bad", down: true });
      if ((change.entered || []).length > 0) out.push({ step: stepOf(line), colour: "--good", down: false });
    }
  for (const part of data.parts)
    if (!part.equal && !part.ends && part.step !== null && list.includes(runs[part.b]))
      out.push({ step: part.step, colour: "--ink", down: true });
  return out;
}

// Describes an event in words; returns null for those that are shown elsewhere.
function eventText(line) {
  if (line.membership) return membershipText(line.membership);
  if (line.rebalance) {
    const shares = (line.rebalance.shares || [])
      .map((share) => `rank ${share.rank}: ${share.virtual_workers}`).join(", ");
    return ["moved", `${plural(line.rebalance.moved, "virtual worker")} moved; now ${shares}`];
  }
  if (line.straggler) {
    const one = line.straggler;
    const who = one.hosts ? `host ${one.hosts.join(" and ")}` : `rank ${one.rank}`;
    return ["slow", `${who} was ${short(one.times_median || one.times_others)} times as slow as ` +
      `the others; cause: ${text(one.cause)}`];
  }
  if (line.audit)
    return ["audit", `virtual worker ${line.audit.virtual_worker} came out differently (${text(line.audit.what)}) on ranks ` +
      `${(line.audit.ranks || []).join(", ")}`];
  if (line.checkpoint !== undefined)
    return ["checkpoint", line.error ? `step ${line.checkpoint} was not written: ${text(line.error)}`
      : `step ${line.checkpoint}; the run waited ${short(line.stall_ms)} ms`];
  if (line.freeze_step !== undefined) return ["frozen", `the second moment, after step ${line.freeze_step}`];
  if (line.config) return ["start", startText(line)];
  return ["other", text(Object.fromEntries(Object.entries(line).filter(([key]) => key !== "step")))];
}

function startText(line) {
  const hosts = new Set((line.ranks || []).map((rank) => rank.hostname).filter(Boolean));
  const parts = [];
  if (line.lockstep) parts.push(`lockstep ${text(line.lockstep)}`);
  if (line.ranks) parts.push(`${plural(line.ranks.length, "worker")}${hosts.size > 0 ? " on " + [...hosts].join(", ") : ""}`);
  if (line.exactness_id) parts.push(`exactness id ${text(line.exactness_id)}`);
  return parts.join("; ") || "a run begins";
}

function membershipText(change) {
  const parts = [];
  if ((change.lost || []).length > 0) parts.push(`rank ${change.lost.join(", ")} was lost`);
  if ((change.left || []).length > 0) parts.push(`rank ${change.left.join(", ")} left on request`);
  if ((change.entered || []).length > 0) parts.push(`rank ${change.entered.join(", ")} entered`);
  if (change.cause) parts.push(text(change.cause));
  parts.push(`now ${plural(change.workers, "worker")}`);
  if (change.unfinished !== undefined) parts.push(`${plural(change.unfinished, "virtual worker")} computed again`);
  if (change.ms !== undefined) parts.push(`${short(change.ms)} ms`);
  const kind = (change.lost || []).length > 0 ? "lost" : (change.left || []).length > 0 ? "left" : "entered";
  return [kind, parts.join("; ")];
}

// ---- Sections --------------------------------------------------------------------------------

function section(id, title, ...children) {
  return make("section", { "aria-labelledby": id }, make("h2", { id }, title), ...children);
}

function table(heads, rows, numeric) {
  const kind = (i) => ((numeric || []).includes(i) ? "n" : "");
  return make("div", { className: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", className: kind(i) }, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", { className: row.kind || "" },
      ...row.cells.map((cell, i) => (cell instanceof Element && cell.tagName === "TD") ? cell
        : make("td", { className: kind(i) }, cell)))))));
}

function hash(value) {
  return value ? make("code", { title: value }, value.slice(0, 12)) : "";
}

function overview() {
  const rows = runs.map((run) => {
    const box = make("input", { type: "checkbox", checked: !state.hidden.has(run.path),
                                "aria-label": `Show ${run.path}` });
    box.addEventListener("change", () => {
      if (box.checked) state.hidden.delete(run.path);
      else state.hidden.add(run.path);
      redraw();
    });
    const loss = run.find("loss"), validation = run.find("val_loss");
    return { cells: [box, swatch(run.index), run.path,
      run.rows > 0 ? run.last_step.toLocaleString("en") : "none",
      loss ? short(loss.last()) : "", validation ? short(validation.last()) : "",
      validation ? short(validation.least()) : "", run.label,
      run.last ? "complete" : run.rows > 0 ? "not complete" : "empty", hash(run.last && run.last.weights)] };
  });
  return section("runs", "Runs", table(["Show", "", "Run", "Step", "Loss", "Validation", "Best", "Label", "State", "Weights"],
                                       rows, [3, 4, 5, 6]), partings());
}

// Tells where each run parts from the first one.
function partings() {
  if (data.parts.length === 0) return null;
  const rows = data.parts.map((part) => ({ cells: [swatch(part.b), runs[part.b].path,
    make("td", { className: "wrap" + (part.equal ? " good" : "") }, partingText(part))] }));
  return make("div", {}, make("p", { className: "soft small" }, `Compared with ${runs[0].path}, bit for bit, ` +
    "in all values that configuration, seed and data decide:"), table(["", "Run", ""], rows));
}

function partingText(part) {
  if (part.equal) return "equal";
  if (part.step === null && part.lost > 0) return `no difference, but ${part.lost} values were not compared`;
  if (part.step === null) return "no value in common";
  const step = part.step.toLocaleString("en");
  return part.ends ? `equal up to step ${step}, where one of them ends`
    : `parts in step ${step}: ${part.name} is ${part.y || "missing"} instead of ${part.x || "missing"}`;
}

function items(...names) {
  return runs.map((run) => ({ series: run.find(...names), index: run.index, label: run.path }))
    .filter((item) => item.series !== null);
}

function chartOf(list, title, names, options) {
  const found = items(...names);
  if (found.length > 0) list.push(new Chart(title, found, options));
  return found.length > 0;
}

const LOSS = { log: () => state.logLoss };
const USED = new Set(["loss", "val_loss", "val_accuracy", "val_perplexity", "lr", "grad_norm", "tokens_per_s", "samples_per_s",
  "step_ms", "seconds", "data_ms", "compute_ms", "finish_ms", "offload_stall_ms", "message_bytes", "gradient_bytes",
  "staleness_mean", "staleness_max", "waited_ms", "late", "time", "val_count", "val_hits", "epoch", "checkpoint", "stall_ms", "write_ms", "version", "groups"]);

function curves(missing) {
  const list = [];
  if (!chartOf(list, "Training loss", ["loss"], { wide: true, ...LOSS })) missing.push("losses");
  if (!chartOf(list, "Validation loss", ["val_loss"], { marks: true, ...LOSS })) missing.push("validation");
  chartOf(list, "Validation accuracy", ["val_accuracy"], { marks: true });
  chartOf(list, "Validation perplexity", ["val_perplexity"], { marks: true, ...LOSS });
  chartOf(list, "Learning rate", ["lr"], { zero: true });
  chartOf(list, "Gradient norm", ["grad_norm"], { log: () => state.logLoss });
  return list.length === 0 ? null : section("curves", "Curves", make("div", { className: "grid" },
    ...list.map((chart) => chart.element)));
}

// Makes a series of the part of a step that is in none of the measured parts.
function rest(total, parts) {
  const levels = total.levels.map((level, n) => Object.assign({}, level, {
    min: null, max: null,
    mean: level.mean.map((value, i) => Math.max(0, parts.reduce((left, part) => left - part.levels[n].mean[i], value))),
  }));
  const series = Object.create(Series.prototype);
  return Object.assign(series, { run: total.run, name: "other", levels });
}

function partsOf(run) {
  const total = run.find("step_ms");
  const found = ["data_ms", "compute_ms", "finish_ms"].map((name) => run.find(name))
    .filter((one) => one !== null && total !== null && one.levels.length === total.levels.length &&
                     one.levels[0].x === total.levels[0].x);
  if (found.length === 0) return null;
  const names = { data_ms: "waiting for data", compute_ms: "forward and backward",
                  finish_ms: "sums, waiting and update" };
  return [...found.map((series, i) => ({ series, index: i, label: names[series.name] })),
          { series: rest(total, found), index: 7, label: "everything else" }];
}

function times(missing) {
  const list = [], children = [];
  if (!chartOf(list, "Time of a step", ["step_ms"], { unit: "ms", zero: true }))
    chartOf(list, "Time of a step", ["seconds"], { unit: "s", zero: true });
  chartOf(list, "Throughput, tokens", ["tokens_per_s"], { unit: "tokens/s", zero: true }) ||
    chartOf(list, "Throughput, samples", ["samples_per_s"], { unit: "samples/s", zero: true });
  chartOf(list, "Waiting for the offload file", ["offload_stall_ms"], { unit: "ms", zero: true });
  const able = runs.filter((run) => partsOf(run) !== null);
  if (able.length === 0) missing.push("parts of a step");
  else list.push(partsChart(able, children));
  return list.length === 0 ? null : section("times", "Time", ...children,
    make("div", { className: "grid" }, ...list.map((chart) => chart.element)));
}

function partsChart(able, children) {
  const run = able[Math.min(state.parts, able.length - 1)];
  if (able.length > 1) {
    const select = make("select", {}, ...able.map((one, i) => make("option", { value: i, selected: one === run }, one.path)));
    select.addEventListener("change", () => {
      state.parts = Number(select.value);
      render();
      document.getElementById("times").scrollIntoView();
    });
    children.push(make("p", { className: "small" }, make("label", {}, "Parts of a step of ", select)));
  }
  return new Chart(`Parts of a step${runs.length > 1 ? " of " + run.path : ""}`, partsOf(run),
                   { unit: "ms", stacked: true, wide: true });
}

// ---- Workers ---------------------------------------------------------------------------------

// Returns who computes which virtual workers, from step to step: {step, shares}.
function deals(run) {
  const out = [];
  for (const line of run.events) {
    const start = line.config && Array.isArray(line.ranks) && line.ranks.every((rank) => rank.virtual_workers > 0);
    const change = line.membership || line.rebalance || (start ? { shares: line.ranks } : null);
    if (!change || !Array.isArray(change.shares)) continue;
    if (out.length === 0 && Array.isArray(change.before)) out.push({ step: run.first_step, shares: change.before });
    out.push({ step: stepOf(line), shares: change.shares });
  }
  return out;
}

// A picture of the virtual workers of a run: steps from left to right, a row for each virtual
// worker, the colour and number of the rank that computes it.
class Deal {
  constructor(run, list) {
    this.run = run;
    this.list = list;
    this.count = 1;
    for (const deal of list)
      for (const share of deal.shares)
        this.count = Math.max(this.count, share.first + (share.virtual_workers - 1) * (share.stride || 1) + 1);
    this.canvas = make("canvas", { role: "img", "aria-label":
      `Who computes which virtual worker of ${run.path}. The events below say the same in words.` });
    this.canvas.style.height = Math.min(24, Math.max(9, 4 + this.count * 1.1)) + "rem";
    this.element = make("figure", { className: "chart wide" }, make("div", { className: "top" },
      make("h3", {}, `Virtual workers and their ranks: ${run.path}`)), this.canvas);
    this.element.style.margin = 0;
    register(this);
  }

  draw() {
    const box = this.canvas.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(box.width * scale);
    this.canvas.height = Math.round(box.height * scale);
    const g = this.canvas.getContext("2d");
    g.scale(scale, scale);
    g.font = "12px " + getComputedStyle(document.body).fontFamily;
    const left = 58, right = 12, top = 8, height = (box.height - top - 38) / this.count;
    const axis = new Axis(...(state.range || [this.run.first_step, this.run.last_step]), false);
    const px = (step) => left + Math.min(1, Math.max(0, axis.place(step))) * (box.width - left - right);
    g.textBaseline = "middle";
    this.list.forEach((deal, i) => {
      const from = px(deal.step);
      const to = i + 1 < this.list.length ? px(this.list[i + 1].step) : px(this.run.last_step);
      if (to <= from) return;
      for (const share of deal.shares) this.share(g, share, from, to, top, height);
    });
    this.labels(g, axis, px, left, top, height, box);
  }

  share(g, share, from, to, top, height) {
    for (let i = 0; i < share.virtual_workers; i++) {
      const y = top + (share.first + i * (share.stride || 1)) * height;
      g.globalAlpha = 0.8;
      g.fillStyle = colour(share.rank);
      g.fillRect(from, y + 0.5, Math.max(1, to - from - 1), Math.max(1, height - 1));
      g.globalAlpha = 1;
      if (height < 12 || to - from < 60) continue;
      g.fillStyle = css("--paper");
      g.textAlign = "left";
      g.fillText("rank " + share.rank, from + 6, y + height / 2);
    }
  }

  labels(g, axis, px, left, top, height, box) {
    g.fillStyle = css("--soft");
    g.textAlign = "right";
    const every = Math.ceil(14 / height);
    for (let v = 0; v < this.count; v += every) g.fillText("v" + v, left - 8, top + (v + 0.5) * height);
    g.textAlign = "center";
    const bottom = top + this.count * height;
    for (const tick of axis.ticks(Math.max(2, Math.floor(box.width / 130)), true))
      g.fillText(tickText(tick), px(tick), bottom + 14);
    g.textAlign = "right";
    g.fillText("step", box.width - 12, bottom + 29);
  }
}

function workers(missing) {
  const children = [];
  const pictures = runs.filter((run) => run.all.length > 0) // without a step there is nothing to draw
    .map((run) => [run, deals(run)]).filter(([, list]) => list.length > 0)
    .map(([run, list]) => new Deal(run, list).element);
  for (const run of runs) {
    const ranks = run.all.filter((one) => one.name.startsWith("rank_ms["));
    if (ranks.length < 2) continue;
    pictures.push(new Chart(`Time of each rank for its virtual workers: ${run.path}`, ranks.map((series) => {
      const rank = Number(series.name.slice(8, -1));
      return { series, index: rank, label: "rank " + rank };
    }), { unit: "ms", zero: true, wide: true }).element);
  }
  if (pictures.length > 0) children.push(make("div", { className: "grid" }, ...pictures));
  else missing.push("virtual workers that move, losses and entries of workers");
  if (data.ranks.length > 0) children.push(rankTable());
  else missing.push("flight records (--flight DIR), which tell who waits for whom");
  return children.length === 0 ? null : section("workers", "Hosts and workers", ...children);
}

// Shows each rank's place in the run, and how often the others had to wait for it.
function rankTable() {
  const rows = data.ranks.map((rank) => ({ cells: [String(rank.rank), rank.host, String(rank.pid), rank.state,
    rank.step === null ? "" : rank.step.toLocaleString("en"), rank.phase,
    rank.met > 0 ? `${rank.last.toLocaleString("en")} of ${rank.met.toLocaleString("en")}` : "",
    rank.met > 0 ? short(rank.late_ms) : "", make("td", { className: "wrap" }, rank.failure || rank.problem)] }));
  return make("div", {}, make("p", { className: "small soft" },
    "From the flight records: a rank that was last is one for which the others waited."),
    table(["Rank", "Host", "Process", "State", "Step", "Phase", "Was last", "Others waited, ms", "Failure"], rows, [0, 2, 4, 6, 7]));
}

function traffic(missing) {
  const list = [];
  chartOf(list, "Bytes that a group sends in a step", ["message_bytes"], { unit: "bytes", zero: true });
  chartOf(list, "Bytes of a whole gradient", ["gradient_bytes"], { unit: "bytes", zero: true });
  if (list.length === 0) missing.push("bytes that were sent");
  return list.length === 0 ? null : section("bytes", "Bytes", make("div", { className: "grid" },
    ...list.map((chart) => chart.element)));
}

// Names the bins of staleness: 0, 1, 2 to 3, 4 to 7 and so on.
function binText(i, count) {
  if (i < 2) return String(i);
  return i === count - 1 ? `${2 ** (i - 1)} or more` : `${2 ** (i - 1)} to ${2 ** i - 1}`;
}

// Draws how many gradients had which staleness, as bars with numbers.
function staleness(missing) {
  const found = runs.filter((run) => run.staleness.length > 0);
  if (found.length === 0) return null;
  const list = [];
  chartOf(list, "Mean staleness", ["staleness_mean"], { zero: true });
  chartOf(list, "Largest staleness", ["staleness_max"], { zero: true });
  chartOf(list, "Time without a task, all workers, ms", ["waited_ms"], { zero: true });
  chartOf(list, "Late gradients that were dropped", ["late"], { zero: true });
  const tables = found.map((run) => {
    const sum = run.staleness.reduce((a, b) => a + b, 0) || 1;
    const used = run.staleness.reduce((last, count, i) => (count > 0 ? i : last), 0);
    return make("div", { className: "chart" }, make("h3", {}, "Staleness of gradients: " + run.path),
      table(["Versions behind", "Gradients", "", ""], run.staleness.slice(0, used + 1).map((count, i) => ({ cells: [
        binText(i, run.staleness.length), count.toLocaleString("en"), bar(count / sum, run.index),
        (100 * count / sum).toFixed(1) + " %"] })), [0, 1, 3]));
  });
  return section("staleness", "Staleness", make("div", { className: "grid" }, ...tables, ...list.map((chart) => chart.element)));
}

function bar(part, index) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("width", "160");
  svg.setAttribute("height", "12");
  svg.setAttribute("aria-hidden", "true");
  const box = document.createElementNS(NS, "rect");
  for (const [key, value] of Object.entries({ width: Math.max(1, 160 * part), height: 12, fill: colour(index) }))
    box.setAttribute(key, value);
  svg.append(box);
  return svg;
}

function others() {
  const names = new Set(runs.flatMap((run) => run.all.map((one) => one.name)).filter((name) => !USED.has(name) && !name.startsWith("rank_ms[")));
  const list = [];
  for (const name of names) chartOf(list, name, [name], {});
  return list.length === 0 ? null : section("others", "Other values", make("div", { className: "grid" },
    ...list.map((chart) => chart.element)));
}

// ---- Tables at the end -----------------------------------------------------------------------

function hashes(missing) {
  const steps = new Map();
  for (const run of runs) {
    for (const one of run.checkpoints) at(one.step)[run.index] = one.weights;
    if (run.last && run.last.weights) at(run.last_step)[run.index] = run.last.weights;
  }
  function at(step) {
    if (!steps.has(step)) steps.set(step, []);
    return steps.get(step);
  }
  if (steps.size === 0) {
    missing.push("hashes of weights");
    return null;
  }
  const rows = [...steps.entries()].sort((a, b) => a[0] - b[0]).map(([step, list]) => {
    const known = list.filter(Boolean);
    const equal = known.length < 2 ? "" : known.every((one) => one === known[0]) ? "equal" : "differ";
    return { cells: [step.toLocaleString("en"), ...runs.map((run) => hash(list[run.index])), equal] };
  });
  return section("hashes", "Hashes of the weights", table(["Step", ...runs.map((run) => run.path), ""], rows, [0]));
}

function eventList() {
  const rows = [];
  for (const run of runs)
    for (const line of run.events) {
      const found = eventText(line);
      if (found[1] !== "") rows.push({ step: stepOf(line), cells: [stepOf(line).toLocaleString("en"), run.path, found[0],
                                       make("td", { className: "wrap" }, found[1])] });
    }
  if (rows.length === 0) return null;
  rows.sort((a, b) => a.step - b.step);
  const lost = runs.reduce((sum, run) => sum + run.events_lost, 0);
  const more = Math.max(0, rows.length - 500) + lost;
  return section("events", "Events", table(["Step", "Run", "Event", ""], rows.slice(-500), [0]),
    more > 0 ? make("p", { className: "small soft" }, `${plural(more, "earlier event")} not shown.`) : null);
}

function configuration(missing) {
  const known = runs.filter((run) => run.config !== null);
  if (known.length === 0) {
    missing.push("the configuration");
    return null;
  }
  const keys = [...new Set(known.flatMap((run) => Object.keys(run.config)))];
  const cell = (run, key) => (run.config !== null && key in run.config ? text(run.config[key]) : "");
  const differs = (key) => new Set(known.map((run) => cell(run, key))).size > 1;
  const row = (key) => ({ kind: differs(key) ? "differs" : "", cells: [key, ...known.map((run) => cell(run, key))] });
  const heads = ["Option", ...known.map((run) => run.path)];
  const same = keys.filter((key) => !differs(key)), other = keys.filter(differs);
  return section("configuration", "Configuration",
    other.length > 0 ? table(heads, other.map(row)) : null,
    make("details", {}, make("summary", {}, other.length > 0 ? `${plural(same.length, "option")} are equal` : plural(same.length, "option")),
      table(heads, same.map(row))));
}

// ---- The page --------------------------------------------------------------------------------

function check(label, key, able) {
  const box = make("input", { type: "checkbox", checked: state[key], disabled: !able });
  box.addEventListener("change", () => {
    state[key] = box.checked;
    if (key === "byTime") state.range = state.cursor = null;
    redraw();
  });
  return make("label", {}, box, label);
}

function controls() {
  const slider = make("input", { type: "range", min: 0, max: 100, value: 100 * state.slider });
  slider.addEventListener("input", () => {
    state.slider = slider.value / 100;
    state.smooth = keepOf(state.slider);
    redraw();
  });
  const all = make("button", { type: "button" }, "Show all steps");
  all.addEventListener("click", () => zoom(null));
  return make("div", { className: "controls", role: "group", "aria-label": "How curves are drawn" },
    make("label", {}, "Smoothing", slider), check("Logarithmic values", "logLoss", true),
    check("Logarithmic steps", "logStep", true),
    check("Time instead of steps", "byTime", runs.length > 0 && runs.every((run) => run.find("time") !== null)), all,
    make("span", { className: "small soft" }, "Drag to zoom; arrow keys read values."));
}

function render() {
  const missing = [];
  const top = window.scrollY;
  sight.disconnect();
  charts = [];
  const main = document.getElementById("page");
  const empty = runs.every((run) => run.rows === 0);
  const parts = [overview(), empty ? null : controls(), curves(missing), times(missing), workers(missing), traffic(missing),
                 staleness(missing), others(), hashes(missing), eventList(), configuration(missing)];
  if (empty)
    parts.splice(1, 0, make("p", { className: "empty" }, "There is no step in " +
      (runs.length === 1 ? "this log" : "these logs") + " yet." + (data.live ? " This page follows the run." : "")));
  else if (missing.length > 0)
    parts.push(section("missing", "Not here", make("p", { className: "soft" }, `The logs do not have: ${missing.join("; ")}.`)));
  main.replaceChildren(...parts.filter((part) => part !== null));
  document.getElementById("made").textContent =
    `lockstep ${data.version}, ${new Date(1000 * data.made).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  window.scrollTo(0, top);
}

// Asks the server of `lockstep watch` for new data.
async function follow() {
  const status = document.getElementById("status");
  try {
    const answer = await fetch("data?version=" + data.number, { cache: "no-store" });
    if (answer.status === 200) {
      read(await answer.json());
      render();
    }
    status.textContent = answer.ok ? "following" : "the server answers " + answer.status;
    status.className = answer.ok ? "good" : "bad";
  } catch (error) {
    status.textContent = "the server has ended; this is the last state";
    status.className = "bad";
  }
  setTimeout(follow, 2000);
}

function start() {
  read(JSON.parse(document.getElementById("data").textContent));
  render();
  new ResizeObserver(redraw).observe(document.getElementById("page"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  if (data.live) setTimeout(follow, 2000);
}

start();
