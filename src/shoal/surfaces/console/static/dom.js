// Exports of the view library, and components that render only when their properties change.

import { Component, h, html, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";

export { Component, h, html, render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** A view that renders again only if one of its properties changes, compared by identity. */
export function memo(view) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const keys = new Set([...Object.keys(this.props), ...Object.keys(next)]);
      return [...keys].some((key) => this.props[key] !== next[key]);
    }

    render(props) {
      return h(view, props);
    }
  };
}
