"""Disk space of the core installation: Shoal with its dependencies without extras, including bytecode."""

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from bench.child import ROOT
from bench.rows import Row

INSTALL_MB_MAX = 55


def core() -> dict[str, Distribution]:
    """Return the distributions that `shoal` without extras requires, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    wanted = [Requirement(line) for line in project["dependencies"]]
    while wanted:
        one = wanted.pop()
        name = one.name.lower().replace("_", "-")
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        wanted += [Requirement(line) for line in found[name].requires or ()]
    return found


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def installed_bytes(one: Distribution) -> int:
    """Return the disk space of a distribution's files in bytes, counting whole disk blocks."""
    files = {Path(str(one.locate_file(file))) for file in one.files or ()}
    return sum(_bytes(file) for file in files)


def measure() -> list[Row]:
    """Measure the required distributions and the package in this checkout."""
    sizes = {name: installed_bytes(one) for name, one in core().items()}
    sizes["shoal"] = sum(_bytes(file) for file in (ROOT / "src" / "shoal").rglob("*"))
    largest = sorted(sizes, key=lambda name: -sizes[name])[:4]
    note = f"{len(sizes)} packages; " + ", ".join(f"{name} {sizes[name] / 1e6:.1f}" for name in largest)
    return [Row("core installation", "MB", sum(sizes.values()) / 1e6, bound=INSTALL_MB_MAX, note=note)]
