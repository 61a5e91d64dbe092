"""`shoal migrate`: upgrade the database to this version's schema, or move it to PostgreSQL."""

import asyncio

import click

from shoal.store.sqlite import schema_version
from shoal.surfaces.cli.context import CommandContext, command


@command(example="shoal migrate --to postgresql://db.example/shoal")
@click.option("--to", "url", metavar="URL", help="Copy everything into this empty PostgreSQL database instead.")
def migrate(context: CommandContext, url: str | None) -> None:
    """Upgrade the database to this version's schema. Shoal also does this at every start, so you need this command only
    to upgrade in advance.

    With --to, copy the home directory's database into PostgreSQL and verify the copy. If that fails, PostgreSQL stays
    empty. The SQLite file is kept.
    """
    if url:
        from shoal.store.moving import migrate_sqlite_to_postgres

        moved = asyncio.run(migrate_sqlite_to_postgres(context.home, url))
        shown = ", ".join(f"{count:,} {table}" for table, count in moved.items() if count)
        file = context.home.database_file
        print(f"Moved {shown or 'an empty database'}.")
        print(
            f"Set database.url in {context.home.config_file} or the variable DATABASE_URL. Shoal then no longer "
            f"uses {file}."
        )
    elif context.config().database.url:
        context.migrate()
        print("The schema of the PostgreSQL database is up to date.")
    else:
        file = context.home.database_file
        before = schema_version(file) if file.exists() else 0
        context.migrate()
        after = schema_version(file)
        print(f"{file} has schema {after}." if before == after else f"{file}: schema {before} → {after}.")
