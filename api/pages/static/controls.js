// The controls above curves: each sets the value of the page's state that its id names.
import { gathered } from "./dom.js";
import { onPin } from "./panels.js";
import { read, write } from "./state.js";

const by = (id) => document.getElementById(id);

/** Have the controls show a state; a search that is being typed stays as it is. */
export function showControls(names, state) {
  for (const name of names) {
    const control = by(name);
    if (control === document.activeElement && name === "search") continue;
    if (control.type === "checkbox") control.checked = state[name];
    else control.value = String(state[name]);
  }
  by("x").hidden = state.axis !== "metric";
  by("smooth").title = `Weight of the moving average: ${state.smooth}`;
}

/** Have the controls, and the pins of panels, change the state. `metricFor` names the axis where a metric is to be one. */
export function takeControls(names, metricFor) {
  const set = (name) => {
    const control = by(name);
    const value = control.type === "checkbox" ? control.checked : name === "smooth" ? Number(control.value) : control.value;
    const all = ["axis", "x"].includes(name) ? { from: null, to: null } : {};
    const chosen = name === "axis" && value === "metric" && !read().x ? { x: metricFor() } : {};
    write({ [name]: value, ...all, ...chosen });
  };
  for (const name of names) {
    const isText = ["search", "range"].includes(by(name).type);
    by(name).addEventListener(isText ? "input" : "change", isText ? gathered(() => set(name), 150) : () => set(name));
  }
  onPin((key) => {
    const { pin } = read();
    write({ pin: pin.includes(key) ? pin.filter((one) => one !== key) : [...pin, key] });
  });
}
