// What the keyboard does on every page, and the two buttons of the bar.

const root = document.documentElement.dataset.root;
const isTyping = (target) => target.closest?.("input:not([type=checkbox]), textarea, select") !== null;
const rows = () => [...document.querySelectorAll("table.runs tbody tr")];
const current = () => document.querySelector("table.runs tr.current");

function move(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by))];
  current()?.classList.remove("current");
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
}

const actions = {
  "/": () => document.getElementById("search")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  Enter: () => current()?.querySelector("a")?.click(),
  x: () => current()?.querySelector("input[type=checkbox]")?.click(),
  c: () => (document.querySelector("#compare:enabled") ?? document.querySelector("#compare-found a"))?.click(),
  g: () => location.assign(`${root}/`),
  b: () => location.assign(`${root}/backtest`),
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]") || (event.key === "Enter" && event.target.closest("a, button, summary"))) return;
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

document.getElementById("help").addEventListener("click", actions["?"]);

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("steptape-theme", root.dataset.theme);
  document.dispatchEvent(new CustomEvent("themechange"));
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  document.dispatchEvent(new CustomEvent("themechange"));
});
