// The page's few pictograms, drawn in the colour of the text beside them.

import { html } from "../dom.js";

const paths = {
  fish: "M2 7c2.4-3.2 6.4-3.2 8.8 0C8.4 10.2 4.4 10.2 2 7zm8.8 0 2.4-2v4z",
  plus: "M8 3v10M3 8h10",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  send: "M8 13V3.5M4 7.5l4-4 4 4",
  stop: "M4.5 4.5h7v7h-7z",
  clip: "M12.5 7.5 7.7 12.3a3 3 0 0 1-4.3-4.3l5.2-5.2a2 2 0 0 1 2.9 2.9l-5.1 5.1a1 1 0 0 1-1.5-1.5l4.5-4.5",
  chevron: "M6 4l4 4-4 4",
  down: "M8 3v9.5M4 8.5l4 4 4-4",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3 13.5 13.5",
  pin: "M6 2.5h4l-.5 4 2 2.5h-7l2-2.5zM8 9v4.5",
  mic: "M8 2.5a2 2 0 0 0-2 2v3.5a2 2 0 0 0 4 0V4.5a2 2 0 0 0-2-2zM3.8 7.5a4.2 4.2 0 0 0 8.4 0M8 11.7v2",
  close: "M4 4l8 8M12 4l-8 8",
};

export const icon = (name) => html`
  <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${paths[name]} /></svg>
`;

/** Two fish of a shoal. */
export const mark = () => html`
  <svg class="mark" viewBox="0 0 24 20" aria-hidden="true" focusable="false">
    <path d="M2 6c2.7-3.6 7.2-3.6 9.9 0-2.7 3.6-7.2 3.6-9.9 0zm9.9 0 2.7-2.2v4.4z" />
    <path d="M8 14.5c2.7-3.6 7.2-3.6 9.9 0-2.7 3.6-7.2 3.6-9.9 0zm9.9 0 2.7-2.2v4.4z" />
  </svg>
`;
