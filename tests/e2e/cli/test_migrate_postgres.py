"""The command line with PostgreSQL: a home migrates, and all reading commands then use the new database."""

import json
import shutil
import tarfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from tests.postgres import database
from tests.unit.surfaces.cli.conftest import Shoal

pytestmark = [pytest.mark.xdist_group("postgres"), pytest.mark.slow]


@pytest.fixture
def server() -> Generator[str]:
    with database() as url:
        yield url


def test_a_home_moved_to_postgres_keeps_working(
    shoal: Shoal, home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shoal("init")
    assert shoal("ask", "--thread", "terminal:ask:mine", "hello").code == 0
    before = json.loads(shoal("threads", "list", "--json").out)
    moved = shoal("migrate", "--to", server)
    assert (moved.code, moved.err) == (0, "")
    assert "1 threads" in moved.out
    again = shoal("migrate", "--to", server)
    assert again.code == 1
    assert "Choose an empty database" in again.err
    monkeypatch.setenv("DATABASE_URL", "postgresql:///?" + "&".join(server.split()))
    assert database_of(shoal).endswith("its schema is current.")
    assert json.loads(shoal("threads", "list", "--json").out) == before
    assert shoal("ask", "--thread", "terminal:ask:mine", "hello again").code == 0
    (thread,) = json.loads(shoal("threads", "list", "--json").out)
    assert thread["last_seq"] > before[0]["last_seq"]
    assert shoal("audit", "verify").code == 0
    assert "up to date" in shoal("migrate").out
    backup = home.parent / "backup.tar.gz"
    if shutil.which("pg_dump"):
        assert shoal("backup", str(backup)).code == 0
        with tarfile.open(backup) as archive:
            names = archive.getnames()
        assert "shoal.dump" in names
        assert "shoal.db" not in names  # the old SQLite database
    monkeypatch.setenv("PATH", str(home))  # without pg_dump
    refused = shoal("backup", "--force", str(backup))
    assert refused.code == 1
    assert "pg_dump" in refused.err


def test_an_unreachable_server_is_reported(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    shoal("init")
    monkeypatch.setenv("DATABASE_URL", "postgresql://shoal@127.0.0.1:1/shoal")
    listed = shoal("threads", "list")
    assert listed.code == 1
    assert listed.err.startswith("shoal: Shoal cannot reach the database")
    assert listed.err.count("\n") == 1


def database_of(shoal: Shoal) -> str:
    (check,) = [finding for finding in json.loads(shoal("doctor", "--json").out) if finding["check"] == "database"]
    return f"{check['status']}: {check['message']}"


def test_the_doctor_reports_what_a_start_would_find(shoal: Shoal, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shoal("init")
    monkeypatch.setenv("DATABASE_URL", "postgresql:///?" + "&".join(server.split()))
    assert database_of(shoal).startswith("warn: PostgreSQL"), "no tables exist yet"
    with psycopg.connect(server, autocommit=True) as connection:
        assert shoal("migrate").code == 0
        connection.execute("insert into shoal.migrations (part, name) values ('store', '9999')")
    assert database_of(shoal).startswith("fail: The database was written by a newer version of Shoal")
    refused = shoal("worker")
    assert (refused.code, refused.out) == (2, "")
    assert "Install that version" in refused.err
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("update shoal.migrations set name = '0017' where name = '9999'")
    found = "The database is from before Shoal's first release: set database.url to an empty database to start"
    assert database_of(shoal).startswith(f"fail: {found}")
    for words in ("worker", "threads list", "migrate"):
        refused = shoal(*words.split())
        assert (refused.code, refused.out, refused.err.count(". ")) == (2, "", 0)
        assert refused.err.startswith(f"shoal: {found}")
