// Lays out the panels of a run's page: a figure for each metric or family, in groups that open and close.
import { chart } from "./chart.js";
import { counted, element, shown } from "./dom.js";
import { filterOf, filtered, groupsOf, panelsOf } from "./families.js";

/** Panels of a group that are there before the reader asks for more; so many in all open groups do so by themselves. */
const FIRST = 24;

/** Figures by the keys of their panels, with what each shows. */
export const plots = new Map();

/** Groups by their keys: their elements, what the reader made of them, and whether all panels are there. */
const groups = new Map();

let whenSeen = () => {};
let whenPinned = () => {};

const seen = new IntersectionObserver((entries) => {
  const fresh = [];
  for (const entry of entries) {
    const plot = plots.get(entry.target.dataset.key);
    if (!plot) continue;
    if (entry.isIntersecting && !plot.isSeen) fresh.push(plot);
    plot.isSeen = entry.isIntersecting;
  }
  if (fresh.length) whenSeen(fresh);
}, { rootMargin: "200px" });

export const visible = () => [...plots.values()].filter((plot) => plot.isSeen && !plot.figure.hidden);

/** Have a function called with the plots that come into sight. */
export function onSeen(call) {
  whenSeen = call;
}

/** Have a function called with the key of a panel that the reader pins, or no longer does. */
export function onPin(call) {
  whenPinned = call;
}

/**
 * A figure for each panel that the search lets through: pinned ones first, in the order of pinning, then the leading one.
 * Panels are in the order in which their metrics appeared, or by name.
 */
export function layOut(metrics, leading, { search, pin, size, order }, panelsFor = panelsOf) {
  const all = panelsFor(metrics, leading);
  const passes = filterOf(search);
  const pinned = pin.map((key) => all.find((panel) => panel.key === key)).filter(Boolean);
  const rest = groupsOf(all.filter((panel) => !pinned.includes(panel)));
  const sections = pinned.length ? [{ key: "pinned", title: "Pinned", panels: pinned }, ...rest] : rest;
  const found = sections.map((group) => ({ ...group, panels: group.panels.map((panel) => filtered(panel, passes)).filter(Boolean) }));
  const place = document.getElementById("plots");
  place.dataset.size = size;
  const shownNow = new Set();
  let count = 0;
  for (const group of found) {
    if (group.key !== "pinned") {
      if (order === "name") group.panels.sort((one, other) => one.title.localeCompare(other.title, "en", { numeric: true }));
      group.panels.sort((one, other) => Number(isLeading(other, leading)) - Number(isLeading(one, leading)));
    }
    const isShort = count + group.panels.length <= FIRST;
    count += group.panels.length;
    for (const panel of fill(groupOf(group), group.panels, isShort || search.trim() !== "", leading)) shownNow.add(panel.key);
  }
  for (const [key, plot] of plots) {
    plot.figure.hidden = !shownNow.has(key);
    plot.pin.setAttribute("aria-pressed", String(pin.includes(key)));
  }
  const now = new Set(found.map((group) => group.key));
  for (const [key, group] of groups) if (!now.has(key)) group.box.hidden = true;
  place.replaceChildren(...found.map((group) => groups.get(group.key).box), ...[...groups].filter(([key]) => !now.has(key)).map(([, group]) => group.box));
  const empty = document.getElementById("curves-empty");
  empty.hidden = count > 0;
  empty.textContent = metrics.length ? `No metric name matches “${search}”.` : "No metric has a value yet.";
  return all.some((panel) => panel.isFamily);
}

/** The chart of a panel, made when it is first drawn. */
export function chartOf(plot, events) {
  return (plot.chart ??= chart(plot.div, { title: plot.panel.title, tools: plot.tools, legend: plot.legend, ...events }));
}

const isLeading = (panel, leading) => !panel.isFamily && panel.title === leading;

/** The element of a group: panels alone where it has no title, else below a line that opens and closes them. */
function groupOf({ key, title }) {
  if (groups.has(key)) return groups.get(key);
  const list = element("div", { class: "plots" });
  const more = element("button", { type: "button" });
  const note = element("span", { class: "faint" });
  const below = element("p", { class: "more" }, more);
  const group = { list, more, note, below, choice: null, isWhole: false, refill: () => {} };
  if (title) {
    const summary = element("summary", { onclick: () => (group.choice = !group.box.open) }, element("h3", {}, title), " ", note);
    group.box = element("details", { class: "group", "data-group": title }, summary, list, below);
  } else {
    group.box = element("div", { class: "group", "data-group": "" }, list, below);
  }
  more.addEventListener("click", () => {
    group.isWhole = true;
    group.refill();
  });
  groups.set(key, group);
  return group;
}

/** Put panels into a group; return those that have a figure now. */
function fill(group, panels, isShort, leading) {
  const first = group.isWhole ? panels : panels.slice(0, FIRST);
  group.box.hidden = !panels.length;
  if ("open" in group.box) group.box.open = group.choice ?? isShort;
  const series = panels.reduce((sum, panel) => sum + panel.members.length, 0);
  group.note.textContent = series > panels.length ? `${counted(panels.length, "panel")}, ${shown(series)} series` : counted(panels.length, "panel");
  group.below.hidden = first.length === panels.length;
  group.more.textContent = `Show ${counted(panels.length - first.length, "more panel")}`;
  group.refill = () => {
    for (const panel of fill(group, panels, isShort, leading)) plots.get(panel.key).figure.hidden = false;
  };
  group.list.replaceChildren(...first.map((panel) => figureOf(panel, leading)));
  return first;
}

function figureOf(panel, leading) {
  const known = plots.get(panel.key);
  if (known) {
    known.isStale ||= known.panel.members.length !== panel.members.length;
    known.panel = panel;
    return known.figure;
  }
  const div = element("div", { class: "plot" });
  const note = element("span", { class: "faint said" });
  const legend = element("div", { class: "names" });
  const pin = element("button", { type: "button", class: "quiet pin", "aria-pressed": "false", title: "Pin to the top", "aria-label": `Pin ${panel.title}`, onclick: () => whenPinned(panel.key) }, "pin");
  const tools = element("span", { class: "panel-tools" }, pin);
  const caption = element("figcaption", {}, element("b", {}, panel.title), " ", note, tools);
  const figure = element("figure", { "data-metric": panel.title, "data-key": panel.key, class: isLeading(panel, leading) ? "wide" : null }, caption, legend, div);
  plots.set(panel.key, { panel, metric: panel.title, isLeading: isLeading(panel, leading), div, note, legend, tools, pin, figure, items: [], answered: 0, isWhole: false, isSeen: false, isStale: false });
  seen.observe(figure);
  return figure;
}
