// Draw the page once per frame, however fast text streams in.

const REST_SHARE = 7; // pause between drawings of streamed text, as a multiple of the last one's duration
const REST_MS_MAX = 300;
const HIDDEN_MS = 200; // a hidden page has no frames

export class Frames {
  constructor(draw) {
    this.draw = draw;
    this.asked = false;
    this.later = 0; // the timer of what streamed in meanwhile
    this.drawn = { beganMs: 0, atMs: 0, tookMs: 0 }; // the last frame, with layout and paint
    this.afterFrame = new MessageChannel();
    this.afterFrame.port1.onmessage = () => {
      const atMs = performance.now();
      this.drawn = { ...this.drawn, atMs, tookMs: atMs - this.drawn.beganMs };
    };
  }

  /** `isLive`: streamed text. Drawing it takes at most an eighth of the time, so that many tabs on a slow machine show
 * larger pieces instead of blocking each other. */
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
