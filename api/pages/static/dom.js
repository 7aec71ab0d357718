// What pages of this server are made of: elements, JSON from the API, numbers as text. No text ever becomes markup.
import { inWords } from "./spans.js";

/** An element with attributes and children; children that are no nodes become text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A table; cells that are nodes stay what they are. `left` are the indices of columns that are set flush left. */
export function table(headings, rows, left = [0]) {
  const side = (index) => ({ class: left.includes(index) ? "left" : null });
  const head = element("tr", {}, headings.map((text, index) => element("th", side(index), text)));
  const body = rows.map((cells) => element("tr", {}, cells.map((cell, index) => element("td", side(index), cell ?? "–"))));
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
}

/** The path under which a reverse proxy serves the pages; empty without one. */
export const root = document.documentElement.dataset.root ?? "";

/** The path of an endpoint; parameters that are lists are repeated, those that are null left out. */
export function address(path, parameters = {}) {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") found.append(key, one);
    }
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

export const runPath = (id, rest = "") => `/api/v1/runs/${encodeURIComponent(id)}${rest}`;

/** What the API answers. An error carries the problem's own sentence, and its status. */
export async function ask(path, options = {}) {
  const answer = await fetch(root + path, { headers: { Accept: "application/json" }, ...options });
  const document = answer.headers.get("content-type")?.includes("json") ? await answer.json() : null;
  if (!answer.ok) {
    if (answer.status === 401) location.assign(root + address("/login", { next: location.pathname + location.search }));
    const said = [document?.detail, document?.hint].filter(Boolean).join(" ");
    throw Object.assign(new Error(said || `The server answered with status ${answer.status}.`), { status: answer.status });
  }
  return document;
}

export const post = (path, body) =>
  ask(path, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

/** A number of the API: those that are not finite come as text. */
export const toNumber = (value) => (value === null || value === undefined ? NaN : Number(value));

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 12 });

/** A number as text: five digits, or all before the point, thousands apart. */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "object" ? JSON.stringify(value) : String(value);
  const size = Math.abs(value);
  if (size < 1e15 && (Number.isInteger(value) || size >= 1e4)) return GROUPED.format(Math.round(value));
  const text = value.toPrecision(5);
  return text.includes("e") ? text : GROUPED.format(Number(text));
}

export const percent = (value, digits = 1) =>
  value === null || value === undefined ? "–" : `${(100 * Number(value)).toFixed(digits)}%`;

/** A number of things: `1 run`, `2 runs`. */
export const counted = (count, what) => `${shown(count)} ${what}${count === 1 ? "" : "s"}`;

/** Seconds as people read them, in the two units that fit. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds && Math.abs(seconds) < 0.1) return `${Number((1000 * seconds).toPrecision(2))} ms`;
  if (Math.abs(seconds) < 60) return `${Number(seconds.toPrecision(3))} s`;
  return inWords(seconds, Math.abs(seconds) < 3600 ? 1 : Math.abs(seconds) < 86400 ? 60 : 3600);
}

/** Whether a finger is what points: it scrolls the page, also over a plot. */
export const isTouch = matchMedia("(pointer: coarse)").matches;

/** The page's own data block. */
export const pageData = () => JSON.parse(document.getElementById("data").textContent);

/** Calls that come thick and fast as one, the last, `pause` milliseconds after the first. */
export function gathered(call, pause) {
  let waiting = null;
  let last = [];
  return (...given) => {
    last = given;
    waiting ??= setTimeout(() => {
      waiting = null;
      call(...last);
    }, pause);
  };
}

/** The key by which an element is found again among its siblings. */
const keyOf = (node) => node.dataset?.key ?? node.id ?? "";

/** Make a node equal to a fresh one: nodes that both have stay, and so do focus, scroll and listeners. */
export function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE && old.data !== fresh.data) old.data = fresh.data;
  if (old.nodeType !== Node.ELEMENT_NODE || old.isEqualNode(fresh)) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const keyed = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const isLike = at?.nodeName === wanted.nodeName && !keyOf(at);
    const same = keyOf(wanted) ? keyed.get(keyOf(wanted)) : isLike ? at : null;
    if (same?.nodeName !== wanted.nodeName) {
      old.insertBefore(document.adoptNode(wanted), at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    morph(same, wanted);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** The same page asked for again, its parts that match the selector made equal to the fresh ones; false if it failed.
 *
 * `prepare` gets the fresh document first.
 */
export async function refreshParts(selector, { signal, prepare } = {}) {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal });
  if (!answer.ok) return false;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  prepare?.(fresh);
  const parts = [...fresh.querySelectorAll(selector)];
  document.querySelectorAll(selector).forEach((old, index) => {
    if (parts[index]) morph(old, parts[index]);
  });
  return true;
}
