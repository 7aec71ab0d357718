// Families: series whose names differ in one number. Names of metrics in; panels, and groups of panels, out.

/** Runs with more panels than this, or with a family, have their panels in groups. */
const FLAT = 12;

/**
 * Every number that ends a part of a name, with the name's pattern: a star in the number's place. Slashes and dots
 * separate the parts.
 */
function numbersIn(metric) {
  const pieces = metric.split(/([/.])/);
  return pieces.flatMap((piece, index) => {
    const found = piece.match(/^(.*?)(\d+)$/);
    if (!found) return [];
    const pattern = [...pieces.slice(0, index), `${found[1]}*`, ...pieces.slice(index + 1)].join("");
    const word = (found[1] || pieces[index - 2] || "").replace(/[-_]+$/, "");
    return [{ metric, pattern, word, number: Number(found[2]) }];
  });
}

/** Whether numbers count things, from 0 or 1; those of `p50` and `p95`, or of `top1` and `top5`, do not. Four or more always do. */
function isCounted(members) {
  const numbers = new Set(members.map((member) => member.number));
  return members.length > 3 || (members.length > 1 && (numbers.has(0) || (numbers.has(1) && numbers.has(2))));
}

/** Panels in the order of their first metrics. Each metric is in one: in the largest family that it belongs to, or alone. */
export function panelsOf(metrics, leading) {
  const found = Map.groupBy(metrics.filter((metric) => metric !== leading).flatMap(numbersIn), (member) => member.pattern);
  const panels = new Map();
  for (const members of [...found.values()].sort((one, other) => other.length - one.length)) {
    const free = members.filter((member) => !panels.has(member.metric));
    if (!isCounted(free)) continue;
    const { pattern, word } = free[0];
    const panel = { key: `family ${pattern}`, title: pattern, isFamily: true, word, members: free.sort((one, other) => one.number - other.number) };
    for (const member of free) panels.set(member.metric, panel);
  }
  for (const metric of metrics) {
    if (!panels.has(metric)) panels.set(metric, { key: `metric ${metric}`, title: metric, isFamily: false, word: "", members: [{ metric }] });
  }
  return [...new Set(metrics.map((metric) => panels.get(metric)))];
}

/** Panels by the first part of their names; those without one come first, as the group "". Few panels are one group. */
export function groupsOf(panels) {
  if (panels.length <= FLAT && !panels.some((panel) => panel.isFamily)) return [{ key: "", title: "", panels }];
  const titleOf = (panel) => (panel.title.includes("/") ? panel.title.split("/")[0] : "");
  const groups = Map.groupBy(panels, (panel) => titleOf(panel).toLocaleLowerCase());
  const rest = [...groups].filter(([key]) => key !== "");
  return [["", groups.get("") ?? []], ...rest].map(([key, members]) => ({ key, title: members.length ? titleOf(members[0]) : "", panels: members }));
}

/** The panel with the members whose names pass, all if its title does; null if none does. */
export function filtered(panel, passes) {
  if (passes(panel.title)) return panel;
  const members = panel.members.filter((member) => passes(member.metric));
  return members.length ? { ...panel, members } : null;
}

/** Whether names pass a filter: a regular expression, or part of the name where the text is none. */
export function filterOf(text) {
  const wanted = text.trim();
  try {
    const pattern = new RegExp(wanted, "i");
    return (name) => pattern.test(name);
  } catch {
    const low = wanted.toLocaleLowerCase();
    return (name) => name.toLocaleLowerCase().includes(low);
  }
}
