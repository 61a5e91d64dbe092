"""Extensions: found by entry point, imported when used, and told apart when two packages collide."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.extensions import extensions, load_extension
from shoal.kernel.errors import ConfigError

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with entry points on the path."""

    def put(package: str, entries: str, code: str = "") -> None:
        record = tmp_path / f"{package}-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (record / "entry_points.txt").write_text(entries)
        (tmp_path / f"{package}.py").write_text(code)

    monkeypatch.syspath_prepend(str(tmp_path))
    return put


def test_what_a_package_offers_is_loaded_when_asked_for(install: Install) -> None:
    install("weather", "[shoal.tools]\nweather = weather:TOOL\n", "TOOL = 'sunny'\n")
    assert list(extensions("shoal.tools")) == ["weather"]
    assert extensions("shoal.sandboxes") == {}
    assert load_extension("shoal.tools", "weather") == "sunny"


def test_an_unknown_name_is_told_with_the_known(install: Install) -> None:
    install("weather2", "[shoal.tools]\nweather = weather2:TOOL\n")
    with pytest.raises(ConfigError, match=r"No installed package offers 'wether' in shoal\.tools; offered: weather\."):
        load_extension("shoal.tools", "wether")


@pytest.mark.parametrize("code", ["", "import nothing_of_this_name\n"])
def test_a_package_that_cannot_be_imported_is_named(install: Install, code: str) -> None:
    install("broken", "[shoal.tools]\nbroken = broken:TOOL\n", code)
    with pytest.raises(ConfigError, match="'broken' of the package broken cannot be imported: "):
        load_extension("shoal.tools", "broken")


def test_two_packages_with_one_name_are_told(install: Install) -> None:
    install("one", "[shoal.tools]\nsame = one:TOOL\n")
    install("two", "[shoal.tools]\nsame = two:TOOL\n")
    with pytest.raises(ConfigError, match=r"Two packages offer 'same' in shoal\.tools: "):
        extensions("shoal.tools")
