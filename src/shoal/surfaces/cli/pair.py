"""`shoal pair`: lets strangers in who were given a code, lists them, and shuts them out again."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.actors.pairing import Pairing
    from shoal.domain.store import Store

T = TypeVar("T")
BY = "terminal:owner"


class _Person(msgspec.Struct, frozen=True, omit_defaults=True):
    """Somebody who was let in, or (with `expires_at`) who waits."""

    platform: str
    user: str
    name: str = ""
    by: str = ""
    at: datetime | None = None
    expires_at: datetime | None = None


class _People(msgspec.Struct, frozen=True):
    paired: list[_Person]
    waiting: list[_Person]


class _Let(msgspec.Struct, frozen=True):
    platform: str
    user: str


class _Codes(click.Group):
    """A group whose first argument may be a code, which is then confirmed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What is no subcommand is a code."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return "confirm", self.commands["confirm"], args
        return super().resolve_command(ctx, args)


@click.group(cls=_Codes, subcommand_metavar="CODE | list | remove PLATFORM:USER")
def pair() -> None:
    """Let a stranger in: `shoal pair CODE`, with the code that the agent gave them when they wrote to it."""


@pair.command(hidden=True)
@click.argument("code")
@json_option
@click.pass_obj
def confirm(place: Place, code: str, as_json: bool) -> None:
    """Let in whoever was given CODE."""

    async def work(pairing: "Pairing") -> _Let:
        return _Let(*await pairing.confirm(code, _platforms(place), BY))

    found = _through(place, "POST", "/api/access/pair", {"code": code}, _Let) or _do(place, work)
    if as_json:
        print_json(found)
        return
    print(f"{printable(f'{found.platform}:{found.user}')} may speak with your agents now.")


@pair.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List who was let in by code, and who waits for it."""
    found = _through(place, "GET", "/api/access", None, _People) or place.read(lambda store: _people(place, store))
    if as_json:
        print_json(found)
        return
    rows = [
        (printable(f"{one.platform}:{one.user}"), printable(one.name), _standing(one))
        for one in (*found.waiting, *found.paired)
    ]
    print_table(("who", "name", "access"), rows, "Nobody was let in by code, and nobody waits.")


@pair.command()
@click.argument("who", metavar="PLATFORM:USER")
@click.pass_obj
def remove(place: Place, who: str) -> None:
    """Shut somebody out who was let in by code."""
    from shoal.domain.errors import InvalidInput
    from shoal.surfaces.cli.remote import part

    platform, _, user = who.partition(":")
    if not platform or not user:
        raise InvalidInput(f"{who!r} is not PLATFORM:USER, e.g. telegram:4711; `shoal pair list` shows who is in.")

    async def work(pairing: "Pairing") -> bool:
        await pairing.remove(platform, user, BY)
        return True

    path = f"/api/access/{part(platform)}/{part(user)}"
    if _through(place, "DELETE", path, None, dict[str, bool]) is None:
        _do(place, work)
    print(f"{printable(who)} may not speak with your agents any more.")


def _standing(one: _Person) -> str:
    if one.expires_at is not None:
        return f"waits; the code is good until {when(one.expires_at)}"
    return f"let in {when(one.at)} by {one.by}"


def _platforms(place: Place) -> tuple[str, ...]:
    from shoal.accounts import accounts_of

    config = place.config()
    return (*accounts_of(config), *(plugin.name for plugin in config.platforms.plugins))


async def _people(place: Place, store: "Store") -> _People:
    pairing = _pairing(store)
    found = _People([], [])
    for platform in _platforms(place):
        roster = await pairing.roster(platform)
        found.paired.extend(_Person(platform, one.user, one.name, one.by, one.at) for one in roster.paired)
        found.waiting.extend(_Person(platform, one.user, one.name, expires_at=one.expires_at) for one in roster.waiting)
    return found


def _pairing(store: "Store") -> "Pairing":
    from shoal.actors.pairing import Pairing
    from shoal.domain.clock import SystemClock

    return Pairing(store, SystemClock())


def _do(place: Place, work: "Callable[[Pairing], Awaitable[T]]") -> T:
    return place.write(lambda store: work(_pairing(store)))


def _through(place: Place, method: str, path: str, body: object, kind: type[T]) -> T | None:
    """Through the Shoal that runs here; None when none does."""
    import asyncio

    from shoal.surfaces.cli.remote import find_remote

    remote = find_remote(place)
    if remote is None:
        return None
    return msgspec.json.decode(asyncio.run(remote.call(method, path, body)), type=kind)
