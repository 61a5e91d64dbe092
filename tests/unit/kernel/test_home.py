"""Symbolic links in the path of the database."""

from pathlib import Path

from shoal.kernel.home import Home


def test_a_linked_database_is_used_at_its_target(tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk" / "chats.db"
    elsewhere.parent.mkdir()
    (tmp_path / "shoal.db").symlink_to(elsewhere)
    assert Home(tmp_path).database_file == elsewhere


def test_a_circular_database_link_is_reported_when_opened(tmp_path: Path) -> None:
    (tmp_path / "shoal.db").symlink_to("shoal.db")
    assert Home(tmp_path).database_file == tmp_path / "shoal.db"
