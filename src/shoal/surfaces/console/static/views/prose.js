// A model's words, as markdown; pieces of a growing text that are finished are rendered once.

import { pieces, render } from "../markdown.js";
import { Component, html, useMemo } from "../dom.js";

/** One block of markdown. Its nodes are made by markdown.js, not by the view library. */
export class Prose extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text;
  }

  componentDidMount() {
    this.fill();
  }

  componentDidUpdate() {
    this.fill();
  }

  fill() {
    this.base.replaceChildren(render(this.props.text));
  }

  render() {
    return html`<div class="prose"></div>`;
  }
}

/** A text that still grows. */
export function GrowingProse({ text }) {
  const parts = useMemo(() => pieces(text), [text]);
  return html`<div class="growing">${parts.map((part, at) => html`<${Prose} key=${at} text=${part} />`)}</div>`;
}
