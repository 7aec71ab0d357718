// Spans of time along an axis: seconds in, ticks where people expect them and words out.

const DAY = 86400;

/** Units and their seconds, the largest first. */
const UNITS = { d: DAY, h: 3600, min: 60 };

const decades = (first, last, size) =>
  Array.from({ length: last - first + 1 }, (_, index) => [1, 2, 5].map((digit) => digit * 10 ** (first + index) * size)).flat();

/** Seconds that there may be between two ticks. */
const STEPS = [
  ...decades(-9, -1, 1),
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * UNITS.min),
  ...[1, 2, 3, 6, 12].map((hours) => hours * UNITS.h),
  ...decades(0, 9, DAY),
];

/** Pixels of a letter of a label, between two labels, and at least between two ticks of a wide axis. */
const LETTER = 6;
const GAP = 20;
const ROOM = 80;

/** A span in words, rounded to so many seconds: `2 h 30 min`. Units of which there is none are left out. */
export function inWords(seconds, precision = 1) {
  const digits = precision < 1 ? Math.ceil(-Math.log10(precision) - 1e-9) : 0;
  let left = Math.round(Math.abs(seconds) / precision) * precision;
  const parts = [];
  for (const [name, size] of Object.entries(UNITS)) {
    const count = Math.floor(left / size + 1e-9); // 0.1 is no sum of powers of two.
    if (count) parts.push(`${count.toLocaleString("en")} ${name}`);
    left -= count * size;
  }
  const rest = Number(left.toFixed(digits));
  if (rest) parts.push(`${rest} s`);
  if (!parts.length) return "0";
  return (seconds < 0 ? "−" : "") + parts.join(" ");
}

/** To how many seconds words tell two places apart on an axis from one end to the other. */
export function precisionOf(from, to) {
  const span = to - from;
  if (!(span > 0)) return 0.01;
  return span > 2 * DAY ? UNITS.min : span > 100 ? 1 : 10 ** Math.floor(Math.log10(span / 1000));
}

/** Ticks from one end to the other, as many as have room in so many pixels; `words` labels a place, given their distance. */
export function spanTicks(from, to, width, words = inWords) {
  width = Math.max(width, 100); // Of a plot that is not laid out yet it is nothing.
  for (const step of STEPS) {
    const room = (width * step) / (to - from);
    if (!(room > Math.min(ROOM, width / 5))) continue;
    const first = Math.ceil(from / step - 1e-9);
    const count = Math.floor(to / step + 1e-9) - first + 1;
    const values = Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * step);
    const labels = values.map((value) => words(value, step));
    if (labels.every((label) => label.length * LETTER + GAP <= room)) return { values, labels };
  }
  return { values: [from], labels: [words(from, 1)] };
}
