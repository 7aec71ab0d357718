// Colours of curves, told apart on light and on dark, also by readers who do not see red or green.

/** The colours, searched for the greatest least difference under three kinds of sight, away from the red of errors. */
export const PALETTE = ["#2f62c6", "#ab8a14", "#207451", "#bf1889", "#0f99c4", "#96581c", "#ce7a95", "#7d9d60"];

/** The place of a text in the palette: the same on every page and in every set. */
function placeOf(text) {
  let hash = 2166136261;
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  // A product's low bits follow from the low bits of its factors alone.
  return ((hash >>> 16) ^ (hash & 0xffff)) % PALETTE.length;
}

/** Dashes of runs that share a colour: the first is a line, the next ones have gaps. */
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3]];

/** Runs that colours and dashes tell apart at most. */
export const TOLD_APART = PALETTE.length * DASHES.length;

/**
 * Colour and dash of runs by their ids. A run keeps its colour while that is free, else it takes the next one. In a set
 * that the palette suffices for, a colour is of one run; in a larger one, of as many as there are dashes; in one that
 * these do not suffice for, of any number, and all are lines.
 */
export function stylesOf(ids) {
  const most = ids.length <= PALETTE.length ? 1 : ids.length <= TOLD_APART ? DASHES.length : Infinity;
  const taken = PALETTE.map(() => 0);
  return new Map(ids.map((id) => {
    let place = placeOf(id);
    while (taken[place] >= most) place = (place + 1) % PALETTE.length;
    const dash = most < Infinity ? DASHES[taken[place]] : [];
    taken[place] += 1;
    return [id, { colour: PALETTE[place], dash }];
  }));
}

/** A short piece of a line in an element, as it is drawn. */
export function swatchOf({ colour, dash = [] }) {
  const swatch = document.createElement("i");
  swatch.className = "swatch";
  let at = 0;
  const stops = dash.flatMap((length, index) => {
    const shade = index % 2 ? "transparent" : colour;
    const from = at;
    at += length;
    return [`${shade} ${from}px`, `${shade} ${at}px`];
  });
  swatch.style.background = dash.length ? `repeating-linear-gradient(90deg, ${stops.join()})` : colour;
  return swatch;
}

export const colourOf = (id) => PALETTE[placeOf(id)];

const known = new Map();

/** A colour of the style sheet. */
export function colour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}

/** The colours of a list in the style sheet. */
export const colours = (name) => colour(name).split(",").map((text) => text.trim());

/** A colour at a place between the first (0) and the last (1) of a list of `#rrggbb`. */
function between(stops, place) {
  const at = place * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const parts = [1, 3, 5].map((start) => {
    const [from, to] = [stops[low], stops[low + 1]].map((stop) => Number.parseInt(stop.slice(start, start + 2), 16));
    return Math.round(from + (at - low) * (to - from));
  });
  return `rgb(${parts.join(", ")})`;
}

/** A colour of the scale for lines, from the first (0) to the last (1). */
export const depthAt = (place) => between(colours("--depth"), place);

document.addEventListener("themechange", () => known.clear());
