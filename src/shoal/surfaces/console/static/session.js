// The page's state and its exchange with the server: following threads, sending, loading lists.

import { api } from "./api.js";
import { Frames } from "./frames.js";
import { canSeeApprovals, isSomebodyElse } from "./me.js";
import { afterFailure, change, keep, newMessage, nextToSend, restore, takenBack, without } from "./outgoing.js";
import { closeNotification } from "./push.js";
import { readJson, writeJson } from "./storage.js";
import { arrivedIds, emptyThread, fold, foldEarlier, foldLive, follows, reconnected } from "./store.js";
import { backoffMs } from "./sse.js";

export const TAIL_EVENTS = 400; // events loaded when a thread is opened, and per further request
export const THREADS_PAGE = 200; // threads listed at first, and per further request
const POLL_MS = 4_000; // while no stream reports changes, or messages are unsent
const POLL_HIDDEN_MS = 30_000;
const POLL_QUIET_MS = 90_000; // for changes that no stream reports
const KINDS = ["threads", "approvals", "me"];
const WHO_KEYS = ["shoal.who", "shoal-key"]; // storage keys of me.js and key.js
const CHANGES = "shoal.changes";
const WORKED_MS = 5_000; // a stream that lasted this long resets the retry pause
const REST_MS = 45_000;
const DECIDED = [404, 409, 410]; // the approval is gone, already decided, or expired
const VIEWS_MAX = 6; // threads kept in memory

export class Session {
  constructor() {
    this.state = {
      link: "connecting", // connecting, live, offline
      retryAtMs: 0,
      signedOut: false,
      threads: null,
      hasOlder: false, // whether more threads exist than are listed
      approvals: [],
      answers: {}, // card or approval -> {text, undo, thread, title, isDecided}: outcomes of decisions made on this page
      views: {}, // thread -> {state, info, loaded, missing, complete}
      outgoing: restore(sessionStorage),
      seen: readJson(localStorage, "shoal.seen"),
      choices: {}, // new thread -> {agent, model} chosen for it
      suggestion: null, // {text} for the message box
      sends: 0, // number of messages sent from this page
      said: "", // text of the live region
    };
    this.listeners = new Set();
    this.older = []; // threads below the first page, as they were when loaded
    this.wanted = ""; // thread id
    this.following = null;
    this.changes = null; // the AbortController of the stream of changes
    this.isInformed = false; // whether that stream is open
    this.hasFailed = false; // whether a request has failed since the last full refresh
    this.asks = 0;
    this.shown = { threads: 0, approvals: 0 }; // number of the request that produced each list
    this.frames = new Frames(() => {
      for (const listener of this.listeners) listener(this.state);
    });
    this.sendingTo = new Set();
    this.endPause = () => {};
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(fields, isLive = false) {
    this.state = { ...this.state, ...fields };
    this.frames.ask(isLive);
  }

  start() {
    addEventListener("online", () => this.retryNow());
    addEventListener("storage", ({ key }) => {
      if (!key || WHO_KEYS.includes(key)) this.refresh(["me"]); // another tab may have signed in as someone else
    });
    document.addEventListener("visibilitychange", () => this.turned());
    this.poll();
    this.followChanges();
  }

  /** Close the streams of a page that stays hidden, because browsers limit the connections per host. */
  turned() {
    clearTimeout(this.resting);
    if (document.hidden) {
      this.resting = setTimeout(() => {
        this.following?.abort();
        this.changes.abort();
      }, REST_MS);
      return;
    }
    if (this.following?.signal.aborted) this.follow();
    if (this.changes.signal.aborted) this.followChanges();
    this.markSeen(this.wanted);
    this.retryNow();
    this.refresh();
  }

  async poll() {
    for (let askedMs = 0; ; ) {
      const isQuiet = this.isInformed && !this.hasFailed && !this.state.outgoing.length;
      if (!isQuiet || Date.now() - askedMs >= POLL_QUIET_MS) {
        askedMs = Date.now();
        await this.refresh();
      }
      await new Promise((done) => setTimeout(done, document.hidden ? POLL_HIDDEN_MS : POLL_MS));
    }
  }

  /** Follow the stream of changes. To save connections, only one tab of a browser does this. The others poll. */
  async followChanges() {
    this.changes = new AbortController();
    const { signal } = this.changes;
    const follow = () => this.readChanges(signal);
    if (!navigator.locks) await follow(); // plain HTTP to another machine has no lock manager
    else await navigator.locks.request(CHANGES, { signal }, follow).catch(() => {}); // the tab was hidden before its turn
  }

  async readChanges(signal) {
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      const beganMs = Date.now();
      const take = ({ changed }) => {
        this.isInformed = true;
        this.refresh(changed);
      };
      try {
        await api.followChanges({ signal, take });
      } catch (error) {
        this.failed(error);
      }
      this.isInformed = false;
      if (Date.now() - beganMs > WORKED_MS) attempt = 0;
      if (!signal.aborted) await until(backoffMs(attempt), signal);
    }
  }

  /** Load the given kinds, by default all. */
  async refresh(kinds = KINDS) {
    const askedMs = Date.now();
    const ask = (this.asks += 1);
    try {
      const [newest, approvals, isChanged] = await Promise.all([
        kinds.includes("threads") && api.threads(THREADS_PAGE),
        kinds.includes("approvals") && (canSeeApprovals() ? api.approvals() : []),
        kinds.includes("me") && isSomebodyElse(),
      ]);
      if (isChanged) {
        location.reload();
        return;
      }
      if (newest && ask > this.shown.threads) {
        this.shown.threads = ask;
        this.showThreads(newest, askedMs);
      }
      if (approvals && ask > this.shown.approvals) {
        this.shown.approvals = ask;
        this.set({ approvals: this.undecided(approvals) });
      }
      if (kinds === KINDS) this.hasFailed = false;
      this.set({ signedOut: false });
      if (!this.following) this.set({ link: "live" });
      this.flush();
    } catch (error) {
      this.failed(error);
      if (!this.following) this.set({ link: "offline", retryAtMs: 0 });
      this.hasFailed = true;
    }
  }

  showThreads(newest, askedMs) {
    const threads = this.withOlder(newest);
    let { outgoing } = this.state;
    for (const info of threads) outgoing = takenBack(outgoing, info, this.state.views[info.thread]?.state, askedMs);
    this.keepOutgoing(outgoing);
    const hasOlder = this.older.length ? this.state.hasOlder : newest.length >= THREADS_PAGE;
    this.set({ threads, hasOlder, seen: this.firstSeen(threads) });
  }

  withOlder(newest) {
    const known = new Set(newest.map((info) => info.thread));
    return this.older.length ? [...newest, ...this.older.filter((info) => !known.has(info.thread))] : newest;
  }

  async loadOlder() {
    const { threads } = this.state;
    const oldest = threads?.reduce((least, info) => (!info.pinned && info.updated_at < least ? info.updated_at : least), "9");
    try {
      const page = await api.threads(THREADS_PAGE, oldest);
      this.older = [...this.older, ...page];
      this.set({ threads: this.withOlder(this.state.threads), hasOlder: page.length >= THREADS_PAGE });
    } catch (error) {
      this.failed(error);
    }
  }

  /** Treat everything as read on the first visit. */
  firstSeen(threads) {
    if (this.state.seen) return this.state.seen;
    const seen = Object.fromEntries(threads.map((info) => [info.thread, info.last_seq]));
    writeJson(localStorage, "shoal.seen", seen);
    return seen;
  }

  failed(error) {
    if (error.status === 401) this.set({ signedOut: true });
  }

  // ---- following a thread ----

  /** Follow a thread. With `isNew`, its first message creates the thread. */
  open(thread, isNew = false) {
    if (this.wanted === thread) return;
    this.wanted = thread;
    if (isNew) this.putView(thread, { ...newView(thread), missing: true });
    this.follow();
  }

  follow() {
    const thread = this.wanted;
    this.following?.abort();
    this.following = thread ? new AbortController() : null;
    if (!thread) return;
    this.putView(thread, this.state.views[thread] || newView(thread));
    this.followThread(thread, this.following.signal);
  }

  putView(thread, fields, isLive = false) {
    const views = { ...this.state.views };
    const view = { ...views[thread], ...fields };
    delete views[thread]; // move it to the end: the first entry is dropped first
    views[thread] = view;
    for (const old of Object.keys(views).slice(0, -VIEWS_MAX)) delete views[old];
    this.set({ views }, isLive);
  }

  fold(thread, change, isLive = false) {
    const view = this.state.views[thread];
    if (view) this.putView(thread, { state: change(view.state) }, isLive);
  }

  async followThread(thread, signal) {
    this.set({ link: "connecting" });
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      const beganMs = Date.now();
      let link = "connecting";
      try {
        const { loaded, missing } = this.state.views[thread];
        if (!loaded && !missing) await this.loadTail(thread, signal);
        if (!signal.aborted && !missing) await this.readEvents(thread, signal);
        if (missing) link = "live";
      } catch (error) {
        link = this.lostThread(thread, error);
      }
      if (signal.aborted) return;
      if (Date.now() - beganMs > WORKED_MS) attempt = 0;
      const waitMs = this.state.views[thread].missing ? 3_600_000 : backoffMs(attempt);
      this.set({ link, retryAtMs: Date.now() + waitMs });
      await this.pause(waitMs, signal);
    }
  }

  lostThread(thread, error) {
    this.failed(error);
    if (error.status !== 404) return "offline";
    const awaited = this.state.outgoing.some((message) => message.thread === thread && message.state === "accepted");
    if (!awaited) this.putView(thread, { missing: true });
    return "live";
  }

  async loadTail(thread, signal) {
    const info = await api.thread(thread);
    const after = Math.max(0, info.last_seq - TAIL_EVENTS);
    const events = await api.events(thread, after, TAIL_EVENTS);
    if (signal.aborted) return;
    this.take(thread, events);
    this.putView(thread, { info, loaded: true, missing: false, complete: after === 0 });
  }

  async loadEarlier(thread) {
    const before = this.state.views[thread].state.firstSeq;
    const after = Math.max(0, before - 1 - TAIL_EVENTS);
    try {
      const events = await api.events(thread, after, Math.max(1, before - 1 - after));
      this.fold(thread, (state) => foldEarlier(state, events));
      this.putView(thread, { complete: after === 0 });
    } catch (error) {
      this.failed(error);
    }
  }

  readEvents(thread, signal) {
    return api.follow(thread, this.state.views[thread].state.lastSeq, {
      signal,
      opened: () => {
        this.set({ link: "live", signedOut: false });
        this.fold(thread, reconnected);
        this.flush();
      },
      take: (event) => {
        if (!signal.aborted) this.takeOne(thread, event);
      },
    });
  }

  takeOne(thread, event) {
    if (!event.seq) {
      this.fold(thread, (state) => foldLive(state, event), event.type !== "status");
      return;
    }
    const { state } = this.state.views[thread];
    if (event.seq <= state.lastSeq) {
      this.putView(thread, newView(thread)); // the server never repeats events, so the name now belongs to another journal
      throw new Error("another journal");
    }
    if (!follows(state, event)) throw new Error("events were lost"); // reload from the last known event
    this.take(thread, [event]);
    this.announce(event);
    if (["turn_started", "turn_finished", "approval_requested", "approval_decided"].includes(event.type) && !this.isInformed) this.refresh();
  }

  take(thread, events) {
    this.fold(thread, (state) => fold(state, events));
    this.markSeen(thread);
    const arrived = arrivedIds(events);
    for (const event of events) {
      if (event.type !== "steered" || event.data.message_id) continue;
      const steer = this.state.outgoing.find((message) => message.kind === "steer" && message.text === event.data.text);
      if (steer) arrived.add(steer.id);
    }
    this.keepOutgoing(without(this.state.outgoing, arrived));
  }

  announce({ type, data }) {
    if (type === "assistant_message" && data.text) this.set({ said: data.text.slice(0, 600) });
    else if (type === "approval_requested") this.set({ said: `${data.tool} asks for your approval.` });
    else if (type === "approval_decided") closeNotification(data.approval_id);
    else if (type === "error") this.set({ said: data.message.replaceAll("`", "") });
  }

  markSeen(thread) {
    if (document.hidden) return;
    const last = this.state.views[thread]?.state.lastSeq || 0;
    if (!last || this.state.seen?.[thread] === last) return;
    this.setSeen(thread, last);
  }

  pause(ms, signal) {
    return new Promise((done) => {
      setTimeout(done, ms);
      this.endPause = done;
      signal.addEventListener("abort", done, { once: true });
    });
  }

  retryNow() {
    this.endPause();
    this.flush();
  }

  // ---- user actions ----

  /** `mine`: the person wrote the files. Others' files taint the turn. */
  send(thread, text, files = [], mine = false) {
    const attachments = files.map((file) => ({ name: file.name, media_type: file.type, content: file, file: "", mine }));
    const choice = this.state.choices[thread];
    this.begin(newMessage(thread, text, "message", attachments, choice));
  }

  steer(thread, text) {
    this.begin(newMessage(thread, text, "steer", []));
  }

  begin(message) {
    this.set({ sends: this.state.sends + 1 });
    this.keepOutgoing([...this.state.outgoing, message]);
    this.deliver(message.thread);
  }

  again(id) {
    this.keepOutgoing(change(this.state.outgoing, id, { state: "offline", error: "", kind: "message" }));
    this.deliver(this.state.outgoing.find((message) => message.id === id).thread);
  }

  drop(id) {
    this.keepOutgoing(without(this.state.outgoing, new Set([id])));
  }

  /** Put text into the open thread's message box. */
  suggest(text) {
    this.set({ suggestion: { text } });
  }

  setSeen(thread, last) {
    const seen = { ...this.state.seen, [thread]: last };
    writeJson(localStorage, "shoal.seen", seen);
    this.set({ seen });
  }

  async command(thread, text) {
    let answer = "";
    const problem = await this.attempt(async () => ({ answer } = await api.command(thread, text)));
    return { answer: answer || (problem ? "" : "Done."), problem };
  }

  async stop(thread) {
    await this.attempt(() => api.abort(thread));
  }

  /** Decide an approval and remove it from the list immediately. A decision that arrives too late reloads the list. */
  async decide(id, decision, scope, calls = []) {
    const asked = this.state.approvals.find((record) => record.id === id || record.item?.card === id);
    const told = (text, undo, isDecided) => ({ answers: { ...this.state.answers, [id]: { text, undo, thread: asked?.thread, title: asked?.title, isDecided } } });
    try {
      const answer = await api.decide(id, decision, scope, calls);
      this.set(told(answer.message || (decision === "allow" ? "Allowed." : "Denied."), answer.undo || "", true));
      this.set({ approvals: this.undecided(this.state.approvals) });
      this.refresh();
      return "";
    } catch (error) {
      this.failed(error);
      if (DECIDED.includes(error.status)) {
        this.set(told(error.message, "", false));
        await this.refresh();
      }
      return error.message;
    }
  }

  /** Leave out approvals decided on this page. A list requested before the decision may contain them. */
  undecided(approvals) {
    const { answers } = this.state;
    return approvals.filter((record) => !answers[record.id]?.isDecided && !answers[record.item?.card]?.isDecided);
  }

  async attempt(action) {
    try {
      await action();
      return "";
    } catch (error) {
      this.failed(error);
      return error.message;
    }
  }

  keepOutgoing(outgoing) {
    if (outgoing === this.state.outgoing) return;
    keep(sessionStorage, outgoing);
    this.set({ outgoing });
  }

  flush() {
    for (const thread of new Set(this.state.outgoing.map((message) => message.thread))) this.deliver(thread);
  }

  /** Send a thread's unsent messages one after another. */
  async deliver(thread) {
    if (this.sendingTo.has(thread)) return;
    this.sendingTo.add(thread);
    for (let message = nextToSend(this.state.outgoing, thread); message; message = nextToSend(this.state.outgoing, thread)) {
      if (!(await this.deliverOne(message))) break;
    }
    this.sendingTo.delete(thread);
  }

  async deliverOne(message) {
    const { id, thread, text, kind, attachments, choice } = message;
    this.keepOutgoing(change(this.state.outgoing, id, { state: "sending" }));
    try {
      if (kind === "steer") {
        const { delivered } = await api.steer(thread, text, id);
        const next = delivered ? { state: "accepted", acceptedMs: Date.now() } : { kind: "message", state: "offline" };
        this.keepOutgoing(change(this.state.outgoing, id, next));
        return true;
      }
      const files = await this.upload(thread, id, attachments);
      await api.send(thread, { text, message_id: id, attachments: files, ...choice });
      this.keepOutgoing(change(this.state.outgoing, id, { state: "accepted", acceptedMs: Date.now() }));
      this.appeared(thread);
      return true;
    } catch (error) {
      this.failed(error);
      const fields = afterFailure(error);
      this.keepOutgoing(change(this.state.outgoing, id, fields));
      return fields.state !== "offline";
    }
  }

  /** Upload the files that are not on the server yet. A retry continues with the first missing file. */
  async upload(thread, id, attachments) {
    let known = attachments;
    const put = (place, fields) => this.keepOutgoing(change(this.state.outgoing, id, { attachments: (known = known.with(place, fields)) }));
    for (const [place, { file: stored, content, ...attachment }] of attachments.entries()) {
      const file = stored || (await api.upload(thread, content, attachment.mine, (sent) => put(place, { ...attachments[place], sent }))).file;
      put(place, { file, name: attachment.name, media_type: attachment.media_type || "", mine: Boolean(attachment.mine) });
    }
    return known;
  }

  appeared(thread) {
    if (!this.state.views[thread]?.missing) return;
    this.putView(thread, { missing: false });
    this.endPause();
  }
}

const newView = (thread) => ({ state: emptyThread(thread), loaded: false, missing: false, complete: false });

/** Wait for a duration, or until `signal` aborts. */
const until = (ms, signal) =>
  new Promise((done) => {
    setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
