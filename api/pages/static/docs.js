// The search of the API's reference: endpoints and schemas whose text holds all words stay.
import { counted } from "./dom.js";
import { read, write } from "./state.js";

const search = document.getElementById("search");
const found = document.getElementById("found");
const contents = document.getElementById("contents");
const articles = [...document.querySelectorAll("article")];
const texts = new Map(articles.map((one) => [one, one.textContent.toLowerCase()]));

function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [article, text] of texts) article.hidden = !words.every((word) => text.includes(word));
  for (const item of document.querySelectorAll("[data-for]")) item.hidden = document.getElementById(item.dataset.for).hidden;
  for (const group of document.querySelectorAll("[data-group]")) group.hidden = ![...group.querySelectorAll("article, li")].some((one) => !one.hidden);
  const left = articles.filter((one) => !one.hidden);
  const endpoints = left.filter((one) => !one.id.startsWith("schema-")).length;
  found.textContent = words.length ? `${counted(endpoints, "endpoint")}, ${counted(left.length - endpoints, "schema")}` : "";
}

// A phone has the contents folded: the page is below them there.
contents.open = matchMedia("(min-width: 761px)").matches;
search.value = read({ search: "" }).search;
search.addEventListener("input", () => {
  write({ search: search.value });
  show();
});
// A link leads to what the search hides, too.
addEventListener("hashchange", () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.hidden) return;
  search.value = "";
  write({ search: "" });
  show();
  target.scrollIntoView();
});
show();
