"""The layout of the home directory."""

from pathlib import Path

from shoal.kernel.home import Home


def test_a_database_that_is_a_link_is_used_where_it_lies(tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk" / "chats.db"
    elsewhere.parent.mkdir()
    (tmp_path / "shoal.db").symlink_to(elsewhere)
    assert Home(tmp_path).database_file == elsewhere


def test_a_database_that_is_a_link_in_a_circle_is_told_where_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "shoal.db").symlink_to("shoal.db")
    assert Home(tmp_path).database_file == tmp_path / "shoal.db"
