// The service worker makes the page installable and shows its notifications. For the offline page it caches three files
// without secrets. It never caches conversations.

const KEPT = "shoal-offline-1";
const KEY = "shoal-key-1";
const OFFLINE = "/console/offline.html";

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll([OFFLINE, "/console/base.css", "/console/places.css"])).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  const old = caches.keys().then((names) => Promise.all(names.filter((name) => ![KEPT, KEY].includes(name)).map((name) => caches.delete(name))));
  event.waitUntil(old.then(() => self.clients.claim()));
});

self.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const isKept = pathname === "/console/base.css" || pathname === "/console/places.css";
  if (event.request.mode === "navigate") event.respondWith(fetch(event.request).catch(() => caches.match(OFFLINE)));
  else if (isKept) event.respondWith(fetch(event.request).catch(() => caches.match(pathname)));
});

// ---- notifications ----

const CHOICES = [{ action: "allow", title: "Allow once" }, { action: "deny", title: "Deny" }];
const SHOWN = { icon: "/console/icon-192.png", badge: "/console/icon-192.png" };

/** Return a call's headers. The page stores its key in the cache because a worker has no localStorage (key.js). */
async function headers() {
  const found = await caches.match("/key", { cacheName: KEY });
  return { "Content-Type": "application/json", "X-Shoal": found ? await found.text() : "" };
}

const pages = () => self.clients.matchAll({ type: "window", includeUncontrolled: true });

self.addEventListener("push", (event) => {
  const note = event.data.json();
  event.waitUntil(
    pages().then((open) => {
      if (open.some((page) => page.focused)) return undefined; // a focused page already shows it
      const { kind, title, text, thread, approval, is_cut: isCut } = note;
      const waits = kind === "approval";
      const options = { ...SHOWN, body: waits && isCut ? `${text}\nOpen this notification to read the full request and allow it.` : text, tag: approval || thread, renotify: true, requireInteraction: waits, data: { thread, approval } };
      return self.registration.showNotification(title, waits ? { ...options, actions: isCut ? CHOICES.slice(1) : CHOICES } : options);
    }),
  );
});

self.addEventListener("notificationclick", (event) => {
  const { notification, action } = event;
  notification.close();
  event.waitUntil(action && notification.data.approval ? decide(notification, action) : show(notification.data.thread));
});

async function decide({ title, data }, decision) {
  const options = { method: "POST", headers: await headers(), body: JSON.stringify({ decision, scope: "once" }) };
  let problem = "Cannot reach Shoal.";
  try {
    const answer = await fetch(`/api/approvals/${encodeURIComponent(data.approval)}`, options);
    if (answer.ok) return;
    problem = (await answer.json()).message;
  } catch {
    // reported below
  }
  await self.registration.showNotification(`Could not save your decision: ${title}`, { ...SHOWN, body: problem, tag: data.approval, data: { thread: data.thread, approval: "" } });
}

async function show(thread) {
  const address = `/#/t/${encodeURIComponent(thread)}`;
  const [page] = await pages();
  if (!page) return self.clients.openWindow(address);
  await page.focus();
  return page.navigate(address);
}

self.addEventListener("pushsubscriptionchange", (event) => {
  const key = event.oldSubscription?.options.applicationServerKey;
  if (!key) return;
  const again = self.registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  event.waitUntil(again.then(async (made) => fetch("/api/push", { method: "PUT", headers: await headers(), body: JSON.stringify(told(made)) })));
});

/** Convert a subscription to the server's format. */
function told(subscription) {
  const { endpoint, keys } = subscription.toJSON();
  return { endpoint, p256dh: keys.p256dh, auth: keys.auth };
}
