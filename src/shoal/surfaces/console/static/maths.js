// Formulas: KaTeX, its style and its fonts are loaded when the first one is seen.

let loading = null;

/** KaTeX with its style sheet, without which a formula would appear twice, as MathML and as HTML. */
async function load() {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("./vendor/katex/katex.min.css", import.meta.url).href;
  const styled = new Promise((done, failed) => {
    style.onload = done;
    style.onerror = failed;
  });
  document.head.append(style);
  await Promise.all([styled, import("./vendor/katex/katex.min.js")]);
  return globalThis.katex;
}

/** Typeset the formula in an element's text; an invalid one stays as written. */
export async function typeset(element, displayMode) {
  const source = element.textContent;
  try {
    const katex = await (loading ??= load());
    const box = document.createElement("span");
    katex.render(source, box, { displayMode, throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200 });
    element.title = source;
    element.replaceChildren(...box.childNodes);
  } catch (error) {
    if (error.name !== "ParseError") loading = null; // it could not be loaded: the next formula tries again
  }
}
