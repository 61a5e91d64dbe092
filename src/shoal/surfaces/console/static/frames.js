// Render the page at most once per frame while text streams in.

const REST_SHARE = 7; // pause between drawings of streamed text, as a multiple of the last one's duration
const REST_MS_MAX = 300;
const HIDDEN_MS = 200; // a hidden page gets no animation frames

export class Frames {
  constructor(draw) {
    this.draw = draw;
    this.asked = false;
    this.later = 0; // the timer for the next drawing of streamed text
    this.drawn = { beganMs: 0, atMs: 0, tookMs: 0 }; // the last frame, with layout and paint
    this.afterFrame = new MessageChannel();
    this.afterFrame.port1.onmessage = () => {
      const atMs = performance.now();
      this.drawn = { ...this.drawn, atMs, tookMs: atMs - this.drawn.beganMs };
    };
  }

  /** Request a drawing. With `isLive`, for streamed text, drawing takes at most an eighth of the time. On a slow machine with
   * many tabs, text then appears in larger pieces and the tabs do not block each other. */
  ask(isLive) {
    if (this.asked) return;
    const { atMs, tookMs } = this.drawn;
    const restMs = isLive ? atMs + Math.min(REST_MS_MAX, REST_SHARE * tookMs) - performance.now() : 0;
    if (restMs > 1) {
      this.later ||= setTimeout(() => this.ask(false), restMs);
      return;
    }
    clearTimeout(this.later);
    this.later = 0;
    this.asked = true;
    const frame = () => {
      this.asked = false;
      this.drawn.beganMs = performance.now();
      this.draw();
      if (!document.hidden) this.afterFrame.port2.postMessage(0);
    };
    if (document.hidden) setTimeout(frame, HIDDEN_MS);
    else requestAnimationFrame(frame);
  }
}
