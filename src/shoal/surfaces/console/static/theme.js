// Apply the chosen theme before the first paint. This is a classic script because modules run too late.
try {
  const theme = localStorage.getItem("shoal.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // the system's theme applies
}
