// Times of the server, which are UTC, as this browser's reader says them: in the local zone, and how long ago.
import { inWords, spanTicks } from "./spans.js";

const DAY = 86400;

const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const year = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const fraction = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 });

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

/** A moment, in seconds since 1970, in local time; to the millisecond on an axis that spans so few seconds. */
export const momentInWords = (at, span) => (span < 100 ? `${year.format(1000 * at)}, ${fraction.format(1000 * at)}` : full.format(1000 * at));

/** Ticks of an axis of moments, in seconds since 1970: at round local times, with the date at midnight. */
export function momentTicks(from, to, width) {
  // Wall clocks as if they were UTC: days are equally long there, also where summer time begins.
  const wall = (at) => at - 60 * new Date(1000 * at).getTimezoneOffset();
  const moment = (at) => {
    const date = new Date(1000 * at);
    return new Date(date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds(), date.getUTCMilliseconds());
  };
  const isLong = to - from > 300 * DAY;
  const words = (at, step) => (at % DAY ? (step < 1 ? fraction : step < 60 ? seconds : clock) : isLong ? year : day).format(moment(at));
  const { values, labels } = spanTicks(wall(from), wall(to), width, words);
  return { values: values.map((at) => moment(at) / 1000), labels };
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
