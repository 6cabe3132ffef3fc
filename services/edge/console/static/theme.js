// Before anything is painted: the theme that was chosen here, or the system's.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("pentimento.theme"); } catch { /* A browser that is told to keep nothing. */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
