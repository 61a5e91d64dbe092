// Notifications of this browser: whether it is told what waits and what was answered, and switching that.

import { api } from "./api.js";

const canBe = () => "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;

let worker = null;

/** Have the browser keep the page's service worker; the page works without. */
export function startWorker() {
  worker = navigator.serviceWorker?.register("/console/worker.js", { scope: "/" }).catch(() => null);
}

const subscribed = async () => (await navigator.serviceWorker.ready).pushManager.getSubscription();

/** `none` where this browser or this server cannot; else `on`, `off`, or `blocked` by the browser's settings. */
export async function pushState() {
  if (!canBe() || !(await worker)) return "none";
  if (!(await api.push()).on) return "none";
  if (Notification.permission === "denied") return "blocked";
  return (await subscribed()) ? "on" : "off";
}

/** Ask the browser, and leave its address with the server. Throws what either says against it. */
export async function pushOn() {
  if ((await Notification.requestPermission()) !== "granted") return;
  const { key } = await api.push();
  const { pushManager } = await navigator.serviceWorker.ready;
  const made = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  try {
    await api.subscribe({ endpoint, p256dh: keys.p256dh, auth: keys.auth });
  } catch (error) {
    await made.unsubscribe();
    throw error;
  }
}

export async function pushOff() {
  const made = await subscribed();
  if (!made) return;
  await made.unsubscribe();
  await api.unsubscribe(made.endpoint).catch(() => {}); // a gone one is forgotten by itself
}

/** Take a notification away whose question was answered elsewhere. */
export async function closeNotification(tag) {
  const registration = await worker;
  for (const one of (await registration?.getNotifications?.({ tag })) || []) one.close();
}
