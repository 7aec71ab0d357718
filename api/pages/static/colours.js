// Colours of curves, told apart on light and on dark, also by readers who do not see red or green.

/** The colours, the most different ones first. */
export const PALETTE = ["#1f74b2", "#d78017", "#108431", "#c60a7d", "#bf6de9", "#d57657", "#4057db", "#c87d92"];

/** The place of a text in the palette: the same on every page and in every set. */
function placeOf(text) {
  let hash = 2166136261;
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  // A product's low bits follow from the low bits of its factors alone.
  return ((hash >>> 16) ^ (hash & 0xffff)) % PALETTE.length;
}

/**
 * Colours of runs by their ids. A run keeps its own, unless one before it in a set that the palette suffices for has the
 * same: then it takes the next free one.
 */
export function coloursOf(ids) {
  const taken = new Set();
  return new Map(ids.map((id) => {
    let place = placeOf(id);
    while (ids.length <= PALETTE.length && taken.has(place)) place = (place + 1) % PALETTE.length;
    taken.add(place);
    return [id, PALETTE[place]];
  }));
}

export const colourOf = (id) => PALETTE[placeOf(id)];

const known = new Map();

/** A colour of the style sheet. */
export function colour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return known.get(name);
}

document.addEventListener("themechange", () => known.clear());
