"""`shoal docs`: prints a page of the documentation that belongs to this Shoal."""

from pathlib import Path

import click

from shoal.installation import as_typed
from shoal.kernel.errors import NotFound

PACKAGE = Path(__file__).parents[2]
FOLDERS = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""Where the pages are: in an installed wheel, and in a checkout."""


@click.command()
@click.argument("page", default="README")
def docs(page: str) -> None:
    """Print a PAGE of the documentation, such as `import` or `platforms/slack`; without it their list by task."""
    folder = next((one for one in FOLDERS if (one / "README.md").is_file()), None)
    if folder is None:
        raise NotFound("This installation came without documentation; it stands in docs/ of the source.")
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    name = page.removeprefix("docs/").removesuffix(".md")
    found = pages.get(name) or pages.get(f"{name}/README")
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(name, pages, n=1)
        hint = f"Did you mean {near[0]}?" if near else "`shoal docs` lists them."
        raise NotFound(f"There is no page {page[:80]!r}. {hint}")
    print(as_typed(found.read_text("utf-8")).rstrip())
