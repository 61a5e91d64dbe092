// A person's preferences, stored on the server for all browsers and in this browser for the first paint.

import { api } from "./api.js";

export const THEMES = [["system", "System theme"], ["light", "Light theme"], ["dark", "Dark theme"]];

const keep = (key, value) => {
  try {
    localStorage.setItem(key, value);
  } catch {
    // without storage, the choice lasts until the page is closed
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

export function apply({ theme = "system", grouping = "day" } = {}) {
  Object.assign(preferences, { theme, grouping });
  keep("shoal.theme", theme);
  keep("shoal.grouped", grouping);
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("preferred")); // update views that are already drawn
}

/** Change preferences here and on the server. Without a server, they change only in this browser. */
export function prefer(fields) {
  apply({ ...preferences, ...fields });
  api.setPreferences(preferences).catch(() => {});
}
