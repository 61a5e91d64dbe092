// An outgoing message, and actions if it was not delivered.

import { html, memo } from "../dom.js";

function words(message, running) {
  switch (message.state) {
    case "sending":
      return "Sending…";
    case "offline":
      return "Not sent yet. It will be sent when Shoal is reachable again.";
    case "accepted":
      if (message.kind === "steer") return "Sending to this turn…";
      return running ? "Queued for the next turn" : "Delivered";
    default:
      return message.error;
  }
}

export const OutgoingRow = memo(function OutgoingRow({ message, session, running }) {
  const stuck = message.state === "busy" || message.state === "refused";
  return html`
    <div class=${`row user outgoing is-${message.state}`}>
      <span class="node" aria-hidden="true"></span>
      <div class="body">
        ${message.text && html`<p class="said">${message.text}</p>`}
        ${message.attachments.map((file) => html`<p class="file">${file.name}${file.sent > 0 && html`<progress aria-label=${`Sending ${file.name}`} value=${file.sent}></progress>`}</p>`)}
        <p class="state" role=${stuck ? "alert" : null}>
          <span>${words(message, running)}</span>
          ${stuck && html`<button type="button" class="quiet" onClick=${() => session.again(message.id)}>Try again</button>`}
          ${(stuck || message.state === "offline") &&
          html`<button type="button" class="quiet" onClick=${() => session.drop(message.id)}>Discard</button>`}
        </p>
      </div>
    </div>
  `;
});
