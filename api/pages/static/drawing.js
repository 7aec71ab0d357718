// Draws what stands on a plot: curves, marks, lines, spans. Once for a canvas, once as SVG; both from the same paths.
import { colour } from "./colours.js";

/** Pixels above the curves for marks. */
export const LANE = 16;

/** What each kind of mark looks like; `at` is its place in pixels from the top or, if negative, from the bottom. */
const MARKS = {
  decision: { shape: "triangle", at: -1, size: 5, colour: "--ink" },
  annotation: { shape: "diamond", at: -1, size: 4, colour: "--note" },
  epoch: { shape: "tick", at: 3, size: 3, colour: "--faint" },
  save: { shape: "tick", at: -4, size: 3, colour: "--faint" },
  phase: { shape: "square", at: -10, size: 2.5, colour: "--faint" },
  fewer: { shape: "square", at: -10, size: 2.5, colour: "--faint" },
  gap: { shape: "cross", at: -18, size: 3.5, colour: "--stop" },
};

const SHAPES = {
  triangle: (path, x, y, size) => polygon(path, [[x - size, y - 2 * size], [x + size, y - 2 * size], [x, y]]),
  diamond: (path, x, y, size) => polygon(path, [[x, y - 2 * size], [x + size, y - size], [x, y], [x - size, y - size]]),
  square: (path, x, y, size) => polygon(path, [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]]),
  tick: (path, x, y, size) => strokes(path, [[x, y - size, x, y + size]]),
  cross: (path, x, y, size) => strokes(path, [[x - size, y - size, x + size, y + size], [x - size, y + size, x + size, y - size]]),
};

/** Shapes of lines alone. */
const OPEN = new Set(["tick", "cross"]);

function polygon(path, corners) {
  corners.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
  path.closePath();
}

function strokes(path, lines) {
  for (const [x, y, toX, toY] of lines) {
    path.moveTo(x, y);
    path.lineTo(toX, toY);
  }
}

/** Draws on a canvas. */
export const canvasPen = (context) => ({
  path: () => new Path2D(),
  within(box, call) {
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
    call();
    context.restore();
  },
  stroke(path, { colour, width, dash = [], opacity = 1 }) {
    Object.assign(context, { strokeStyle: colour, lineWidth: width, globalAlpha: opacity, lineJoin: "round" });
    context.setLineDash(dash);
    context.stroke(path);
    context.globalAlpha = 1;
  },
  fill(path, { colour, opacity = 1 }) {
    Object.assign(context, { fillStyle: colour, globalAlpha: opacity });
    context.fill(path);
    context.globalAlpha = 1;
  },
});

const rounded = (value) => Math.round(10 * value) / 10;

/** A path as the text of an SVG path. */
class SvgPath {
  parts = [];
  moveTo = (x, y) => this.parts.push(`M${rounded(x)} ${rounded(y)}`);
  lineTo = (x, y) => this.parts.push(`L${rounded(x)} ${rounded(y)}`);
  closePath = () => this.parts.push("Z");
  arc(x, y, radius) {
    const [left, right] = [rounded(x - radius), rounded(x + radius)];
    this.parts.push(`M${left} ${rounded(y)}A${radius} ${radius} 0 1 0 ${right} ${rounded(y)}A${radius} ${radius} 0 1 0 ${left} ${rounded(y)}Z`);
  }
  toString = () => this.parts.join("");
}

const SVG = "http://www.w3.org/2000/svg";

export function svgElement(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

let clips = 0;

/** Draws into an SVG element. */
function svgPen(root) {
  let place = root;
  return {
    path: () => new SvgPath(),
    within(box, call) {
      const id = `clip-${++clips}`;
      const { left: x, top: y, width, height } = box;
      root.append(svgElement("clipPath", { id }, svgElement("rect", { x, y, width, height })));
      place = svgElement("g", { "clip-path": `url(#${id})` });
      root.append(place);
      call();
      place = root;
    },
    stroke: (path, { colour, width, dash = [], opacity = 1 }) =>
      place.append(svgElement("path", { d: path, fill: "none", stroke: colour, "stroke-width": width, "stroke-linejoin": "round", opacity, ...(dash.length ? { "stroke-dasharray": dash.join(" ") } : {}) })),
    fill: (path, { colour, opacity = 1 }) => place.append(svgElement("path", { d: path, fill: colour, opacity })),
    text: (x, y, text, anchor, more = {}) => place.append(svgElement("text", { x: rounded(x), y: rounded(y), "text-anchor": anchor, fill: colour("--faint"), ...more }, text)),
  };
}

/** Where values are in a box: functions of x and of y, linear or logarithmic. */
export function frameOf(box, { xs, ys, isLogX, isLog }, scale = 1) {
  const along = (from, to, isLog, start, length) => {
    const [low, high] = isLog ? [Math.log10(from), Math.log10(to)] : [from, to];
    const factor = length / (high - low || 1);
    return isLog ? (value) => start + (Math.log10(value) - low) * factor : (value) => start + (value - low) * factor;
  };
  return { ...box, scale, x: along(...xs, isLogX, box.left, box.width), y: along(...ys, isLog, box.top + box.height, -box.height) };
}

/** Longer lines than this beyond the box are cut: a canvas loses precision far outside of it. */
const FAR = 1e5;

/** Add a curve to a path: a line between neighbours that are both there. A value alone is a short dash. */
export function traceCurve(path, xs, ys, frame, { isLog, isLogX }) {
  let isDown = false;
  for (let index = 0; index < xs.length; index += 1) {
    const value = ys[index];
    if (!Number.isFinite(value) || (isLog && value <= 0) || (isLogX && xs[index] <= 0)) {
      isDown = false;
      continue;
    }
    const x = frame.x(xs[index]);
    const y = Math.max(-FAR, Math.min(FAR, frame.y(value)));
    if (isDown) path.lineTo(x, y);
    else {
      path.moveTo(x, y);
      if (!Number.isFinite(ys[index + 1])) path.lineTo(x + frame.scale, y);
    }
    isDown = true;
  }
}

/** Fill what is between two lines, piece by piece where both are there. */
function paintBand(pen, { xs, band: [low, high], colour }, frame, { isLog }) {
  const isThere = (index) => Number.isFinite(low[index]) && Number.isFinite(high[index]) && !(isLog && high[index] <= 0);
  const y = (value) => Math.max(-FAR, Math.min(FAR, isLog && value <= 0 ? FAR : frame.y(value)));
  const path = pen.path();
  for (let from = 0; from < xs.length; from += 1) {
    if (!isThere(from)) continue;
    let to = from;
    while (to + 1 < xs.length && isThere(to + 1)) to += 1;
    const places = Array.from({ length: to - from + 1 }, (_, index) => from + index);
    polygon(path, [...places.map((index) => [frame.x(xs[index]), y(high[index])]), ...places.reverse().map((index) => [frame.x(xs[index]), y(low[index])])]);
    from = to;
  }
  pen.fill(path, { colour, opacity: 0.16 });
}

/** Values of a curve that has a dot at each. */
const DOTTED = 60;

/** Values of a panel from which on its lines are one pixel wide: 100 noisy curves then take 43 ms to fill, at 1.4 pixels 870 ms. */
const DENSE = 2000;

function paintCurve(pen, curve, frame, view) {
  const { colour, width = 1.4, opacity = 1, dash = [] } = curve;
  const isDense = view.curves.reduce((sum, one) => sum + one.xs.length, 0) > DENSE;
  const style = { colour, width: isDense && !curve.band ? Math.min(1, width) : width * frame.scale, opacity, dash: dash.map((length) => length * frame.scale) };
  if (curve.smoothed) {
    const raw = pen.path();
    traceCurve(raw, curve.xs, curve.ys, frame, view);
    pen.stroke(raw, { ...style, width: frame.scale, opacity: 0.22 * opacity });
  }
  curve.path = pen.path();
  traceCurve(curve.path, curve.xs, curve.smoothed ?? curve.ys, frame, view);
  pen.stroke(curve.path, style);
  if (curve.xs.length > DOTTED || curve.isPlain) return;
  const dots = pen.path();
  curve.xs.forEach((x, index) => {
    const y = frame.y((curve.smoothed ?? curve.ys)[index]);
    if (Number.isFinite(y)) SHAPES.square(dots, frame.x(x), y, 1.6 * frame.scale);
  });
  pen.fill(dots, style);
}

function paintMarks(pen, marks, frame) {
  for (const [kind, alike] of Map.groupBy(marks, (mark) => mark.kind)) {
    const look = MARKS[kind];
    const bottom = frame.top + frame.height;
    for (const [shade, same] of Map.groupBy(alike, (mark) => mark.colour ?? colour(look.colour))) {
      const path = pen.path();
      for (const mark of same) {
        const y = look.at === -1 ? frame.top - frame.scale : look.at < 0 ? bottom + (look.at - (mark.lane ?? 0)) * frame.scale : frame.top + look.at * frame.scale;
        const x = frame.x(mark.x);
        if (x >= frame.left - 1 && x <= frame.left + frame.width + 1) SHAPES[look.shape](path, x, y, look.size * frame.scale);
      }
      if (OPEN.has(look.shape)) pen.stroke(path, { colour: shade, width: 1.3 * frame.scale });
      else pen.fill(path, { colour: shade });
    }
  }
}

/** Draw all that a view holds within a frame. */
export function paint(pen, view, frame) {
  const [top, bottom] = [frame.top, frame.top + frame.height];
  pen.within(frame, () => {
    for (const span of view.spans) {
      const path = pen.path();
      const [left, right] = [frame.x(span.from), frame.x(span.to)];
      polygon(path, [[left, top], [Math.max(right, left + frame.scale), top], [Math.max(right, left + frame.scale), bottom], [left, bottom]]);
      pen.fill(path, { colour: colour(span.colour) });
    }
    for (const line of view.lines) {
      const path = pen.path();
      strokes(path, [[frame.x(line.x), top, frame.x(line.x), bottom]]);
      pen.stroke(path, { colour: colour(line.colour), width: frame.scale, dash: (line.dash ?? [2, 3]).map((length) => length * frame.scale), opacity: 0.7 });
    }
    for (const curve of view.curves) if (curve.band) paintBand(pen, curve, frame, view);
    for (const curve of view.curves) paintCurve(pen, curve, frame, view);
    const rings = pen.path();
    let [before, above] = [-Infinity, -Infinity];
    for (const ring of view.rings) {
      const [x, place] = [frame.x(ring.x), frame.y(ring.y)];
      if (!Number.isFinite(place)) continue;
      // A ring of a value outside of the axis stands at its end.
      const y = Math.max(top + 4 * frame.scale, Math.min(bottom - 4 * frame.scale, place));
      // Rings over each other are a blot: the first stands for its neighbours.
      if (Math.hypot(x - before, y - above) < 7 * frame.scale) continue;
      [before, above] = [x, y];
      rings.moveTo(x + 4 * frame.scale, y);
      rings.arc(x, y, 4 * frame.scale, 0, 2 * Math.PI);
    }
    pen.stroke(rings, { colour: colour("--ink"), width: 1.6 * frame.scale });
  });
  paintMarks(pen, view.marks, frame);
}

/** Room around the curves of a picture, in pixels. */
const MARGINS = { left: 56, right: 14, top: 30 + LANE, bottom: 28 };

/** A whole picture: title, axes, curves, marks, and names of the curves. Read-only, and what is exported. */
export function toSvg(view, { width, height, title = "" }) {
  const names = view.curves.length > 1 && view.curves.length <= 24 ? view.curves : [];
  const perLine = Math.max(1, Math.floor((width - MARGINS.left) / 180));
  const below = 18 * Math.ceil(names.length / perLine);
  const top = title ? MARGINS.top : 6 + LANE;
  const box = { left: MARGINS.left, top, width: width - MARGINS.left - MARGINS.right, height: height - top - MARGINS.bottom };
  const root = svgElement("svg", { xmlns: SVG, viewBox: `0 0 ${width} ${height + below}`, width, height: height + below, "font-family": "system-ui, sans-serif", "font-size": 11 });
  const pen = svgPen(root);
  root.append(svgElement("rect", { width, height: height + below, fill: colour("--paper") }));
  if (title) pen.text(4, 18, title, "start", { fill: colour("--ink"), "font-size": 13, "font-weight": 600 });
  const frame = frameOf(box, view);
  const [across, up] = [view.ticks.x(box.width), view.ticks.y(box.height)];
  const grid = pen.path();
  for (const value of up.values) strokes(grid, [[box.left, frame.y(value), box.left + box.width, frame.y(value)]]);
  for (const value of across.values) strokes(grid, [[frame.x(value), box.top, frame.x(value), box.top + box.height]]);
  pen.stroke(grid, { colour: colour("--rule"), width: 1 });
  up.values.forEach((value, index) => pen.text(box.left - 6, frame.y(value) + 4, up.labels[index], "end"));
  across.values.forEach((value, index) => pen.text(frame.x(value), box.top + box.height + 17, across.labels[index], "middle"));
  paint(pen, view, frame);
  names.forEach((curve, index) => {
    const [x, y] = [MARGINS.left + 180 * (index % perLine), height + 12 + 18 * Math.floor(index / perLine)];
    root.append(svgElement("path", { d: `M${x} ${y - 4}h16`, stroke: curve.colour, "stroke-width": 3, "stroke-dasharray": (curve.dash ?? []).join(" ") || "none" }));
    pen.text(x + 20, y, curve.name.length > 24 ? `${curve.name.slice(0, 23)}…` : curve.name, "start", { fill: colour("--ink") });
  });
  return root;
}
