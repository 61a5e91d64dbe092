// The page's key. Every port of this host sees the session cookie, which is useless without the key. Signing in puts the
// key into the URL once. The page then keeps it in this origin's storage and sends it with each call.

const NAME = "shoal-key";
const FOR_WORKER = "shoal-key-1"; // the service worker has no localStorage

let fresh = ""; // from the URL, not verified yet

function stored() {
  try {
    return localStorage.getItem(NAME) || "";
  } catch {
    return "";
  }
}

/** Return the value of a call's X-Shoal header. */
export const pageKey = () => fresh || stored();

/** Move the key out of the URL. */
export function takeKey() {
  const address = new URL(location.href);
  fresh = address.searchParams.get("key") || "";
  if (!fresh) return;
  address.searchParams.delete("key");
  history.replaceState(history.state, "", address);
}

/** Store the key that the server accepted. */
export function keepKey() {
  const key = pageKey();
  try {
    localStorage.setItem(NAME, key);
    fresh = "";
  } catch {
    // the key still works until the page is closed
  }
  self.caches?.open(FOR_WORKER).then((cache) => cache.put("/key", new Response(key))).catch(() => {});
}

/** Drop a rejected key that came from the URL. Returns whether an older key is left to try. */
export function dropKey() {
  const isOther = Boolean(fresh) && fresh !== stored();
  fresh = "";
  return isOther && Boolean(stored());
}
