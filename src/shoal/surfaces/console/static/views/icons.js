// The page's icons, in the color of the surrounding text.

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
  today: "M8 2.5v1M8 12.5v1M2.5 8h1M12.5 8h1M4.1 4.1l.7.7M11.2 11.2l.7.7M4.1 11.9l.7-.7M11.2 4.8l.7-.7M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5z",
  approvals: "M8 2.2 3 4v4c0 3 2.2 5 5 5.8 2.8-.8 5-2.8 5-5.8V4zM5.8 8l1.6 1.6 3-3.2",
  schedules: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM8 5v3l2 1.5",
  agents: "M8 8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3.2 13.5c.4-2.4 2.3-3.7 4.8-3.7s4.4 1.3 4.8 3.7",
  processes: "M2.5 3.5h11v9h-11zM5 6.5l2 1.5-2 1.5M8.5 10h2.5",
  compare: "M8 2.5v11M2.5 5.5h3.5v5H2.5zM10 5.5h3.5v5H10z",
  memory: "M4.5 2.5h7.5v11H4.5A1.2 1.2 0 0 1 3.3 12.3V3.7a1.2 1.2 0 0 1 1.2-1.2zM6 5.5h3.8M6 8h3.8",
  skills: "M8 2.5l1.6 3.5 3.8.4-2.8 2.6.8 3.8L8 10.9l-3.4 1.9.8-3.8-2.8-2.6 3.8-.4z",
  permissions: "M4 7.5h8v6H4zM5.5 7.5V5a2.5 2.5 0 0 1 5 0v2.5",
  access: "M5.5 10.5a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4zM8.2 7.8H14M12 7.8v2.6",
  mcp: "M6 2.5v3M10 2.5v3M4.5 5.5h7V8a3.5 3.5 0 0 1-7 0zM8 11.5v2",
  backups: "M2.5 3.5h11v3h-11zM3.5 6.5v7h9v-7M6.5 9.5h3",
  usage: "M4 13V9M8 13V4M12 13V6.5M2.5 13.5h11",
  audit: "M6.5 4h7M6.5 8h7M6.5 12h7M2.5 4l.8.8 1.4-1.6M2.5 8l.8.8 1.4-1.6M2.5 12l.8.8 1.4-1.6",
  setup: "M9.6 5.6a.7.7 0 0 0 0 .9l.9.9a.7.7 0 0 0 .9 0l2-2a3.3 3.3 0 0 1-4.4 4.2L5.3 13.3a1.5 1.5 0 0 1-2.1-2.1l3.7-3.7a3.3 3.3 0 0 1 4.2-4.4z",
  settings: "M2.5 4.5h6M11.5 4.5h2M2.5 11.5h2M7.5 11.5h6M10 6a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM6 13a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z",
  rail: "M2.5 3.5h11v9h-11zM6.5 3.5v9",
  copy: "M5.5 5.5h7v8h-7zM10.5 5.5v-3h-7v8h2",
  done: "M3.5 8.5l3 3 6-7",
  again: "M12.8 7A5 5 0 1 0 12 11M13 3.5V7H9.5",
  swap: "M3 5.5h9M9.5 3 12 5.5 9.5 8M13 10.5H4M6.5 8 4 10.5 6.5 13",
  fork: "M5 3.5v9M5 8.5c4.5 0 6-1.5 6-4M3.5 3.5h3M3.5 12.5h3M9.5 4.5h3",
  keep: "M4.5 2.5h7v11L8 11l-3.5 2.5z",
  edit: "M3 13l.8-3L10.6 3.2a1.2 1.2 0 0 1 1.7 0l.5.5a1.2 1.2 0 0 1 0 1.7L6 12.2z",
  files: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
};

export const icon = (name) => html`
  <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${paths[name] ?? paths.fish} /></svg>
`;

/** An icon button. Its label appears on hover, or always if it fits. */
export const Act = ({ name, label, ...rest }) => html`<button type="button" class="act" aria-label=${label} ...${rest}>${icon(name)}<span class="label" aria-hidden="true">${label}</span></button>`;

export const mark = () => html`
  <svg class="mark" viewBox="0 0 24 20" aria-hidden="true" focusable="false">
    <path d="M2 6c2.7-3.6 7.2-3.6 9.9 0-2.7 3.6-7.2 3.6-9.9 0zm9.9 0 2.7-2.2v4.4z" />
    <path d="M8 14.5c2.7-3.6 7.2-3.6 9.9 0-2.7 3.6-7.2 3.6-9.9 0zm9.9 0 2.7-2.2v4.4z" />
  </svg>
`;
