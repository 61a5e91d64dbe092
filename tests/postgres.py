"""New PostgreSQL databases for tests, on a running server or on a private one."""

import os
import subprocess
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "postgres.sh"
RUNNING = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def server() -> Generator[str]:
    """Yield the address of a server on which to create databases: SHOAL_TEST_POSTGRES, a local server, or a
    private one.
    """
    address = os.environ.get("SHOAL_TEST_POSTGRES", RUNNING)
    try:
        psycopg.connect(address, connect_timeout=3).close()
    except psycopg.OperationalError:
        with private_server() as private:
            yield private
    else:
        yield address


@contextmanager
def private_server() -> Generator[str]:
    """Start a private server, for tests that stop it or if no other server runs. Skips the test if that fails."""
    with tempfile.TemporaryDirectory(prefix="shoal-pg-") as folder:
        Path(folder).chmod(0o755)
        started = subprocess.run([SCRIPT, "start", folder], check=False, capture_output=True, text=True)
        if started.returncode:
            pytest.skip(f"PostgreSQL cannot be started: {started.stderr.strip()[-200:]}")
        try:
            yield started.stdout.strip()
        finally:
            subprocess.run([SCRIPT, "stop", folder], check=True, capture_output=True)


@contextmanager
def database() -> Generator[str]:
    name = f"shoal_test_{uuid.uuid4().hex[:12]}"
    with server() as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
            # Commits need not wait for the disk. A test that stops its server uses a private one.
            connection.execute(f"alter database {name} set synchronous_commit = off".encode())
        try:
            yield make_conninfo(address, dbname=name)
        finally:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(scope="session")
def postgres_database() -> Generator[str]:
    """One database for all tests of the session. Each test empties the tables first."""
    with database() as address:
        yield address


LEFT = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state like %s"


def empty(address: str) -> None:
    """Delete all rows of Shoal's schema, if the schema exists.

    First ends transactions that an interrupted test left open. Their locks would block all later tests.
    """
    with psycopg.connect(address, autocommit=True, options="-c lock_timeout=60s") as connection:
        connection.execute(LEFT, ["idle in transaction%"])
        tables = connection.execute(
            "select tablename from pg_tables where schemaname = 'shoal' and tablename <> 'migrations'"
        ).fetchall()
        with connection.transaction():
            connection.execute("set local synchronous_commit = off")
            connection.execute("set local search_path = shoal")
            for (table,) in tables:
                connection.execute(f"delete from {table}".encode())
