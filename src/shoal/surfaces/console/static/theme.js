// Light or dark as a person has chosen, before anything is painted; a classic script, since modules come too late.
try {
  const theme = localStorage.getItem("shoal.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // the system's choice holds
}
