// What a person has set for themselves: kept by the server, so that it holds in every browser, and here for the first paint.

import { api } from "./api.js";

export const THEMES = [["system", "System theme"], ["light", "Light theme"], ["dark", "Dark theme"]];

const keep = (key, value) => {
  try {
    localStorage.setItem(key, value);
  } catch {
    // it holds as long as the page then
  }
};

const read = (key) => {
  try {
    return localStorage.getItem(key) || "";
  } catch {
    return "";
  }
};

export const preferences = { theme: read("shoal.theme") || "system", grouping: read("shoal.grouped") || "day" };

/** Take over what the server has. */
export function apply({ theme = "system", grouping = "day" } = {}) {
  Object.assign(preferences, { theme, grouping });
  keep("shoal.theme", theme);
  keep("shoal.grouped", grouping);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("preferred")); // what shows them may be drawn already
}

/** Change some of them here and at the server; without a server they hold in this browser. */
export function prefer(fields) {
  apply({ ...preferences, ...fields });
  api.setPreferences(preferences).catch(() => {});
}
