// A model's words, as markdown; pieces of a growing text that are finished are rendered once.

import { Component, html, useMemo } from "../dom.js";
import { pieces } from "../pieces.js";

let markdown = null; // the module, once something has to be rendered
const waiting = new Set();

function load() {
  import("../markdown.js").then(
    (found) => {
      markdown = found;
      for (const block of waiting) block.fill();
      waiting.clear();
    },
    () => {}, // the words stand there as they are; the next block tries again
  );
}

/** One block of markdown. Its nodes are made by markdown.js, not by the view library. */
export class Prose extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text || next.live !== this.props.live;
  }

  componentDidMount() {
    this.fill();
  }

  componentDidUpdate() {
    this.fill();
  }

  componentWillUnmount() {
    waiting.delete(this);
  }

  fill() {
    const { text, thread, live, draft } = this.props;
    this.base.classList.toggle("is-plain", !markdown);
    if (markdown) {
      this.base.replaceChildren(markdown.render(text, { thread, live, draft }));
      return;
    }
    this.base.textContent = text;
    waiting.add(this);
    load();
  }

  render() {
    return html`<div class="prose"></div>`;
  }
}

/** A text that still grows. */
export function GrowingProse({ text, thread }) {
  const parts = useMemo(() => pieces(text), [text]);
  return html`<div class="growing">
    ${parts.map((part, at) => html`<${Prose} key=${at} text=${part} thread=${thread} live=${at === parts.length - 1} draft />`)}
  </div>`;
}
