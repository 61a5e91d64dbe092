// Syntax highlighting. The highlighter and each language are loaded on first use.

import "./vendor/purify.min.js";

const CHARS_MAX = 60_000; // longer code stays plain
const LANGUAGES = new Set([
  "bash", "c", "cpp", "csharp", "css", "diff", "dockerfile", "go", "ini", "java", "javascript", "json", "kotlin", "lua",
  "makefile", "markdown", "php", "powershell", "python", "ruby", "rust", "shell", "sql", "swift", "typescript", "xml", "yaml",
]);
const ALIASES = {
  sh: "bash", zsh: "bash", "c++": "cpp", "c#": "csharp", cs: "csharp", console: "shell", docker: "dockerfile", golang: "go",
  html: "xml", svg: "xml", js: "javascript", jsx: "javascript", jsonc: "json", kt: "kotlin", make: "makefile", md: "markdown",
  patch: "diff", ps1: "powershell", py: "python", rb: "ruby", rs: "rust", toml: "ini", ts: "typescript", tsx: "typescript", yml: "yaml",
};
const known = new Map(); // language -> promise of the highlighter that knows it

function load(language) {
  if (!known.has(language)) {
    const both = Promise.all([import("./vendor/highlight/core.min.js"), import(`./vendor/highlight/${language}.min.js`)]);
    known.set(language, both.then(([core, grammar]) => (core.default.registerLanguage(language, grammar.default), core.default)));
  }
  return known.get(language);
}

/** Highlight a `code` element. Text in an unknown language stays plain. */
export async function color(code, name) {
  const language = ALIASES[name.toLowerCase()] || name.toLowerCase();
  const text = code.textContent;
  if (!LANGUAGES.has(language) || text.length > CHARS_MAX) return;
  try {
    const highlighter = await load(language);
    const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
    const clean = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
    const colored = globalThis.DOMPurify.sanitize(value, clean);
    if (colored.textContent === text) code.replaceChildren(colored);
  } catch {
    known.delete(language); // the code stays plain; the next block tries again
  }
}
