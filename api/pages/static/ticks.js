// Ticks of axes: the ends of an axis and its length in pixels in, places and their labels out.
import { spanTicks } from "./spans.js";
import { momentTicks } from "./times.js";

/** Pixels between two ticks at least. */
const ROOM = { x: 80, y: 34 };

const SUFFIXES = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];

/** A value on an axis whose ticks are so far apart: no more digits than tell neighbours apart. */
function text(value, step) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(digitsOf(value, step)).replace(/(\.0+)?e\+?/, "e");
  const [suffix, unit] = size >= 1e4 ? SUFFIXES.find(([, least]) => size >= least) : ["", 1];
  const digits = Math.max(0, Math.min(12, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return (value / unit).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) + suffix;
}

const digitsOf = (value, step) => Math.max(0, Math.min(6, Math.floor(Math.log10(Math.abs(value))) - Math.floor(Math.log10(step) + 1e-9)));

/** The smallest of 1, 2 and 5 times a power of ten that is at least so much. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least * (1 - 1e-9));
}

function linearTicks(from, to, count, least = 0) {
  const step = Math.max(least, niceStep((to - from) / Math.max(1, count)));
  const first = Math.ceil(from / step - 1e-9);
  const last = Math.floor(to / step + 1e-9);
  const values = Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => Number(((first + index) * step).toPrecision(12)));
  return { values, labels: values.map((value) => text(value, step)) };
}

/** Powers of ten; between them 2 and 5 where there is room. Each label has its whole value. */
function logTicks(from, to, count) {
  const [low, high] = [Math.log10(from), Math.log10(to)];
  if (high - low < 0.7) return linearTicks(from, to, count);
  const every = Math.ceil((high - low) / Math.max(1, count));
  const digits = every > 1 ? [1] : (high - low) * 3 <= count ? [1, 2, 5] : (high - low) * 2 <= count ? [1, 3] : [1];
  const values = [];
  for (let power = Math.ceil(Math.floor(low) / every) * every; power <= high; power += every) {
    values.push(...digits.map((digit) => Number(`${digit}e${power}`)).filter((value) => value >= from * (1 - 1e-9) && value <= to * (1 + 1e-9)));
  }
  return { values, labels: values.map((value) => text(value, value)) };
}

/** Ticks of the axis of values. */
export const valueTicks = (from, to, height, isLog) => (isLog ? logTicks : linearTicks)(from, to, Math.max(2, Math.floor(height / ROOM.y)));

/** Ticks of the axis to the right: of steps, of time in words, of moments, or of another quantity. */
export function placeTicks(from, to, width, axis, isLog) {
  if (isLog) return logTicks(from, to, Math.max(2, Math.floor(width / 60)));
  if (axis === "elapsed") return spanTicks(from, to, width);
  if (axis === "moment") return momentTicks(from, to, width);
  return linearTicks(from, to, Math.max(2, Math.floor(width / ROOM.x)), axis === "step" || axis === "samples" || axis === "tokens" ? 1 : 0);
}
