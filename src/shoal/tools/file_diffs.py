"""Render a change to a file as a diff, or explain why it has none."""

import difflib
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from shoal.kernel.checkpoints import SINCE, FileChange, Lacks, TreeChange, TreeEntry, TurnChanges, alike, shown_path
from shoal.text.encodings import read_text
from shoal.tools.trees import Trees

BYTES_COMPARED_MAX = 262_144
LINES_COMPARED_MAX = 4_000
DIFF_LINES_MAX = 400
FILES_TOLD_MAX = 20
TOLD_CHARS_MAX = 2_400
"""Maximum total length of the diffs in a chat message."""
PATH_CHARS_MAX = 120

_LACKS: dict[Lacks, str] = {
    "large": "too large to be stored",
    "full": "beyond the storage limit of a workspace",
    "closed": "not readable",
}


def why_not_restorable(trees: Trees, change: TreeChange, now: TreeEntry | None) -> str:
    """Return why the earlier entry cannot be restored. Returns an empty string if it can be restored or is already in
    place.
    """
    before = change.before
    if before is not None and now is not None and alike(replace(now, mode=before.mode), before):
        return ""  # at most the mode differs
    if before is not None and before.kind in ("socket", "device"):
        return f"Shoal cannot restore a {before.kind}."
    if before is not None and before.lacks:
        return f"Its old content is {_LACKS[before.lacks]}, so the change cannot be undone."
    goes = now is not None and not (now.kind == "folder" and before is not None and before.kind == "folder")
    lacks = trees.lacks(now) if now is not None and goes else ""
    return f"It is {_LACKS[lacks]}, so the undo keeps it." if lacks else ""


def file_change(
    trees: Trees,
    change: TreeChange,
    since: Literal["", "changed", "restored", "shared"],
    why_not: str,
    redact: Callable[[str], str],
    *,
    shows: bool,
) -> FileChange:
    path, before, after = change
    name = redact(shown_path(path))
    kind = "added" if before is None else "removed" if after is None else "changed"
    if before is not None and after is not None and before.kind == after.kind and before.value == after.value:
        mode = f"Its mode changed from {before.mode:03o} to {after.mode:03o}." if before.mode != after.mode else ""
        note = f"{mode} {why_not}".strip() or "It is not stored, so Shoal cannot compare it."
        return FileChange(name, "mode" if mode else "changed", note=note, since=since)
    try:
        old_text, other = _text(trees, before), _text(trees, after)
    except OSError:
        return FileChange(
            name, kind, note="Its old content is no longer stored, so the change cannot be undone.", since=since
        )
    if old_text is None or other is None:
        return FileChange(name, kind, note=why_not or "It is not text or is too long to compare.", since=since)
    lines = list(difflib.unified_diff(old_text.splitlines(), other.splitlines(), lineterm="", n=3))[2:]
    added, removed = sum(line[:1] == "+" for line in lines), sum(line[:1] == "-" for line in lines)
    shown = lines[:DIFF_LINES_MAX] if shows else []
    if shown and len(lines) > len(shown):
        shown.append(f"… lines not shown: {len(lines) - len(shown)}")
    return FileChange(name, kind, added, removed, redact("\n".join(shown)), why_not, since)


def changes_text(changes: TurnChanges) -> str:
    lines = change_lines(changes.files[:FILES_TOLD_MAX], changes.changed, TOLD_CHARS_MAX)
    lines += changes.notes
    beyond = "".join(f"\n- {line}" for line in changes.beyond)
    return "\n".join(
        [
            "File changes in my last turn:",
            *lines,
            f"Not undone:{beyond}\n",
            "Send `/undo last` to restore the files. After later turns, `/undo` lists this turn by number.",
        ]
    )


def change_lines(files: Sequence[FileChange], changed: int, room: int) -> list[str]:
    """List changed files in Markdown, with diffs of at most `room` characters in total."""
    lines: list[str] = []
    for one in files:
        since = f", {SINCE[one.since]}" if one.since else ""
        counts = f" +{one.added} -{one.removed}" if one.added or one.removed else ""
        path, note = one.path.replace("`", "'")[:PATH_CHARS_MAX], f". {one.note}" if one.note else ""
        lines.append(f"- `{path}` {one.change}{counts}{since}{note}")
        if one.diff and len(one.diff) < room:
            room -= len(one.diff)
            fence = "`" * max(3, one.diff.count("`") + 1)
            lines.append(f"{fence}diff\n{one.diff}\n{fence}")
    if changed > len(files):
        lines.append(f"- and {changed - len(files)} more")
    return lines


def _text(trees: Trees, entry: TreeEntry | None) -> str | None:
    if entry is None or entry.kind == "folder":
        return ""
    if entry.kind == "link":
        return f"a link to {entry.value.decode('utf-8', 'backslashreplace')}"
    if entry.kind != "file":
        return f"a {entry.kind}"
    if entry.lacks or entry.size > BYTES_COMPARED_MAX:
        return None
    content = trees.content(entry)
    text = read_text(content)
    return None if text is None or text.count("\n") > LINES_COMPARED_MAX else text
