// Before the page is drawn: the theme chosen in this browser, or the system's.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("pentimento.theme"); } catch { /* A browser that is told to keep nothing. */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
