"""Database roles: the rights that a restricted role needs, and databases that Shoal rejects without changing them."""

import uuid
from collections.abc import Generator
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.postgres import database, server

from shoal.kernel.errors import StoreError, StoreNewer, StoreReadOnly
from shoal.store.driver import query
from shoal.store.postgres import answering, open_postgres

pytestmark = pytest.mark.xdist_group("postgres")


class Guest(NamedTuple):
    """A role without rights in a database. `url` connects as this role, and `owner` as the owner of the database."""

    name: str
    url: str
    owner: str

    def sql(self, *statements: str) -> None:
        """Run statements as the owner. ROLE and DB are replaced by the role's and the database's name."""
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for statement in statements:
                named = statement.replace("ROLE", self.name).replace("DB", connection.info.dbname)
                connection.execute(named.encode())


@pytest.fixture
def guest() -> Generator[Guest]:
    with database() as owner:
        guest = Guest(f"guest_{uuid.uuid4().hex[:12]}", "", owner)
        guest.sql("create role ROLE login")
        try:
            yield guest._replace(url=make_conninfo(owner, user=guest.name))
        finally:
            guest.sql("drop owned by ROLE cascade", "drop role ROLE")


async def test_a_role_that_may_not_create_the_schema_gets_the_statement_to_run(guest: Guest) -> None:
    for start in (open_postgres, answering):
        with pytest.raises(StoreReadOnly, match=f"`create schema shoal authorization {guest.name}`"):
            await start(guest.url)
    guest.sql("create schema shoal authorization ROLE")
    await (await open_postgres(guest.url)).close()
    assert (await answering(guest.url))[1] == 0


async def test_a_role_that_may_create_a_schema_needs_nothing_else(guest: Guest) -> None:
    guest.sql("grant create on database DB to ROLE")
    assert (await answering(guest.url))[1] > 0, "no tables exist yet"
    await (await open_postgres(guest.url)).close()


async def test_a_role_needs_only_write_access_to_existing_tables(guest: Guest) -> None:
    await (await open_postgres(guest.owner)).close()
    with pytest.raises(StoreReadOnly, match=r"may not use the schema shoal"):
        await open_postgres(guest.url)
    guest.sql(
        "grant usage on schema shoal to ROLE",
        "grant select, insert, update, delete on all tables in schema shoal to ROLE",
        "grant usage on all sequences in schema shoal to ROLE",
    )
    driver = await open_postgres(guest.url)
    await driver.write(query("setting_put", scope="s", key="k", value="v"))
    await driver.close()
    guest.sql("revoke insert on shoal.events from ROLE")
    for start in (open_postgres, answering):
        with pytest.raises(StoreReadOnly, match=r"may not use the table shoal\.events"):
            await start(guest.url)


async def test_a_database_with_a_limited_encoding_is_rejected() -> None:
    name = f"shoal_test_{uuid.uuid4().hex[:12]}"
    with server() as address, psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0".encode())
        try:
            with pytest.raises(StoreError, match="encoding is SQL_ASCII"):
                await open_postgres(make_conninfo(address, dbname=name))
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


@pytest.mark.parametrize(("part", "name"), [("store", "9999"), ("procrastinate", "99.00.00_01_later.sql")])
async def test_a_newer_programs_schema_is_left_alone(guest: Guest, part: str, name: str) -> None:
    await (await open_postgres(guest.owner)).close()
    guest.sql(f"insert into shoal.migrations (part, name) values ('{part}', '{name}')")
    for start in (open_postgres, answering):
        with pytest.raises(StoreNewer, match=name):
            await start(guest.owner)
