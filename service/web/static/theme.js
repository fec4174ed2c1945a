// Sets the chosen theme before the page is painted. The one script that is no module, because those run later.
try {
  const theme = localStorage.getItem("bert-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Storage is forbidden in this browser: the system's theme applies.
}
