// Charts as SVG: stacked columns, a stacked bar, figures. Each also has its content as text for screen readers.

import { html, useLayoutEffect, useRef, useState } from "../dom.js";

/** Return an element's width, and the ref that measures it. */
export function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => box.current && setWidth(Math.round(box.current.clientWidth));
    measure();
    const watching = new ResizeObserver(measure);
    watching.observe(box.current);
    return () => watching.disconnect();
  }, []);
  return [width, box];
}

/** Return the end of an axis: the smallest round number at or above `value` whose half is also round. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

/** Return the `most` names with the largest sums in `{name: value}`. */
export function largest(rows, most = 5) {
  const sums = new Map();
  for (const row of rows) for (const [name, value] of Object.entries(row)) sums.set(name, (sums.get(name) || 0) + value);
  return [...sums].filter(([, value]) => value > 0).sort((one, other) => other[1] - one[1]).slice(0, most).map(([name]) => name);
}

const TOP = 8;
const FOOT = 20;
const AXIS = 46;
const END = 14; // room for the last label
const LABEL = 54; // width of a label with its margin

/** Stacked columns. `columns` are `{key, label, said, parts: {series name: value}}`. `series` are `{name, kind}` from bottom
 * to top, where `kind` is the class of the color. */
export function Columns({ label, columns, series, format, height = 180 }) {
  const [width, box] = useWidth();
  const total = (column) => series.reduce((sum, { name }) => sum + (column.parts[name] || 0), 0);
  const top = ceiling(Math.max(0, ...columns.map(total)));
  const room = Math.max(0, width - AXIS - END);
  const step = room / Math.max(1, columns.length);
  const scale = (height - TOP - FOOT) / top;
  const every = Math.max(1, Math.ceil((columns.length * LABEL) / Math.max(1, room)));
  const y = (value) => height - FOOT - value * scale;
  return html`
    <div class="chart" ref=${box}>
      ${width > 0 && html`
        <svg width=${width} height=${height} role="img" aria-label=${label}>
          ${[0, top / 2, top].map((value) => html`
            <line class="grid" x1=${AXIS} x2=${width - END} y1=${y(value)} y2=${y(value)} />
            <text class="axis" x=${AXIS - 6} y=${y(value) + 4} text-anchor="end">${format(value)}</text>
          `)}
          ${columns.map((column, at) => {
            let below = 0;
            return html`
              <g key=${column.key} class="column">
                <title>${column.said}</title>
                <rect class="catch" x=${AXIS + at * step} y=${TOP} width=${step} height=${height - TOP - FOOT} />
                ${series.map(({ name, kind }) => {
                  const value = column.parts[name] || 0;
                  if (!value) return null;
                  below += value;
                  return html`<rect class=${kind} x=${AXIS + at * step + step * 0.14} y=${y(below)} width=${Math.max(1, step * 0.72)} height=${Math.max(0.75, value * scale)} />`;
                })}
                ${(columns.length - 1 - at) % every === 0 && html`<text class="axis" x=${AXIS + (at + 0.5) * step} y=${height - 5} text-anchor="middle">${column.label}</text>`}
              </g>
            `;
          })}
        </svg>
      `}
    </div>
  `;
}

export const Legend = ({ series }) => html`
  <ul class="legend">
    ${series.map(({ name, shown, kind, value }) => html`<li key=${name}><svg viewBox="0 0 10 10" aria-hidden="true"><rect class=${kind} width="10" height="10" rx="2" /></svg><span class="breakable">${shown || name}</span>${value && html`<span class="faint">${value}</span>`}</li>`)}
  </ul>
`;

/** A bar with parts `[{name, kind, value}]` of `whole`. `marks` are lines across the bar. */
export function Stack({ label, parts, whole, marks = [] }) {
  let at = 0;
  return html`
    <svg class="stack" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label=${label}>
      <rect class="track" width="1000" height="28" />
      ${parts.map(({ name, kind, value }) => {
        const width = (Math.max(0, value) / whole) * 1000;
        at += width;
        return width > 0 && html`<rect key=${name} class=${kind} x=${at - width} width=${Math.max(1.5, width)} height="28"><title>${name}</title></rect>`;
      })}
      ${marks.map((mark) => html`<rect class="mark" x=${Math.min(998, (mark / whole) * 1000)} width="2" height="28" />`)}
    </svg>
  `;
}

/** Large figures: `[{name, value, note, kind, href}]`. */
export const Figures = ({ figures }) => html`
  <dl class="figures">
    ${figures.map(({ name, value, note, kind = "", href }) => html`
      <div key=${name} class=${kind}>
        <dt>${href ? html`<a href=${href}>${name}</a>` : name}</dt>
        <dd><span class="figure">${value}</span>${note && html`<span class="faint">${note}</span>`}</dd>
      </div>
    `)}
  </dl>
`;
