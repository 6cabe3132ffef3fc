// Before anything is painted: the theme that was chosen here, or the system's.
"use strict";
(() => {
  const chosen = localStorage.getItem("pentimento.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
