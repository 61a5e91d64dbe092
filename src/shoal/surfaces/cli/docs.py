"""`shoal docs`: print the documentation page on a topic, or list the pages that mention it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from shoal.installation import as_typed
from shoal.kernel.errors import NotFound

PACKAGE = Path(__file__).parents[2]
FOLDERS = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""Folders that contain the documentation pages, in an installed wheel and in a checkout."""
INDEX = "README"


@click.command(epilog="Example: shoal docs ollama")
@click.argument("words", metavar="[WORD]...", nargs=-1)
def docs(words: tuple[str, ...]) -> None:
    """Print the documentation page for a WORD, such as ollama or brief, or a page by name, such as platforms/slack.

    If several pages match, list them. Without WORD, print the index.
    """
    folder = next((folder for folder in FOLDERS if (folder / "README.md").is_file()), None)
    if folder is None:
        raise NotFound("This installation has no documentation. Read the docs/ directory of the source code instead.")
    texts = {
        path.relative_to(folder).with_suffix("").as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.md"))
    }
    names = matches(texts, " ".join(words) or INDEX)
    if not names:
        raise NotFound(f"No page mentions {' '.join(words)[:80]!r}. Run `shoal docs` to list all pages.")
    if len(names) == 1:
        print(as_typed(texts[names[0]]).rstrip())
        return
    width = max(map(len, names))
    for name in names:
        print(f"{as_typed(f'`shoal docs {name:<{width}}`').strip('`')}  {title(texts[name])}")


def matches(texts: Mapping[str, str], words: str) -> list[str]:
    """Return the names of the pages that match `words`.

    Searches page names, tasks in the index, titles, headings and texts, in this order, and returns the matches of the
    first search that finds any. Pages in decisions/ match only by name.
    """
    name = words.removeprefix("docs/").removesuffix(".md").lower()
    exact = [page for page in (name, f"{name}/README", INDEX if name == INDEX.lower() else "") if page in texts]
    if exact:
        return exact[:1]
    pages = {page: text for page, text in texts.items() if not page.startswith("decisions/") and page != INDEX}
    plain = name.replace("-", "").replace(" ", "")
    same = [page for page in pages if plain in (page.replace("-", ""), page.rpartition("/")[2].replace("-", ""))]
    if same:
        return same
    wanted = name.replace("-", " ").split()

    def having(part: Callable[[str], str]) -> list[str]:
        return [page for page in pages if all(word in part(page).lower() for word in wanted)]

    jobs = {page: f"{page} {line}" for line in texts[INDEX].splitlines() for page in linked(line)}
    return (
        having(lambda page: jobs.get(page, ""))
        or having(lambda page: title(texts[page]))
        or having(lambda page: "\n".join(line for line in texts[page].splitlines() if line.startswith("#")))
        or having(texts.__getitem__)
    )


def linked(text: str) -> list[str]:
    return [link.partition(".md")[0] for link in text.split("](")[1:]]


def title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
