// Collect keys typed while the search box is loading.

const WAIT_MS = 3_000;

/** Collect characters for at most WAIT_MS. Call the returned function to stop and get them. */
export function typeahead() {
  let text = "";
  const keyed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Backspace") text = text.slice(0, -1);
    else if (event.key.length === 1) text += event.key;
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const end = () => {
    removeEventListener("keydown", keyed, true);
    return text;
  };
  addEventListener("keydown", keyed, true);
  setTimeout(end, WAIT_MS);
  return end;
}
