// Formulas. KaTeX, its styles and fonts are loaded with the first formula.

let loading = null;

/** Load KaTeX and its style sheet. Without the styles, a formula appears twice, as MathML and as HTML. */
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

/** Typeset the formula in an element's text. An invalid formula stays as written. */
export async function typeset(element, displayMode) {
  const source = element.textContent;
  try {
    const katex = await (loading ??= load());
    const box = document.createElement("span");
    katex.render(source, box, { displayMode, throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200 });
    element.title = source;
    element.replaceChildren(...box.childNodes);
  } catch (error) {
    if (error.name !== "ParseError") loading = null; // the next formula tries again
  }
}
