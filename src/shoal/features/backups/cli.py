"""`shoal backup` and `shoal restore`: back up a home directory to one file, and restore it."""

import asyncio
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click

from shoal.config.secrets import missing_secrets
from shoal.features.backups.archive import (
    DATABASE,
    DUMP,
    check_database,
    extract,
    write_archive,
)
from shoal.features.backups.service import Backup, listed_in, make_backup
from shoal.features.backups.settings import BackupSettings
from shoal.features.backups.storage import NOT_SET, BackupStorage, backup_storage
from shoal.files.deep_folders import remove_tree
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import Conflict, HomeLocked, InvalidInput, NotFound, StoreError
from shoal.kernel.phrases import counted
from shoal.store.driver import migrations, refuse_other_schemas
from shoal.store.lock import is_held
from shoal.store.sqlite import schema_version
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import echo
from shoal.tools.tainted_files import MarkedFiles


@command(example="shoal backup ~/shoal.tar.gz")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--with-secrets", is_flag=True, help="Include the secrets in shoal.toml and secrets/, and the page's token."
)
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@click.option("--list", "lists", is_flag=True, help="List the backups in backup.to.")
def backup(context: CommandContext, file: Path | None, with_secrets: bool, force: bool, lists: bool) -> None:
    """Back up the database, data, agents and configuration to FILE (tar.gz). Works while Shoal is running.

    Without FILE, create and check a backup in backup.to, then delete the oldest backups beyond backup.keep. An existing
    FILE is replaced only with --force. Secrets and the HTTP token are included only with --with-secrets.
    """
    context.check_root()
    if lists:
        for backup in listed_in(_configured_storage(context)):
            print(_line(backup))
        return
    if file is None and (with_secrets or force):
        raise InvalidInput("--with-secrets and --force need a FILE.")
    if file is not None and file.exists() and not force:
        raise Conflict(f"{file} already exists. Specify another file, or use --force to replace the existing file.")
    config = context.config()
    url = config.database.url.reveal() if config.database.url else ""
    if url:
        from shoal.store.postgres import answering

        asyncio.run(answering(url))  # fails if the database has a different schema version
    if file is None:
        keep = config.section(BackupSettings).keep
        made = make_backup(context.home, _configured_storage(context), datetime.now(UTC), keep, url)
        print(f"Created and checked {_line(made)}.")
        return
    notes: list[str] = []
    partial = file.with_name(f".{file.name}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            write_archive(context.home, target, notes, with_secrets=with_secrets, database_url=url)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    print(f"Wrote {file} ({file.stat().st_size:,} bytes).")
    for note in notes:
        echo(note)


def _configured_storage(context: CommandContext) -> BackupStorage:
    where = backup_storage(context.config(), context.home)
    if where is None:
        raise Conflict(NOT_SET)
    return where


def _line(backup: Backup) -> str:
    return f"{backup.name}  {backup.at:%Y-%m-%d %H:%M} UTC  {backup.size_bytes:,} bytes"


@command(example="shoal restore ~/shoal.tar.gz --into ~/.shoal.restored")
@click.argument("file", required=False)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to create. [default: the home directory]",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Continue even if the database's -wal file is missing or damaged. The contents of that file are lost.",
)
def restore(context: CommandContext, file: str | None, into: Path | None, accept_loss: bool) -> None:
    """Restore the home directory from FILE, which is a path or the name of a backup in backup.to.

    A directory that is not empty is never overwritten. Without FILE, print the commands that restore the newest backup.
    """
    if accept_loss:
        if file or into:
            raise InvalidInput("--accept-loss repairs the existing database. Omit FILE and --into.")
        context.migrate(accept_loss=True)
        echo(f"Repaired {context.home.database_file}. Run `shoal doctor` to check it.")
    elif not file:
        backups = listed_in(_configured_storage(context))
        if not backups:
            echo("backup.to contains no backup. Restore from a file with `shoal restore FILE`.")
            return
        root, fresh = context.root, context.root.with_name(f"{context.root.name}.restored")
        print(f"The newest backup is {_line(backups[0])}. To restore it:")
        print(f"  1. shoal --home {root} restore {backups[0].name} --into {fresh}")
        print(f"  2. Stop Shoal, then run: mv {root} {root}.before && mv {fresh} {root}")
        echo("  3. Set any secrets that step 1 lists, then start Shoal.")
        echo("Run `shoal backup --list` to see older backups.")
    else:
        target = CommandContext(into) if into else context
        root = target.root
        if is_held(target.home.lock_file):
            raise HomeLocked(
                f"Shoal is running on {root}. Stop Shoal first, or specify another directory with --into DIR."
            )
        is_file = Path(file).is_file()
        where = backup_storage(context.config(), context.home) if context.root.is_dir() and not is_file else None
        if not is_file and (where is None or file not in where.sizes()):
            raise NotFound(f"No file or backup named {file}. `shoal backup --list` shows the backups.")
        if root.exists() and any(root.iterdir()):
            raise Conflict(
                f"{root} is not empty. Move the directory away, or specify another directory with --into DIR."
            )
        if where is None:
            _make_from(Path(file), target, file)
            return
        with tempfile.TemporaryDirectory(prefix="shoal-restore-") as folder:
            fetched = Path(folder) / "backup.tar.gz"
            where.fetch(file, fetched)
            _make_from(fetched, target, file)


def _make_from(file: Path, context: CommandContext, source: str) -> None:
    root = context.root
    root.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".shoal-restore-", dir=root.parent))
    try:
        fresh = folder / "home"
        fresh.mkdir(mode=0o700)
        changed_at, too_long = extract(file, fresh)
        if (fresh / "secrets").is_dir():
            (fresh / "secrets").chmod(0o700)
        if (fresh / DATABASE).exists():
            (fresh / DATABASE).chmod(0o600)
            check_database(fresh / DATABASE, file)
            unpack = f"unpack it with `tar -xzf {file.name} --exclude={DATABASE}` into an empty home directory"
            refuse_other_schemas(schema_version(fresh / DATABASE), migrations("sqlite")[-1][0], str(file), unpack)
        (fresh / "restored").write_text(SystemClock().now().isoformat(), "utf-8")
        if root.exists():
            root.rmdir()
        fresh.rename(root)
    finally:
        remove_tree(folder)  # the tree can be too deep for recursion
    if too_long:
        echo(f"Skipped {counted(too_long, 'file')} because a path below {root} would be too long.")
    make_home(context.home)
    text = context.home.config_file.read_text("utf-8", "surrogateescape") if context.home.config_file.exists() else ""
    missing = missing_secrets(text, root)
    todo = f" Set these secrets, which the backup does not contain: {', '.join(missing)}." if missing else ""
    if (root / DUMP).exists():
        echo(
            f"Restored {root} from {source}. Load the database into an empty PostgreSQL database with "
            f"`pg_restore --no-owner --dbname URL {root / DUMP}`, and set database.url.{todo}"
        )
        return
    changed = {root / name: at for name, at in changed_at.items()}
    try:  # taint marks depend on change times, which unpacking reset
        context.write(lambda store: MarkedFiles(store.settings, context.home).renew(changed))
    except StoreError as error:
        raise StoreError(
            f"Shoal restored {root} without its taint marks: {error} Remove {root}, fix the database, then restore "
            "again."
        ) from error
    echo(
        f"Restored {root} from {source}. Run `shoal doctor` to check the home directory.{todo} Turns and approvals "
        "that were open in the backup do not continue, and their threads contain a note."
    )
