// Times of the server, which are UTC, as this browser's reader says them: in the local zone, and how long ago.
import { inWords } from "./spans.js";

const DAY = 86400;

const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const year = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

/** An age in the largest unit that fits: `3 min ago`. */
export function ago(seconds) {
  if (seconds < 10) return "now";
  const unit = [DAY, 3600, 60, 1].find((size) => seconds >= size);
  return `${inWords(Math.floor(seconds / unit) * unit)} ago`;
}

function local(moment, now) {
  if (now - moment < DAY * 1000 && now >= moment) return ago((now - moment) / 1000);
  const date = moment.getFullYear() === now.getFullYear() ? `${day.format(moment)}, ${clock.format(moment)}` : year.format(moment);
  return date;
}

/** Have the times below a node say when they were; those with `data-age` always say how long ago. */
export function showTimes(node, now = new Date()) {
  for (const time of node.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const text = "age" in time.dataset ? ago(Math.max(0, now - moment) / 1000) : local(moment, now);
    if (time.textContent !== text) time.textContent = text;
    time.title = full.format(moment);
  }
}
