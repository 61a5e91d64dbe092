// Keys that are typed while the search box is still loading.

const WAIT_MS = 3_000;

/** Collect characters until the result is called, which returns them; for at most WAIT_MS. */
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
