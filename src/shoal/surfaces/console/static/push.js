// This browser's notifications about approvals and replies.

import { api } from "./api.js";

const canBe = () => "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;

let worker = null;

/** Register the service worker. The page works without it. */
export function startWorker() {
  worker = navigator.serviceWorker?.register("/console/worker.js", { scope: "/" }).catch(() => null);
}

const subscribed = async () => (await navigator.serviceWorker.ready).pushManager.getSubscription();

/** Return `on`, `off`, `blocked` (by the browser's settings), or `none` if the browser or the server does not support notifications. */
export async function pushState() {
  if (!canBe() || !(await worker)) return "none";
  if (!(await api.push()).on) return "none";
  if (Notification.permission === "denied") return "blocked";
  return (await subscribed()) ? "on" : "off";
}

/** Subscribe in the browser and on the server. Throws if either fails. */
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
  await api.unsubscribe(made.endpoint).catch(() => {}); // the server drops dead subscriptions by itself
}

/** Close the notification of an approval that was decided elsewhere. */
export async function closeNotification(tag) {
  const registration = await worker;
  for (const one of (await registration?.getNotifications?.({ tag })) || []) one.close();
}
