// A panel of curves with marks, drawn by uPlot: axes, cursor and zoom are its own, what stands on them is drawing.js's.
import { element, isTouch, shown, toNumber } from "./dom.js";
import { colour, swatchOf } from "./colours.js";
import { canvasPen, frameOf, LANE, paint, toSvg, traceCurve } from "./drawing.js";
import { inWords, precisionOf } from "./spans.js";
import { placeTicks, valueTicks } from "./ticks.js";
import { momentInWords } from "./times.js";

/** Runs that the label at the cursor names, the nearest first. */
const NAMED = 10;

/** Texts of marks that the label shows, and how many pixels from the cursor a mark may be. */
const MARKED = 3;
const NEAR = 5;

/** Curves up to which none becomes faint when another is pointed at. */
const CLEAR = 3;

/** Curves from which on a few that leave the others behind do not stretch the axis. */
const MANY = 20;

/** An axis shows outliers, too, unless they would make it more than so many times as long. */
const STRETCH = 3;

/** Values of a curve that has no outliers: too few to say what is usual. */
const FEW = 20;

/** Curves that have a name each above the plot. */
const LEGEND = 12;

/** Rows of the table of values. */
const ROWS = 100;

const charts = new Set();

/** The chart that the reader points at; its cursor shows on all. */
let pointed = null;

// ---- Values -------------------------------------------------------------------------------------------------------

/** The place of the first of ascending values that is at least so much; their number if none is. */
function firstFrom(values, least) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Where a step lies on the axis of a series: between its neighbours, where it has no value there. */
export function placeOf(item, step) {
  const { step: steps, x } = item;
  if (!steps.length) return null;
  const after = Math.min(steps.length - 1, firstFrom(steps, step));
  if (after === 0 || steps[after] <= step) return x[after];
  const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return x[after - 1] + share * (x[after] - x[after - 1]);
}

/** Series without those that say again what an earlier one said: some loops report a value as two kinds of events. */
export function distinct(items) {
  if (items.length < 2) return items;
  const said = new Set();
  return items.filter((item) => {
    const says = JSON.stringify([item.run_id, item.metric, item.step, item.value]);
    return !said.has(says) && said.add(says);
  });
}

/** The values of a series that are not finite, as marks. */
export const gapsOf = (item, name = "") =>
  item.value.flatMap((value, index) =>
    Number.isFinite(toNumber(value)) ? [] : [{ kind: "gap", step: item.step[index], x: item.x[index], text: `${name}step ${shown(item.step[index])}: ${value}` }],
  );

/** Vertical lines are drawn for so many decisions at most, or for those alone that order the first stop. */
const MOST_LINES = 12;

/** Rings are drawn for so many decisions at most: more are not told apart. */
const MOST_RINGS = 40;

const words = (key) => key.split(/[^\w./-]+/);

/** The metrics, among known ones, that decisions read; the one that most of them read first. */
export function readBy(decisions, metrics) {
  const known = new Set(metrics);
  const counts = new Map();
  for (const decision of decisions) {
    for (const metric of new Set(Object.keys(decision.values ?? {}).flatMap(words))) if (known.has(metric)) counts.set(metric, (counts.get(metric) ?? 0) + 1);
  }
  return [...counts].sort((one, other) => other[1] - one[1]).map(([metric]) => metric);
}

/** Where decisions read the values of a series: at the value itself, else at the newest by then of an expression's metric. */
export function ringsOf(item, decisions) {
  const reads = (key) => words(key).includes(item.metric);
  const reading = decisions.filter((decision) => Object.keys(decision.values ?? {}).some(reads));
  if (reading.length > MOST_RINGS) return [];
  return reading.flatMap((decision) => {
    const own = decision.values[item.metric];
    const index = firstFrom(item.step, decision.step + 1) - 1;
    const y = toNumber(typeof own === "number" || typeof own === "string" ? own : item.value[index]);
    return item.step.length && decision.step >= item.step[0] && decision.step <= item.step.at(-1) ? [{ x: placeOf(item, decision.step), y }] : [];
  });
}

/** Lines at decisions and attempts, spans of annotations, and what a stop would have spared, placed by a series. */
export function standing(item, { decisions = [], attempts = [], annotations = [], spared = null }) {
  const line = (step, colour, dash) => (step === null || step === undefined || placeOf(item, step) === null ? [] : [{ x: placeOf(item, step), colour, dash }]);
  const span = (from, to, colour) => [{ from: placeOf(item, from), to: placeOf(item, to), colour }];
  const last = item.step.at(-1);
  const lined = decisions.length <= MOST_LINES ? decisions : decisions.filter((mark) => mark.isStop).slice(0, 1);
  return {
    lines: [
      ...lined.flatMap((mark) => line(mark.step, "--ink")),
      ...attempts.flatMap((attempt) => line(attempt.from_step, "--faint", [5, 4])),
    ],
    spans: [...annotations.flatMap((note) => span(note.step, note.last ?? note.step, "--span")), ...(spared !== null && spared < last ? span(spared, last, "--spared") : [])],
  };
}

/** A series of the API as a curve; `style` has its name, colour, width, dash, opacity, and a key that stays with it. */
export function curveOf(item, style = {}) {
  const smoothed = item.smoothed ? item.smoothed.map(toNumber) : null;
  return { key: `${item.run_id} ${item.metric} ${item.kind}`, name: item.metric, ...style, item, xs: item.x, ys: item.value.map(toNumber), steps: item.step, smoothed };
}

/** A value of a curve in words: what the curve says of it, else the number. */
const wordsOf = (curve, index, value) => curve.said?.(index) ?? shown(value);

/** The least and the greatest of what a curve shows between two places, outliers left out; null without a value. */
function endsOf(curve, [from, to], isLog, isWhole) {
  const shows = (value, index) => curve.xs[index] >= from && curve.xs[index] <= to && Number.isFinite(value) && !(isLog && value <= 0);
  const values = [curve.ys, ...(curve.band ?? [])].flatMap((line) => line.filter(shows));
  if (!values.length) return null;
  const [low, high] = extremesOf(values);
  const robust = curve.item.range;
  if (isWhole || isLog || !robust || values.length <= FEW) return [low, high];
  const [least, most] = extremesOf(mediansOf(values));
  const ends = [Math.max(low, Math.min(robust[0], least)), Math.min(high, Math.max(robust[1], most))];
  return high - low > STRETCH * (ends[1] - ends[0]) ? ends : [low, high];
}

const extremesOf = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Medians of neighbours. A spike is in none of them; the beginning of a training, where all values are high, is. */
function mediansOf(values) {
  const reach = Math.max(2, Math.ceil(values.length / 100));
  const medians = [];
  for (let place = 0; place < values.length; place += Math.ceil(reach / 2)) {
    const near = values.slice(Math.max(0, place - reach), place + reach + 1).sort((one, other) => one - other);
    medians.push(near[near.length >> 1]);
  }
  return medians;
}

const quantile = (values, share) => [...values].sort((one, other) => one - other)[Math.round(share * (values.length - 1))];

// ---- What is drawn ------------------------------------------------------------------------------------------------

const EMPTY = { curves: [], marks: [], lines: [], spans: [], rings: [], axis: "step", isLog: false, isLogX: false, zoom: [null, null], isWhole: false };

/** All that a picture holds: what was asked, the ends of both axes and their ticks, how many points are outside. */
function viewOf(asked) {
  const view = { ...EMPTY, ...asked };
  const filled = view.curves.filter((curve) => curve.xs.length);
  view.xs = spanOf(view, filled);
  view.ys = heightsOf(view, filled);
  view.outside = filled.reduce((sum, curve) => sum + outsideOf(curve, view), 0);
  view.ticks = { x: (width) => placeTicks(...view.xs, width, view.axis, view.isLogX), y: (height) => valueTicks(...view.ys, height, view.isLog) };
  return view;
}

/** The axis ends where the curves do, or where the reader zoomed to. A single place stands in the middle. */
function spanOf({ axis, zoom, isLogX }, curves) {
  let [from, to] = zoom;
  const places = (end) => curves.map((curve) => (axis === "metric" ? Math[end](...curve.xs) : curve.xs.at(end === "min" ? 0 : -1)));
  if (from === null) {
    [from, to] = curves.length ? [Math.min(...places("min")), Math.max(...places("max"))] : [0, 1];
    // Time is told from the beginning, which comes before the first value.
    if (axis === "elapsed" && from > 0 && from < to / 5 && !isLogX) from = 0;
  }
  if (isLogX && from <= 0) from = Math.min(1, to / 10);
  return from < to ? [from, to] : [from - 1, from + 1];
}

function heightsOf({ xs, isLog, isWhole }, curves) {
  const ends = curves.filter((curve) => !curve.isBehind).map((curve) => endsOf(curve, xs, isLog, isWhole)).filter(Boolean);
  if (!ends.length) return isLog ? [0.1, 1] : [0, 1];
  const within = (share) => [quantile(ends.map(([least]) => least), share), quantile(ends.map(([, most]) => most), 1 - share)];
  const [whole, most] = [within(0), within(0.05)];
  const isStretched = !isWhole && ends.length >= MANY && whole[1] - whole[0] > STRETCH * (most[1] - most[0]);
  const [low, high] = isStretched ? most : whole;
  // A constant is not drawn as if it were zero.
  if (low === high) return isLog ? [low / 3, low * 3] : [low - (Math.abs(low) / 2 || 1), high + (Math.abs(low) / 2 || 1)];
  const room = isLog ? (high / low) ** 0.04 : (high - low) * 0.04;
  return isLog ? [low / room, high * room] : [low - room, high + room];
}

function outsideOf(curve, { xs: [from, to], ys: [low, high], isLog }) {
  let count = 0;
  curve.ys.forEach((value, index) => {
    if (curve.xs[index] >= from && curve.xs[index] <= to && Number.isFinite(value) && (value < low || value > high) && !(isLog && value <= 0)) count += 1;
  });
  return count;
}

// ---- Charts -------------------------------------------------------------------------------------------------------

const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;

/** A place on an axis in words. */
function placeText(view, x, step) {
  const also = step === undefined || view.axis === "step" ? "" : `, step ${shown(step)}`;
  if (view.axis === "step") return `step ${shown(step ?? Math.round(x))}`;
  if (view.axis === "elapsed") return inWords(x, precisionOf(...view.xs)) + also;
  if (view.axis === "moment") return momentInWords(x, view.xs[1] - view.xs[0]) + also;
  return `${view.xName ?? view.axis} ${shown(Number(x.toPrecision(6)))}${also}`;
}

/** A panel of curves in an element whose height the style sheet has set. */
class Chart {
  /** The view that is drawn; null before the first. */
  view = null;

  constructor(place, { title = "", tools = null, legend = null, onZoom = () => {}, onPoint = () => {} } = {}) {
    Object.assign(this, { place, title, onZoom, onPoint, legend });
    this.hidden = new Set();
    this.tip = element("div", { class: "tip", hidden: true });
    this.said = element("p", { class: "hidden", "aria-live": "polite" });
    this.front = element("canvas", { class: "front", "aria-hidden": "true" });
    place.append(this.tip, this.said);
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.addEventListener("keydown", (event) => this.onKey(event));
    place.addEventListener("blur", () => this.leave());
    this.resizing = new ResizeObserver(() => this.onResize());
    this.resizing.observe(place);
    if (tools) tools.append(this.menu());
    place.chart = this; // For whoever has the element alone.
    charts.add(this);
  }

  /** Draw curves and what stands on them with the next frame. What the reader has hidden stays so. */
  draw(asked) {
    this.asked = asked;
    this.schedule();
  }

  /** Change some of what is asked, and draw. */
  change(changes) {
    if (this.asked) this.draw({ ...this.asked, ...changes });
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.asked) this.render();
    });
  }

  render() {
    const all = this.asked.curves;
    this.view = viewOf({ ...this.asked, curves: all.filter((curve) => !this.hidden.has(curve.key)) });
    this.place.dataset.curves = String(this.view.curves.length);
    this.place.setAttribute("aria-label", this.summary());
    this.showLegend(all);
    this.asked.onDrawn?.(this.view);
    if (!globalThis.uPlot) return this.showPicture();
    const kind = JSON.stringify([this.view.isLog, this.view.isLogX]);
    if (this.kind !== kind) this.begin(kind);
    else this.plot.setData(this.data());
  }

  /** A read-only picture, where the plotter is not installed. */
  showPicture() {
    const { clientWidth: width, clientHeight: height } = this.place;
    this.picture?.remove();
    this.picture = toSvg(this.view, { width: Math.max(240, width), height });
    this.place.prepend(this.picture);
  }

  data() {
    return [this.view.xs, this.heights()];
  }

  /** The ends of the axis of values for uPlot, which draws no axis of more than 17 digits: there, in units of the end. */
  heights() {
    const end = Math.max(...this.view.ys.map(Math.abs));
    this.unit = end < 1e15 ? 1 : end;
    return this.view.ys.map((value) => value / this.unit);
  }

  begin(kind) {
    this.plot?.destroy();
    this.kind = kind;
    const grid = { stroke: () => colour("--rule"), width: 1 };
    const axis = (more) => ({ stroke: () => colour("--faint"), font: font(), grid, ticks: { show: false }, filter: (_, splits) => splits, ...more });
    const sized = () => ({ width: Math.max(200, this.place.clientWidth), height: this.place.clientHeight });
    const options = {
      ...sized(),
      padding: [LANE, 22, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, distr: this.view.isLogX ? 3 : 1, range: () => this.view.xs },
        y: { distr: this.view.isLog ? 3 : 1, range: () => this.heights() },
      },
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [
        axis({ size: 26, gap: 6, splits: () => this.across().values, values: () => this.across().labels }),
        axis({ size: (_, labels) => Math.max(52, ...(labels ?? []).map((label) => 14 + 6.2 * label.length)), gap: 6, splits: () => this.up().values.map((value) => value / this.unit), values: () => this.up().labels }),
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        sync: { key: "steptape", scales: ["x", null], setSeries: false },
        bind: { dblclick: () => () => (this.onZoom(null, null), null) },
      },
      hooks: {
        draw: [() => this.paint()],
        setCursor: [() => this.point()],
        setSelect: [(plot) => this.select(plot)],
      },
    };
    this.plot = new globalThis.uPlot(options, this.data(), (plot, begin) => {
      this.place.prepend(plot.root);
      begin();
    });
    this.plot.over.append(this.front);
    this.take(this.plot.over);
  }

  across() {
    return this.view.ticks.x(this.plot.bbox.width / devicePixelRatio || 600);
  }

  up() {
    return this.view.ticks.y(this.plot.bbox.height / devicePixelRatio || 190);
  }

  frameNow() {
    return frameOf(this.plot.bbox, this.view, globalThis.uPlot.pxRatio);
  }

  paint() {
    paint(canvasPen(this.plot.ctx), this.view, this.frameNow());
    this.bold = null;
  }

  onResize() {
    if (!this.view || !this.place.clientWidth) return;
    if (!this.plot) this.schedule();
    else this.plot.setSize({ width: this.place.clientWidth, height: this.place.clientHeight });
  }

  // ---- Zoom ---------------------------------------------------------------------------------------------------------

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  /** Show less or more around a place; the ends stay within the curves. */
  zoomBy(factor, left = this.plot.cursor.left ?? 0) {
    const [from, to] = [left - left * factor, left + (this.plot.over.clientWidth - left) * factor];
    if (to - from < 1e9) this.onZoom(...[from, to].map((at) => this.plot.posToVal(at, "x")));
  }

  // ---- Pointing -----------------------------------------------------------------------------------------------------

  take(over) {
    over.addEventListener("mouseenter", () => (pointed = this));
    over.addEventListener("mouseleave", () => this.leave());
    over.addEventListener("click", () => this.at?.step !== undefined && this.onPoint(this.at.step, true));
    const fingers = new Map();
    const move = (event) => {
      if (event.pointerType !== "touch") return;
      const box = over.getBoundingClientRect();
      if (event.type === "pointerdown") fingers.set(event.pointerId, { from: event.clientX - box.left });
      const finger = fingers.get(event.pointerId);
      if (!finger) return;
      finger.to = event.clientX - box.left;
      pointed = this;
      if (fingers.size === 1) this.plot.setCursor({ left: finger.to, top: event.clientY - box.top });
    };
    const end = (event) => {
      const [one, other] = fingers.size === 2 ? [...fingers.values()] : [];
      if (one && event.type === "pointerup") this.pinch(one, other);
      if (one) fingers.clear();
      else fingers.delete(event.pointerId);
    };
    for (const type of ["pointerdown", "pointermove"]) over.addEventListener(type, move);
    for (const type of ["pointerup", "pointercancel"]) over.addEventListener(type, end);
  }

  /** What was between two fingers is between them still. */
  pinch(one, other) {
    const before = Math.abs(one.from - other.from);
    const after = Math.abs(one.to - other.to);
    if (Math.abs(before - after) < 12 || !after) return;
    this.zoomBy(before / after, (one.from + other.from) / 2);
  }

  leave() {
    if (pointed === this) pointed = null;
    this.tip.hidden = true;
    this.embolden(null);
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  /** The curves at the cursor, the nearest first: each with the index of its value there. */
  nearest(left, top) {
    const frame = frameOf({ left: 0, top: 0, width: this.plot.over.clientWidth, height: this.plot.over.clientHeight }, this.view);
    const x = this.plot.posToVal(left, "x");
    const found = [];
    for (const curve of this.view.curves) {
      const index = this.indexAt(curve, x, left, top, frame);
      if (index === null) continue;
      const value = (curve.smoothed ?? curve.ys)[index];
      const [dx, dy] = [frame.x(curve.xs[index]) - left, frame.y(value) - top];
      if (Math.abs(dx) > 40 || Number.isNaN(dy)) continue;
      found.push({ curve, index, value, distance: Math.hypot(this.view.axis === "metric" ? dx : 0, dy) });
    }
    return found.sort((one, other) => one.distance - other.distance);
  }

  indexAt({ xs, ys, smoothed }, x, left, top, frame) {
    if (!xs.length) return null;
    if (this.view.axis !== "metric") {
      const after = Math.min(xs.length - 1, firstFrom(xs, x));
      return after > 0 && x - xs[after - 1] < xs[after] - x ? after - 1 : after;
    }
    let [best, least] = [null, Infinity];
    xs.forEach((place, index) => {
      const distance = Math.hypot(frame.x(place) - left, frame.y((smoothed ?? ys)[index]) - top);
      if (distance < least) [best, least] = [index, distance];
    });
    return best;
  }

  /** What is at the cursor, as a label; on other charts there is the line alone. */
  point() {
    const { left, top } = this.plot.cursor;
    if (pointed !== this || !this.view || left === null || left < 0) {
      this.tip.hidden = true;
      return;
    }
    const near = this.nearest(left, top);
    const [first] = near;
    const x = first ? first.curve.xs[first.index] : this.plot.posToVal(left, "x");
    const step = first?.curve.steps[first.index];
    const frame = frameOf({ left: 0, top: 0, width: this.plot.over.clientWidth, height: 1 }, this.view);
    const marks = this.view.marks.filter((mark) => Math.abs(frame.x(mark.x) - left) <= NEAR);
    if (this.at?.step !== step && step !== undefined) this.onPoint(step, false);
    this.at = { x, step, index: first?.index };
    this.embolden(this.view.curves.length > 1 ? (first?.curve ?? null) : null);
    this.showTip(near, marks, left);
  }

  showTip(near, marks, left) {
    if (!near.length && !marks.length) {
      this.tip.hidden = true;
      return;
    }
    const isAlone = this.view.curves.length === 1;
    const rows = near.slice(0, NAMED).map(({ curve, value, index }) => {
      const raw = curve.smoothed ? ` (${shown(curve.ys[index])})` : "";
      return element("li", {}, swatchOf(curve), isAlone ? null : element("span", {}, curve.name), element("b", {}, wordsOf(curve, index, value) + raw));
    });
    const others = near.length > NAMED ? [element("li", { class: "faint" }, `${shown(near.length - NAMED)} more`)] : [];
    const texts = marks.slice(0, MARKED).map((mark) => element("p", {}, mark.text));
    const more = marks.length > MARKED ? [element("p", { class: "faint" }, `${shown(marks.length - MARKED)} more marks`)] : [];
    this.tip.replaceChildren(element("p", { class: "faint" }, placeText(this.view, this.at.x, this.at.step)), element("ul", {}, rows, others), ...texts, ...more);
    this.tip.hidden = false;
    const offset = this.plot.over.offsetLeft + left;
    const isRight = left < this.plot.over.clientWidth / 2;
    this.tip.style.left = isRight ? `${offset + 14}px` : "auto";
    this.tip.style.right = isRight ? "auto" : `${this.place.clientWidth - offset + 14}px`;
  }

  /** Draw one curve above the others, which become faint if they are many. */
  embolden(curve) {
    if (this.bold === curve || !this.plot) return;
    this.bold = curve;
    this.place.classList.toggle("dim", curve !== null && this.view.curves.length > CLEAR);
    const { front } = this;
    const { width, height } = this.plot.bbox;
    if (front.width !== width || front.height !== height) Object.assign(front, { width, height });
    const context = front.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (!curve) return;
    const pen = canvasPen(context);
    const frame = frameOf({ left: 0, top: 0, width, height }, this.view, globalThis.uPlot.pxRatio);
    const path = pen.path();
    traceCurve(path, curve.xs, curve.smoothed ?? curve.ys, frame, this.view);
    pen.stroke(path, { colour: curve.colour, width: 2.4 * frame.scale, dash: (curve.dash ?? []).map((length) => length * frame.scale) });
  }

  // ---- Keyboard and screen readers ----------------------------------------------------------------------------------

  onKey(event) {
    if (!this.plot || event.target !== this.place || event.ctrlKey || event.metaKey || event.altKey) return;
    const main = this.view.curves.reduce((best, curve) => (curve.xs.length > (best?.xs.length ?? 0) ? curve : best), null);
    if (!main) return;
    const last = main.xs.length - 1;
    const size = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const now = this.key ?? -1;
    const moves = { ArrowRight: Math.min(last, now + size), ArrowLeft: Math.max(0, now < 0 ? last : now - size), Home: 0, End: last };
    const zooms = { Enter: () => this.at?.step !== undefined && this.onPoint(this.at.step, true), "+": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), 0: () => this.onZoom(null, null), Escape: () => this.leave() };
    if (event.key in moves) this.moveTo(main, (this.key = moves[event.key]));
    else if (event.key in zooms) zooms[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveTo(curve, index) {
    const value = (curve.smoothed ?? curve.ys)[index];
    pointed = this;
    const top = Number.isFinite(value) ? this.plot.valToPos(value / this.unit, "y") : 0;
    this.plot.setCursor({ left: this.plot.valToPos(curve.xs[index], "x"), top });
    const values = this.nearest(this.plot.cursor.left, top).slice(0, NAMED).map((one) => `${one.curve.name} ${wordsOf(one.curve, one.index, one.value)}`);
    this.said.textContent = `${placeText(this.view, curve.xs[index], curve.steps[index])}: ${Number.isFinite(value) ? values.join(", ") : `${curve.name} ${value}`}`;
  }

  summary() {
    const { curves } = this.view;
    const what = curves.length === 1 ? `${curves[0].name}, ${shown(curves[0].item.n_raw)} values` : `${shown(curves.length)} curves`;
    return `${this.title ? `${this.title}: ` : ""}${what}. Arrow keys move the cursor, Enter chooses its point, + and - zoom, 0 shows all.`;
  }

  // ---- Legend, export, table ----------------------------------------------------------------------------------------

  /** Hide some curves by their keys, and no others. */
  hide(keys) {
    this.hidden = new Set(keys);
    this.schedule();
  }

  showLegend(all) {
    if (!this.legend || all.length < 2 || all.length > LEGEND) return this.legend?.replaceChildren();
    const buttons = all.map((curve) => {
      const press = (event) => {
        const others = all.filter((one) => one !== curve).map((one) => one.key);
        const isAlone = !this.hidden.has(curve.key) && others.every((key) => this.hidden.has(key));
        if (event.shiftKey || event.detail === 2) this.hide(isAlone ? [] : others);
        else this.hide(this.hidden.has(curve.key) ? [...this.hidden].filter((key) => key !== curve.key) : [...this.hidden, curve.key]);
      };
      return element("button", { type: "button", class: "quiet", "aria-pressed": String(!this.hidden.has(curve.key)), title: "Click: hide or show. Shift and click: this one alone", onclick: press }, swatchOf(curve), curve.label ?? curve.name);
    });
    const known = [...this.legend.querySelectorAll("button")];
    // A double click needs the same button twice.
    if (known.length === buttons.length && known.every((button, index) => button.textContent === buttons[index].textContent)) {
      known.forEach((button, index) => button.setAttribute("aria-pressed", buttons[index].getAttribute("aria-pressed")));
    } else this.legend.replaceChildren(...buttons);
  }

  menu() {
    const act = (text, call) => element("button", { type: "button", class: "quiet", onclick: () => this.view && call() }, text);
    const values = element("div");
    const box = element("details", { class: "menu" }, element("summary", { title: "Export, table of values", "aria-label": `Export and values of ${this.title}` }, "⋯"),
      element("div", {}, act("PNG", () => this.savePng()), act("SVG", () => save(this.svgFile(), `${this.title}.svg`)), act("CSV", () => save(this.csvFile(), `${this.title}.csv`)), act("Table", () => values.replaceChildren(this.values())), values));
    box.addEventListener("toggle", () => !box.open && values.replaceChildren());
    return box;
  }

  svgFile() {
    const svg = toSvg(this.view, { width: Math.max(640, this.place.clientWidth), height: Math.max(320, this.place.clientHeight), title: this.title });
    return new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
  }

  /** The picture at twice its size. */
  async savePng() {
    const picture = new Image();
    const address = URL.createObjectURL(this.svgFile());
    picture.src = address;
    await picture.decode();
    const canvas = element("canvas", { width: 2 * picture.width, height: 2 * picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(address);
    canvas.toBlob((blob) => save(blob, `${this.title}.png`));
  }

  /** The values that are drawn, a row each. */
  csvFile() {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text);
    const { axis, curves } = this.view;
    const groups = curves.filter(({ item }) => item.group !== undefined);
    const ofGroups = ["mean", "deviation", "count", "n_runs", "least", "greatest"];
    const head = groups.length ? ["group", "metric", "kind", axis, ...ofGroups] : ["run_id", "metric", "kind", "step", ...(axis === "step" ? [] : [axis]), "value"];
    const cellsOf = ({ item }, index) => groups.length
      ? [item.group, item.metric, item.kind, item.x[index], ...ofGroups.map((name) => (Array.isArray(item[name]) ? item[name][index] : item[name]))]
      : [item.run_id, item.metric, item.kind, item.step[index], ...(axis === "step" ? [] : [item.x[index]]), item.value[index]];
    const lines = (groups.length ? groups : curves).flatMap((curve) => curve.xs.map((_, index) => cellsOf(curve, index).map((cell) => quoted(cell ?? "")).join(",")));
    return new Blob([`${[head.join(","), ...lines].join("\n")}\n`], { type: "text/csv" });
  }

  /** Some values of each curve as a table. */
  values() {
    const rows = this.view.curves.slice(0, ROWS).flatMap((curve) => {
      const every = Math.max(1, Math.ceil((curve.xs.length * Math.min(this.view.curves.length, ROWS)) / ROWS));
      return curve.xs.map((x, index) => [curve, curve.steps[index] ?? x, index]).filter(([, , index]) => index % every === 0 || index === curve.xs.length - 1);
    });
    const { axis, xs } = this.view;
    const placed = (at) => (axis === "moment" ? momentInWords(at, xs[1] - xs[0]) : shown(at));
    const body = rows.map(([curve, step, index]) => element("tr", {}, element("td", { class: "left" }, curve.name), element("td", {}, placed(step)), element("td", {}, wordsOf(curve, index, curve.ys[index]))));
    const head = element("tr", {}, element("th", { class: "left" }, "curve"), element("th", {}, rows.every(([curve]) => curve.steps.length) ? "step" : (this.view.xName ?? axis)), element("th", {}, "value"));
    return element("div", { class: "scroll tall", tabindex: "0" }, element("table", {}, element("caption", { class: "hidden" }, `Values of ${this.title}`), element("thead", {}, head), element("tbody", {}, body)));
  }

  remove() {
    this.resizing.disconnect();
    this.plot?.destroy();
    this.place.replaceChildren();
    charts.delete(this);
  }
}

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replaceAll(/[/\\:*?"<>|]/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A chart in an element. `tools` is where its menu goes, `legend` where the names of its curves go. */
export const chart = (place, options) => new Chart(place, options);

/** How many points are outside, as a button that shows all, or those of the robust range again; null if there is none. */
export function outsideButton(view, isWhole, call) {
  if (!view.outside && !isWhole) return null;
  const text = isWhole ? "hide outliers" : `${shown(view.outside)} ${view.outside === 1 ? "point" : "points"} outside`;
  return element("button", { type: "button", class: "quiet outside", onclick: call }, text);
}

/** What to do with a mouse, or without. */
export const GESTURES = isTouch ? "touch to read, pinch to zoom, double tap to reset" : "drag to zoom, double-click to reset";

/** Say in a notice, once, how to get the plotter where it is missing. */
export function tellIfMissing(place) {
  if (globalThis.uPlot) return;
  const command = "python -m steptape.api.pages.plotter";
  place.prepend(element("p", { class: "notice" }, "The plotter was not installed with this server, so curves are pictures without a cursor or zoom. Run ", element("code", {}, command), " and restart the server."));
}

document.addEventListener("themechange", () => charts.forEach((one) => one.schedule()));
