// Light or dark: what the system says, unless the reader has chosen. Runs before the first paint.
"use strict";

(() => {
  const chosen = localStorage.getItem("steptape-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
