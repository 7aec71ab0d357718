// The state of a page, kept in its address: one object to and from the parameters of the URL.
//
// The kind of each value is that of its default: text, number, boolean (`1` or `0`), a list of texts (a parameter for
// each), or null for a number that may be missing. A value equal to its default is not written.

let defaults = {};
const calls = [];

const toNumber = (text) => (text.trim() === "" ? NaN : Number(text));

/** A parameter's values as its default has them; undefined if they are of another kind. */
function parsed(texts, standard) {
  if (Array.isArray(standard)) return texts.length === 1 && texts[0] === "" ? [] : texts;
  const [text, ...more] = texts;
  if (more.length) return undefined;
  if (typeof standard === "string") return text;
  if (typeof standard === "boolean") return { 0: false, 1: true }[text];
  const value = toNumber(text);
  return Number.isFinite(value) ? value : undefined;
}

function encoded(value) {
  if (Array.isArray(value)) return value.length ? value.map(String) : [""];
  return [typeof value === "boolean" ? String(Number(value)) : String(value)];
}

const isEqual = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** The state: the defaults, and what an address says instead, by default the page's own.
 *
 * Several scripts of a page add their defaults.
 */
export function read(more = {}, search = location.search) {
  defaults = { ...defaults, ...more };
  const given = new URLSearchParams(search);
  const value = (name) => (given.has(name) ? parsed(given.getAll(name), defaults[name]) : undefined);
  return Object.fromEntries(Object.keys(defaults).map((name) => [name, value(name) ?? defaults[name]]));
}

/** Change some values in the address, without a step of the browser's history; returns the new state. */
export function write(changes) {
  const before = read();
  const given = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (!(name in defaults)) throw new Error(`no script has read ${name} of the address`);
    given.delete(name);
    if (value !== undefined && !isEqual(value, defaults[name])) encoded(value).forEach((text) => given.append(name, text));
  }
  const query = given.toString();
  history.replaceState(history.state, "", location.pathname + (query && `?${query}`) + location.hash);
  const after = read();
  const changed = Object.keys(changes).filter((name) => !isEqual(before[name], after[name]));
  if (changed.length) calls.forEach((call) => call(after, changed));
  return after;
}

/** Have `call` get the state and the names of the changed values after each change. */
export function onChange(call) {
  calls.push(call);
}

/** A sentence for each parameter of the address that no script reads, or whose value is of another kind. */
export function problems() {
  const given = new URLSearchParams(location.search);
  const sentence = (name) => {
    if (!(name in defaults)) return `${name}: unknown parameter. Known here: ${Object.keys(defaults).join(", ")}`;
    if (parsed(given.getAll(name), defaults[name]) !== undefined) return null;
    const kind = typeof defaults[name] === "boolean" ? "1 or 0" : typeof defaults[name] === "string" ? "one text" : "a number";
    return `${name}: expected ${kind}; got ${given.getAll(name).join(", ")}`;
  };
  return [...new Set(given.keys())].map(sentence).filter(Boolean);
}
