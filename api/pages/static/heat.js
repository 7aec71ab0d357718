// Heat maps on a canvas: a grid of cells in, with axes, marks, a line of text for the cell under the pointer or cursor,
// and a zoom along the axis.
import { colour } from "./colours.js";
import { element, isTouch, shown } from "./dom.js";
import { inWords, precisionOf } from "./spans.js";
import { placeTicks } from "./ticks.js";

/** Pixels around the cells, as around curves; marks lie above them. */
const SIDES = { left: 52, right: 22, top: 16, bottom: 26 };

/** Pixels between two labels of rows, at least. */
const ROOM = 14;

/** Pixels that the pointer moves before a press becomes a zoom, and how near to a mark it must be to read it. */
const NEAR = 5;

/** Shades of the scale, and pixels from one stripe of the pattern to the next. */
const SHADES = 256;
const STRIPES = 6;

const stops = () => colour("--heat").split(",").map((text) => text.trim());

/** The channels of `#rgb` or `#rrggbb`. */
function channels(hex) {
  const digits = hex.length === 4 ? [...hex.slice(1)].map((digit) => digit + digit) : hex.slice(1).match(/../g);
  return digits.map((pair) => Number.parseInt(pair, 16));
}

/** Heat maps by their elements: what they show, where the cursor is, and how far the reader has zoomed. */
const maps = new Map();

/** The least and the greatest finite value of a grid, null without any; logarithmic if all of them are positive. */
export function scaleOf(rows) {
  let [low, high] = [Infinity, -Infinity];
  for (const row of rows) {
    for (const cell of row) {
      if (!Number.isFinite(cell?.value)) continue;
      low = Math.min(low, cell.value);
      high = Math.max(high, cell.value);
    }
  }
  return low <= high ? { low, high, isLog: low > 0 } : null;
}

/** What the colours mean, as parts of a caption: a bar between the ends of the scale, and the pattern if there is any. */
export function legendOf(rows) {
  const scale = scaleOf(rows);
  const brief = (value) => shown(Number(value.toPrecision(3)));
  const bar = element("i", { class: "scale" });
  bar.style.background = `linear-gradient(to right, ${stops().join(", ")})`;
  const colours = !scale ? [] : scale.low === scale.high ? [[brief(scale.low)]] : [[`${brief(scale.low)} `, bar, ` ${brief(scale.high)}${scale.isLog ? ", logarithmic" : ""}`]];
  return rows.some((row) => row.some((cell) => cell?.lost)) ? [...colours, [element("i", { class: "scale lost" }), " not finite"]] : colours;
}

/**
 * Draw or redraw a heat map in an element. `picture` has `x`, the middle of each column; `rows`, from the bottom up, of
 * cells `{ value, step, lost }`, null where there is none, `lost` where a value is not finite; `say(row, column)`, the
 * cell in words; and `y`, `{ title, ticks: [[row, label]] }`. `marks` are `{ x, text }`. `zoom` are the ends of what the
 * reader sees, null twice for all. `onZoom(from, to)` and `onPoint(step, isClick)` hear of the reader's gestures.
 */
export function drawHeat(div, picture, { axis = "step", height = 230, label = "", marks = [], zoom = null, onZoom = () => {}, onPoint = () => {} } = {}) {
  const map = maps.get(div) ?? mapIn(div);
  const isOther = map.axis !== axis || map.label !== label;
  Object.assign(map, { picture, axis, height, label, marks, onZoom, onPoint, scale: scaleOf(picture.rows) });
  if (zoom) map.zoom = zoom;
  if (isOther) Object.assign(map, { cursor: null, zoom: zoom ?? [null, null] });
  map.edges = edgesOf(picture.x);
  if (map.cursor) map.cursor = clamped(map, map.cursor);
  map.canvas.setAttribute("aria-label", `Heat map ${label}. Arrow keys move over its cells, + and − zoom, 0 shows all.`);
  map.canvas.style.height = `${height}px`;
  repaint(map);
}

const sizes = new ResizeObserver((entries) => entries.forEach((entry) => maps.has(entry.target) && repaint(maps.get(entry.target))));

/** Pixels become smaller or larger when a window moves to another screen or the reader enlarges the page. */
function watchRatio() {
  matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", () => {
    for (const map of maps.values()) repaint(map);
    watchRatio();
  }, { once: true });
}
watchRatio();

function mapIn(div) {
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  const line = element("p", { class: "faint", "aria-live": "polite" });
  const map = { div, canvas, line, base: document.createElement("canvas"), cursor: null, zoom: [null, null], press: null };
  div.replaceChildren(canvas, line);
  maps.set(div, map);
  canvas.addEventListener("pointermove", (event) => onMove(map, event));
  canvas.addEventListener("pointerleave", () => map.press || point(map, null));
  canvas.addEventListener("pointerdown", (event) => onPress(map, event));
  canvas.addEventListener("pointerup", (event) => onRelease(map, event));
  canvas.addEventListener("pointercancel", () => (map.press = null));
  canvas.addEventListener("dblclick", () => zoomTo(map, null, null));
  canvas.addEventListener("keydown", (event) => onKey(map, event));
  canvas.addEventListener("focus", () => map.cursor ?? point(map, clamped(map, { row: 0, column: 0 })));
  sizes.observe(div);
  return map;
}

// ---- Places -------------------------------------------------------------------------------------------------------

/** The ends of columns: the middles between their neighbours. */
function edgesOf(x) {
  if (x.length < 2) return x.length ? [x[0] - 0.5, x[0] + 0.5] : [];
  const between = x.slice(1).map((place, index) => (x[index] + place) / 2);
  return [x[0] - (between[0] - x[0]), ...between, x.at(-1) + (x.at(-1) - between.at(-1))];
}

/** The part of the axis that is in view. */
function viewOf({ edges, zoom: [from, to] }) {
  return [from ?? edges[0] ?? 0, to ?? edges.at(-1) ?? 1];
}

/** Where the cells are drawn, in pixels of the page. */
function areaOf(map) {
  const { left, right, top, bottom } = SIDES;
  return { left, top, width: Math.max(10, map.canvas.clientWidth - left - right), height: map.height - top - bottom };
}

/** The first index whose edge lies beyond a place, less one: the column of the place. */
function columnAt(edges, place) {
  let [low, high] = [0, edges.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= place) low = middle + 1;
    else high = middle;
  }
  return edges[low] <= place ? edges.length - 1 : low - 1;
}

const placeAt = (map, across) => {
  const area = areaOf(map);
  const [from, to] = viewOf(map);
  return from + ((across - area.left) / area.width) * (to - from);
};

const acrossAt = (map, place) => {
  const area = areaOf(map);
  const [from, to] = viewOf(map);
  return area.left + ((place - from) / (to - from || 1)) * area.width;
};

/** A cursor within the grid and within what is in view. */
function clamped(map, { row, column }) {
  const [from, to] = viewOf(map);
  const { x, rows } = map.picture;
  let [first, last] = [Math.max(0, columnAt(map.edges, from)), Math.min(x.length - 1, columnAt(map.edges, to))];
  if (first < last && map.edges[first + 1] <= from) first += 1;
  if (first < last && map.edges[last] >= to) last -= 1;
  return { row: Math.min(rows.length - 1, Math.max(0, row)), column: Math.min(last, Math.max(first, column)) };
}

// ---- Gestures -----------------------------------------------------------------------------------------------------

/** The cell, or the mark, at a place of the pointer; null beside them. */
function under(map, event) {
  const area = areaOf(map);
  const { rows, x } = map.picture;
  if (event.offsetY < area.top) {
    const mark = map.marks.map((one) => ({ one, away: Math.abs(acrossAt(map, one.x) - event.offsetX) })).sort((one, other) => one.away - other.away)[0];
    return mark && mark.away <= NEAR ? { mark: mark.one } : null;
  }
  const row = Math.floor((1 - (event.offsetY - area.top) / area.height) * rows.length);
  const column = columnAt(map.edges, placeAt(map, event.offsetX));
  const isWithin = event.offsetX >= area.left && event.offsetX <= area.left + area.width && row >= 0 && row < rows.length && column >= 0 && column < x.length;
  return isWithin ? { row, column } : null;
}

const stepOf = (map, { row, column }) => map.picture.rows[row]?.[column]?.step;

/** Put the cursor on a cell, or read a mark, and say what is there. */
function point(map, found) {
  map.cursor = found?.mark ? null : found;
  map.line.textContent = found === null ? "" : found.mark ? found.mark.text : sayCell(map, found);
  overlay(map);
  if (map.cursor && stepOf(map, map.cursor) !== undefined) map.onPoint(stepOf(map, map.cursor), false);
}

/** A cell in words, with the marks that lie above its column. */
function sayCell(map, { row, column }) {
  const [from, to] = [map.edges[column], map.edges[column + 1]];
  const above = map.marks.filter((mark) => mark.x >= from && mark.x < to).map((mark) => `▼ ${mark.text}`);
  return [map.picture.rows.length && map.picture.x.length ? map.picture.say(row, column) : "", ...above].filter(Boolean).join("   ");
}

function onMove(map, event) {
  if (map.press && !isTouch) {
    map.press.to = event.offsetX;
    overlay(map);
  } else if (!map.press) {
    point(map, under(map, event));
  }
}

function onPress(map, event) {
  if (event.button !== 0 || isTouch) return;
  map.canvas.setPointerCapture(event.pointerId);
  map.press = { from: event.offsetX, to: event.offsetX };
}

function onRelease(map, event) {
  const press = map.press;
  map.press = null;
  if (press && Math.abs(press.to - press.from) > NEAR) {
    const [from, to] = viewOf(map);
    const ends = [press.from, press.to].map((across) => Math.min(to, Math.max(from, placeAt(map, across)))).sort((one, other) => one - other);
    zoomTo(map, ...ends);
    return;
  }
  const found = under(map, event);
  point(map, found);
  if (found && !found.mark && stepOf(map, found) !== undefined) map.onPoint(stepOf(map, found), true);
}

function zoomTo(map, from, to) {
  if (from !== null && !(to > from)) return;
  map.zoom = [from, to];
  repaint(map);
  map.onZoom(from, to);
}

/** Zoom around the cursor by a factor; all is in view once that would show no less. */
function zoomBy(map, factor) {
  const [from, to] = viewOf(map);
  const middle = map.cursor ? map.picture.x[map.cursor.column] : (from + to) / 2;
  const [first, last] = [map.edges[0], map.edges.at(-1)];
  const [low, high] = [middle - (middle - from) * factor, middle + (to - middle) * factor];
  zoomTo(map, ...(map.zoom[0] === null && factor > 1 ? [null, null] : factor > 1 && low <= first && high >= last ? [null, null] : [low, high]));
}

function onKey(map, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !map.picture.x.length) return;
  const at = map.cursor ?? { row: 0, column: 0 };
  const to = (rows, columns) => point(map, clamped(map, { row: at.row + rows, column: at.column + columns }));
  const ten = Math.max(1, Math.round(map.picture.x.length / 10));
  const gestures = {
    ArrowLeft: () => to(0, -1), ArrowRight: () => to(0, 1), ArrowUp: () => to(1, 0), ArrowDown: () => to(-1, 0),
    PageUp: () => to(0, -ten), PageDown: () => to(0, ten), Home: () => to(0, -Infinity), End: () => to(0, Infinity),
    "+": () => zoomBy(map, 1 / 2), "=": () => zoomBy(map, 1 / 2), "-": () => zoomBy(map, 2), "−": () => zoomBy(map, 2),
    0: () => zoomTo(map, null, null), Escape: () => zoomTo(map, null, null),
    Enter: () => stepOf(map, at) !== undefined && map.onPoint(stepOf(map, at), true),
  };
  if (!gestures[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  gestures[event.key]();
}

// ---- Painting -----------------------------------------------------------------------------------------------------

const repaint = (map) => {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [map.div.clientWidth, map.height];
  if (!width || !map.picture) return;
  for (const canvas of [map.canvas, map.base]) Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  const context = map.base.getContext("2d");
  paintCells(map, context, ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  paintAxes(map, context);
  map.canvas.dataset.view = viewOf(map).join(" ");
  overlay(map);
};

/** The colour of each share of the scale as one number, as image data has it. */
function shades() {
  const colours = stops().map(channels);
  return Uint32Array.from({ length: SHADES }, (_, index) => {
    const at = (index / (SHADES - 1)) * (colours.length - 1);
    const low = Math.min(colours.length - 2, Math.floor(at));
    return packed(colours[low].map((from, channel) => Math.round(from + (at - low) * (colours[low + 1][channel] - from))));
  });
}

const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** Colour every pixel of the area: a pixel of several rows has the greatest of their values. */
function paintCells(map, context, ratio) {
  const area = Object.fromEntries(Object.entries(areaOf(map)).map(([name, size]) => [name, Math.round(size * ratio)]));
  const image = context.createImageData(area.width, area.height);
  const pixels = new Uint32Array(image.data.buffer);
  const [{ rows }, [from, to], colours] = [map.picture, viewOf(map), shades()];
  const [paper, stripe] = [packed(channels(colour("--paper"))), packed(channels(colour("--stop")))];
  const columns = Array.from({ length: area.width }, (_, pixel) => columnAt(map.edges, from + ((pixel + 0.5) / area.width) * (to - from)));
  const painted = new Map();
  for (let up = 0; up < area.height; up += 1) {
    const first = Math.floor((up * rows.length) / area.height);
    const last = Math.max(first + 1, Math.floor(((up + 1) * rows.length) / area.height));
    const y = area.height - 1 - up;
    if (first !== painted.row) painted.clear();
    painted.row = first;
    for (let across = 0; across < area.width; across += 1) {
      const column = columns[across];
      if (!painted.has(column)) painted.set(column, cellColour(map.scale, rows, first, last, column, colours));
      const { shade, isLost } = painted.get(column);
      const isStripe = isLost && (across + y) % Math.round(STRIPES * ratio) < 2 * ratio;
      pixels[y * area.width + across] = isStripe ? stripe : (shade ?? paper);
    }
  }
  context.putImageData(image, area.left, area.top);
}

function cellColour(scale, rows, first, last, column, colours) {
  let [greatest, isLost] = [null, false];
  for (let row = first; row < last; row += 1) {
    const cell = rows[row]?.[column];
    isLost ||= Boolean(cell?.lost);
    if (Number.isFinite(cell?.value) && !(greatest >= cell.value && greatest !== null)) greatest = cell.value;
  }
  if (greatest === null) return { shade: null, isLost };
  const { low, high, isLog } = scale;
  const at = isLog ? Math.log10 : (value) => value;
  // Halves, so that no difference exceeds the largest float.
  const share = low < high ? (at(greatest) / 2 - at(low) / 2) / (at(high) / 2 - at(low) / 2) : 0.5;
  return { shade: colours[Math.round(share * (SHADES - 1))], isLost };
}

function paintAxes(map, context) {
  const area = areaOf(map);
  const [from, to] = viewOf(map);
  const [faint, rule, ink] = ["--faint", "--rule", "--ink"].map(colour);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  context.strokeStyle = rule;
  context.strokeRect(area.left - 0.5, area.top - 0.5, area.width + 1, area.height + 1);
  context.fillStyle = faint;
  context.textBaseline = "top";
  const { values, labels } = placeTicks(from, to, area.width, map.axis, false);
  values.forEach((value, index) => {
    const across = acrossAt(map, value);
    const half = context.measureText(labels[index]).width / 2;
    context.fillRect(Math.round(across), area.top + area.height, 1, 4);
    context.textAlign = "center";
    context.fillText(labels[index], Math.min(map.canvas.clientWidth - half - 1, Math.max(half + 1, across)), area.top + area.height + 7);
  });
  context.textAlign = "right";
  context.textBaseline = "middle";
  let above = Infinity;
  for (const [row, label] of map.picture.y?.ticks ?? []) {
    const y = area.top + area.height * (1 - (row + 0.5) / map.picture.rows.length);
    if (above - y < ROOM) continue;
    above = y;
    context.fillText(label, area.left - 6, y, area.left - 20);
  }
  if (map.picture.y?.title) {
    context.save();
    context.translate(9, area.top + area.height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(map.picture.y.title, 0, 0, area.height);
    context.restore();
  }
  context.fillStyle = ink;
  for (const mark of map.marks) {
    if (mark.x < from || mark.x > to) continue;
    const across = acrossAt(map, mark.x);
    context.fill(new Path2D(`M${across - 5} 4 h10 l-5 9 z`));
  }
}

/** The picture, and over it the cell of the cursor and the part that the reader is choosing. */
function overlay(map) {
  const ratio = devicePixelRatio || 1;
  const context = map.canvas.getContext("2d");
  const area = areaOf(map);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, map.canvas.width, map.canvas.height);
  context.drawImage(map.base, 0, 0);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (map.cursor && map.picture.x.length) {
    const { row, column } = map.cursor;
    const ends = [map.edges[column], map.edges[column + 1]].map((place) => Math.min(area.left + area.width, Math.max(area.left, acrossAt(map, place))));
    const [top, bottom] = [row + 1, row].map((at) => area.top + area.height * (1 - at / map.picture.rows.length));
    const box = [ends[0] - 1, top - 1, Math.max(3, ends[1] - ends[0] + 2), Math.max(3, bottom - top + 2)];
    for (const [width, name] of [[3, "--paper"], [1.5, "--ink"]]) {
      context.strokeStyle = colour(name);
      context.lineWidth = width;
      context.strokeRect(...box);
    }
  }
  if (map.press) {
    context.fillStyle = colour("--accent");
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(map.press.from, map.press.to), area.top, Math.abs(map.press.to - map.press.from), area.height);
    context.globalAlpha = 1;
  }
}

/** A place on an axis that is `span` long in words: a step, a time, or another quantity. */
export const placeInWords = (axis, place, span, xName = "") => (axis === "elapsed" ? inWords(place, precisionOf(0, span)) : `${xName || axis} ${shown(place)}`);
