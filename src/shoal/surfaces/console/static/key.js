// The page's key: the other half of its cookie, which every port of this host sees and which does nothing alone. Signing in
// puts it into the address once; from then on it is in this origin's storage, and goes along with each call.

const NAME = "shoal-key";
const FOR_WORKER = "shoal-key-1"; // the service worker has no localStorage

let fresh = ""; // from the address, not yet shown to be good

function stored() {
  try {
    return localStorage.getItem(NAME) || "";
  } catch {
    return "";
  }
}

/** What a call shows in the header X-Shoal. */
export const pageKey = () => fresh || stored();

/** Take the key out of the address. */
export function takeKey() {
  const address = new URL(location.href);
  fresh = address.searchParams.get("key") || "";
  if (!fresh) return;
  address.searchParams.delete("key");
  history.replaceState(history.state, "", address);
}

/** Keep the key that the server took. */
export function keepKey() {
  const key = pageKey();
  try {
    localStorage.setItem(NAME, key);
    fresh = "";
  } catch {
    // it is good until the page is left
  }
  self.caches?.open(FOR_WORKER).then((cache) => cache.put("/key", new Response(key))).catch(() => {});
}

/** Drop a key from the address that the server did not take; whether an older one is left to try. */
export function dropKey() {
  const isOther = Boolean(fresh) && fresh !== stored();
  fresh = "";
  return isOther && Boolean(stored());
}
