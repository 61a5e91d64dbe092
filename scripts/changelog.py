"""Move the entries in changes/ into a new section of CHANGELOG.md: `scripts/changelog.py 0.2.0`."""

import datetime
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("security", "added", "changed", "removed", "fixed")


def entries(folder: Path) -> dict[str, list[Path]]:
    """Return the entries by kind, sorted by name. Exits if a file is not named NAME.KIND.md."""
    by_kind: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        _, _, kind = path.name.removesuffix(".md").partition(".")
        if path.suffix != ".md" or kind not in by_kind:
            sys.exit(f"changelog: rename {path.name} to NAME.KIND.md; KIND is one of {', '.join(KINDS)}")
        by_kind[kind].append(path)
    return by_kind


def section(version: str, day: datetime.date, by_kind: dict[str, list[Path]]) -> str:
    lines = [f"## {version} ({day})", ""]
    for kind, paths in by_kind.items():
        if paths:
            texts = (" ".join(path.read_text("utf-8").split()) for path in paths)
            lines += [f"### {kind.capitalize()}", "", *(f"- {text}" for text in texts), ""]
    return "\n".join(lines)


def main(version: str, root: Path = ROOT) -> None:
    """Add the section above the newest one, and delete the entries."""
    by_kind = entries(root / "changes")
    changelog = root / "CHANGELOG.md"
    head, mark, rest = changelog.read_text("utf-8").partition("\n## ")
    new = section(version, datetime.datetime.now(datetime.UTC).date(), by_kind)
    changelog.write_text(f"{head}\n{new}{mark}{rest}", "utf-8")
    for paths in by_kind.values():
        for path in paths:
            path.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/changelog.py VERSION")
    main(sys.argv[1])
