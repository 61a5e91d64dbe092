/**
 * Split a growing text at blank lines outside code fences, lists and quotes. Later text cannot change the finished pieces,
 * so only the last one must be rendered again. Joined, the pieces are the text.
 */
export function pieces(text) {
  const found = [];
  let from = 0;
  let at = 0;
  let fence = "";
  let blank = false;
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,}|\$\$)/.exec(line)?.[1];
    if (blank && !fence && /^[^\s>*+\-\d|]/.test(line) && at > from) {
      found.push(text.slice(from, at));
      from = at;
    }
    if (mark && !fence) fence = mark === "$$" && line.trim().length > 2 && line.trimEnd().endsWith("$$") ? "" : mark;
    else if (mark && mark[0] === fence[0] && mark.length >= fence.length) fence = "";
    else if (fence === "$$" && line.trimEnd().endsWith("$$")) fence = "";
    blank = line.trim() === "";
    at += line.length + 1;
  }
  found.push(text.slice(from));
  return found;
}
