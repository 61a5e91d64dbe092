// A model's text as Markdown. Finished pieces of a growing text are rendered once.

import { Component, html, useMemo } from "../dom.js";
import { pieces } from "../pieces.js";

let markdown = null; // the module, loaded on first use
const waiting = new Set();

function load() {
  import("../markdown.js").then(
    (found) => {
      markdown = found;
      for (const block of waiting) block.fill();
      waiting.clear();
    },
    () => {}, // the text stays plain; the next block tries again
  );
}

/** One block of markdown. Its nodes come from markdown.js, not the view library. */
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

/** A growing text. */
export function GrowingProse({ text, thread }) {
  const parts = useMemo(() => pieces(text), [text]);
  return html`<div class="growing">
    ${parts.map((part, at) => html`<${Prose} key=${at} text=${part} thread=${thread} live=${at === parts.length - 1} draft />`)}
  </div>`;
}
