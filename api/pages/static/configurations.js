// Draws configurations against a result: parallel coordinates, a line for each run, and a scatter over one key.
import { colour, depthAt } from "./colours.js";
import { svgElement } from "./drawing.js";
import { element, root, shown } from "./dom.js";
import { valueTicks } from "./ticks.js";

/** Sizes in pixels. */
const HEIGHT = 280;
const ROOM = { top: 34, bottom: 22, left: 56, right: 56 };
const LEAST_GAP = 96;

/** How near to a line or point the pointer must be. */
const NEAR = 14;

/** A key whose greatest value is so many times its least, all above zero, has a logarithmic axis. */
const DECADES = 10;

/** Numbers of an axis that has a tick at each of them. */
const FEW = 6;

/** Labels of an axis of texts. */
const LABELS = 12;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** An axis over some values: where each is, from 0 to 1, null for a missing one; what is at a place; and its ticks. */
export function axisOf(name, title, values) {
  const known = values.filter((value) => !isMissing(value));
  const numbers = known.filter(isNumber);
  if (numbers.length && numbers.length === known.length) {
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const isLog = low > 0 && high / low >= DECADES;
    const along = isLog ? Math.log10 : (value) => value;
    const [from, to] = low === high ? [along(low) - 1, along(high) + 1] : [along(low), along(high)];
    const own = [...new Set(numbers)];
    const ticks = own.length <= FEW ? { values: own, labels: own.map(shown) } : valueTicks(low, high, HEIGHT - ROOM.top - ROOM.bottom, isLog);
    return {
      name, title: isLog ? `${title} (log)` : title, isLog, ends: [low, high],
      place: (value) => (isNumber(value) ? (along(value) - from) / (to - from) : null),
      at: (place) => (isLog ? 10 ** (from + place * (to - from)) : from + place * (to - from)),
      ticks: ticks.values.map((value, index) => [(along(value) - from) / (to - from), ticks.labels[index]]),
    };
  }
  const texts = [...new Set(known.map(textOf))].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  const placeAt = (index) => (texts.length > 1 ? index / (texts.length - 1) : 0.5);
  const every = Math.ceil(texts.length / LABELS);
  return {
    name, title, isLog: false, ends: null,
    place: (value) => (isMissing(value) ? null : placeAt(texts.indexOf(textOf(value)))),
    at: (place) => place,
    ticks: texts.map((text, index) => [placeAt(index), text.length > 14 ? `${text.slice(0, 13)}…` : text]).filter((_, index) => index % every === 0),
  };
}

/** A part of an axis as the address has it, and back. Numbers are values of the key; of texts, places. */
export const brushText = (axis, [from, to]) => [axis.name, ...[from, to].map((place) => Number(axis.at(place).toPrecision(6)))].join(":");

export function brushOf(text) {
  const [to, from, ...name] = text.split(":").reverse();
  return { name: name.reverse().join(":"), from: Number(from), to: Number(to) };
}

/** Whether a value is within a part of an axis. */
function isWithin(axis, value, { from, to }) {
  const place = axis.place(value);
  if (place === null) return false;
  const [low, high] = axis.ends ? [axis.place(from), axis.place(to)] : [from, to];
  return place >= low - 1e-4 && place <= high + 1e-4;
}

/** The drawings in an element. `asked` gives what they show, at each drawing anew; `events` are what the reader does. */
export class Configurations {
  constructor(places, asked, events) {
    Object.assign(this, { places, asked, events });
    this.tips = {};
    for (const [kind, place] of Object.entries(places)) {
      this.tips[kind] = element("div", { class: "tip", hidden: true });
      place.append(this.tips[kind]);
      place.addEventListener("pointermove", (event) => this.point(kind, event));
      place.addEventListener("pointerleave", () => this.embolden(null));
      place.addEventListener("click", (event) => this.choose(kind, event));
    }
    places.parallel.addEventListener("pointerdown", (event) => this.press(event));
    this.resizing = new ResizeObserver(() => this.draw());
    Object.values(places).forEach((place) => this.resizing.observe(place));
    document.addEventListener("themechange", () => this.draw());
  }

  /** Whether a run passes all brushes of a state. */
  passes(run, brushes) {
    return brushes.every((text) => {
      const brush = brushOf(text);
      const axis = this.axes?.find((one) => one.name === brush.name);
      return !axis || isWithin(axis, this.valueOf(run, axis.name), brush);
    });
  }

  valueOf(run, name) {
    return name === "" ? this.view.resultOf(run) : run.config[name];
  }

  /** Read what is to be shown. The axis of the result has an empty name and comes last. */
  read() {
    this.view = this.asked();
    const { runs, keys, result } = this.view;
    this.axes = [...keys.map((key) => axisOf(key, key, runs.map((run) => run.config[key]))), axisOf("", result, runs.map((run) => this.view.resultOf(run)))];
  }

  /** Draw what is known: not before the results are. */
  draw() {
    this.read();
    if (!this.view.isKnown || !this.places.parallel.clientWidth) return;
    this.drawParallel();
    this.drawScatter();
  }

  shadeOf(run) {
    const place = this.axes.at(-1).place(this.view.resultOf(run));
    return place === null ? colour("--faint") : depthAt(place);
  }

  /** The runs with those that pass last, so that they are drawn above the others; then the chosen one. */
  layered() {
    const { runs, isShown, chosen } = this.view;
    const rank = (run) => (run.id === chosen ? 2 : isShown(run) ? 1 : 0);
    return [...runs].sort((one, other) => rank(one) - rank(other));
  }

  picture(kind, width, label) {
    const svg = svgElement("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label, "font-size": 11 });
    this.places[kind].querySelector("svg")?.remove();
    this.places[kind].prepend(svg);
    return svg;
  }

  drawParallel() {
    const width = Math.max(this.places.parallel.parentElement.clientWidth, ROOM.left + ROOM.right + LEAST_GAP * (this.axes.length - 1));
    const gap = (width - ROOM.left - ROOM.right) / Math.max(1, this.axes.length - 1);
    const isAnyMissing = this.view.runs.some((run) => this.axes.some((axis) => axis.place(this.valueOf(run, axis.name)) === null));
    const [top, bottom] = [ROOM.top, HEIGHT - ROOM.bottom - (isAnyMissing ? 14 : 0)];
    this.across = this.axes.map((_, index) => ROOM.left + index * gap);
    this.up = (place) => (place === null ? HEIGHT - ROOM.bottom + 8 : bottom - place * (bottom - top));
    const { isShown, chosen, brushes } = this.view;
    const svg = this.picture("parallel", width, `Parallel coordinates of ${this.axes.map((axis) => axis.title).join(", ")}. The table has the same values.`);
    this.lines = this.layered().map((run) => {
      const ys = this.axes.map((axis) => this.up(axis.place(this.valueOf(run, axis.name))));
      const is = isShown(run);
      const path = svgElement("path", {
        d: ys.map((y, index) => `${index ? "L" : "M"}${this.across[index].toFixed(1)} ${y.toFixed(1)}`).join(""), fill: "none",
        stroke: is ? this.shadeOf(run) : colour("--rule"), "stroke-width": run.id === chosen ? 3 : 1.3, opacity: is ? 0.85 : 0.6, "data-line": run.id,
      });
      svg.append(path);
      return { run, ys, path };
    });
    this.axes.forEach((axis, index) => {
      const x = this.across[index];
      svg.append(svgElement("line", { x1: x, x2: x, y1: top, y2: bottom, stroke: colour("--faint"), "data-axis": axis.name }));
      svg.append(svgElement("rect", { class: "hit", x: x - NEAR, width: 2 * NEAR, y: top - 8, height: bottom - top + 16, fill: "transparent" }));
      const isEnd = index > 0 && index === this.axes.length - 1;
      const words = (at, y, text, more) => svgElement("text", { x: at, y, fill: colour("--faint"), stroke: colour("--paper"), "stroke-width": 3, "paint-order": "stroke", ...more }, text);
      svg.append(words(x, 14, axis.title.length > 18 ? `…${axis.title.slice(-17)}` : axis.title, { "text-anchor": index === 0 ? "start" : isEnd ? "end" : "middle", fill: colour("--ink"), "font-weight": axis.name === "" ? 600 : 400, ...(index === 0 ? { x: 4 } : isEnd ? { x: width - 4 } : {}) }));
      for (const [place, text] of axis.ticks) svg.append(words(x + (index === 0 ? -6 : 6), this.up(place) + 4, text, { "text-anchor": index === 0 ? "end" : "start" }));
      if (this.lines.some(({ ys }) => ys[index] > bottom)) svg.append(words(x + 6, HEIGHT - ROOM.bottom + 12, "none", {}));
      const brush = brushes.map(brushOf).find((one) => one.name === axis.name);
      if (!brush) return;
      const [low, high] = axis.ends ? [axis.place(brush.from), axis.place(brush.to)] : [brush.from, brush.to];
      svg.append(svgElement("rect", { x: x - 7, width: 14, y: this.up(high) - 2, height: Math.max(4, this.up(low) - this.up(high) + 4), fill: colour("--accent"), opacity: 0.28, "data-brush": axis.name }));
    });
  }

  drawScatter() {
    const { across, isShown, chosen, result } = this.view;
    const x = this.axes.find((axis) => axis.name === across) ?? axisOf(across, across, this.view.runs.map((run) => run.config[across]));
    const y = this.axes.at(-1);
    const width = Math.max(260, this.places.scatter.clientWidth);
    const [left, right, top, bottom] = [ROOM.left, width - 24, 22, HEIGHT - 36];
    const svg = this.picture("scatter", width, `${result} over ${x.title}. The table has the same values.`);
    const [atX, atY] = [(place) => left + 14 + place * (right - left - 28), (place) => bottom - 8 - place * (bottom - top - 16)];
    const words = (at, down, text, anchor, more = {}) => svg.append(svgElement("text", { x: at, y: down, "text-anchor": anchor, fill: colour("--faint"), ...more }, text));
    for (const [place, text] of y.ticks) {
      svg.append(svgElement("line", { x1: left, x2: right, y1: atY(place), y2: atY(place), stroke: colour("--rule") }));
      words(left - 6, atY(place) + 4, text, "end");
    }
    const most = Math.max(2, Math.floor((right - left) / 64));
    const every = Math.ceil(x.ticks.length / most);
    x.ticks.filter((_, index) => index % every === 0).forEach(([place, text]) => {
      svg.append(svgElement("line", { x1: atX(place), x2: atX(place), y1: top, y2: bottom, stroke: colour("--rule") }));
      words(atX(place), bottom + 15, text, "middle");
    });
    words(4, 14, result, "start", { fill: colour("--ink"), "font-weight": 600 });
    words((left + right) / 2, HEIGHT - 4, x.title, "middle", { fill: colour("--ink") });
    this.dots = this.layered().flatMap((run) => {
      const [over, value] = [x.place(run.config[across]), y.place(this.view.resultOf(run))];
      if (over === null || value === null) return [];
      const is = isShown(run);
      const dot = svgElement("circle", { cx: atX(over), cy: atY(value), r: run.id === chosen ? 6 : 4, fill: is ? this.shadeOf(run) : colour("--rule"), stroke: run.id === chosen ? colour("--ink") : colour("--paper"), "stroke-width": run.id === chosen ? 2 : 1, opacity: is ? 0.9 : 0.7, "data-dot": run.id });
      svg.append(dot);
      return [{ run, dot, x: atX(over), y: atY(value) }];
    });
  }

  // ---- Pointing and choosing ------------------------------------------------------------------------------------------

  /** The run at the pointer, among those that pass; null without one nearby. */
  runAt(kind, { clientX, clientY }) {
    const box = this.places[kind].querySelector("svg")?.getBoundingClientRect();
    if (!box) return null;
    const [x, y] = [clientX - box.left, clientY - box.top];
    let [best, least] = [null, NEAR];
    const offer = (run, distance) => this.view.isShown(run) && distance < least && ([best, least] = [run, distance]);
    if (kind === "scatter") this.dots.forEach((dot) => offer(dot.run, Math.hypot(dot.x - x, dot.y - y)));
    else {
      const index = Math.max(0, Math.min(this.across.length - 2, this.across.findLastIndex((at) => at <= x)));
      const share = (x - this.across[index]) / (this.across[index + 1] - this.across[index]);
      for (const { run, ys } of this.lines) offer(run, Math.abs(ys[index] + share * (ys[index + 1] - ys[index]) - y));
    }
    return best;
  }

  point(kind, event) {
    if (this.pressed) return this.pull(event);
    const run = this.runAt(kind, event);
    this.embolden(run);
    this.places[kind].classList.toggle("at", run !== null);
    if (!run) return;
    const tip = this.tips[kind];
    tip.replaceChildren(element("p", {}, element("b", {}, run.name)), ...this.factsOf(run).map(([name, value]) => element("p", {}, `${name} `, element("b", {}, value))));
    const box = this.places[kind].getBoundingClientRect();
    const [left, isRight] = [event.clientX - box.left, event.clientX - box.left < box.width / 2];
    Object.assign(tip.style, { left: isRight ? `${left + 16}px` : "auto", right: isRight ? "auto" : `${box.width - left + 16}px` });
    tip.hidden = false;
  }

  factsOf(run) {
    return this.axes.map((axis) => {
      const value = this.valueOf(run, axis.name);
      return [axis.name || this.view.result, isMissing(value) ? "none" : typeof value === "string" ? value : shown(value)];
    });
  }

  embolden(run) {
    Object.values(this.tips).forEach((tip) => (tip.hidden = true));
    for (const { run: own, path } of this.lines ?? []) path.setAttribute("stroke-width", own === run || own.id === this.view.chosen ? 3 : 1.3);
    for (const { run: own, dot } of this.dots ?? []) dot.setAttribute("r", own === run || own.id === this.view.chosen ? 6 : 4);
    this.events.onPoint(run);
  }

  choose(kind, event) {
    if (this.isPulled) return (this.isPulled = false);
    this.events.onChoose(this.runAt(kind, event));
  }

  /** What is known of the chosen run, with a link to it. */
  chosenFacts() {
    const run = this.view.runs.find((one) => one.id === this.view.chosen);
    if (!run) return [];
    const facts = this.factsOf(run).map(([name, value]) => `${name} ${value}`).join(", ");
    return [element("a", { href: `${root}/runs/${encodeURIComponent(run.id)}` }, run.name), ` ${facts}`];
  }

  // ---- Brushes --------------------------------------------------------------------------------------------------------

  /** Begin a brush where the pointer is on an axis. */
  press(event) {
    const box = this.places.parallel.querySelector("svg")?.getBoundingClientRect();
    if (!box) return;
    const index = this.across.findIndex((at) => Math.abs(at - (event.clientX - box.left)) < NEAR);
    if (index < 0 || event.button) return;
    event.preventDefault();
    this.pressed = { axis: this.axes[index], x: this.across[index], from: event.clientY - box.top, to: event.clientY - box.top };
    this.places.parallel.setPointerCapture(event.pointerId);
    this.places.parallel.addEventListener("pointerup", () => this.release(), { once: true });
  }

  pull(event) {
    const svg = this.places.parallel.querySelector("svg");
    this.pressed.to = event.clientY - svg.getBoundingClientRect().top;
    this.pressed.rect ??= svg.appendChild(svgElement("rect", { x: this.pressed.x - 7, width: 14, fill: colour("--accent"), opacity: 0.28 }));
    const { from, to, rect } = this.pressed;
    rect.setAttribute("y", Math.min(from, to));
    rect.setAttribute("height", Math.abs(to - from));
  }

  /** A pull sets the brush of its axis, a click on the axis removes it. */
  release() {
    const { axis, from, to } = this.pressed;
    this.pressed = null;
    const others = this.view.brushes.filter((text) => brushOf(text).name !== axis.name);
    const isPull = Math.abs(to - from) > 4;
    this.isPulled = isPull || others.length < this.view.brushes.length;
    const [bottom, top] = [this.up(0), this.up(1)];
    const place = (y) => Math.max(0, Math.min(1, (bottom - y) / (bottom - top)));
    if (isPull) this.events.onBrush([...others, brushText(axis, [place(Math.max(from, to)), place(Math.min(from, to))])]);
    else if (this.isPulled) this.events.onBrush(others);
  }
}
