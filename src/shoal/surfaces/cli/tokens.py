"""`shoal token`: makes tokens that can do less than the home's own, lists and revokes them."""

import asyncio
import sys
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.actors.access_tokens import AccessTokens
    from shoal.domain.store import Store
    from shoal.domain.tokens import AccessToken

T = TypeVar("T")
BY = "terminal:owner"
SCOPES = ("chat", "read", "approve", "admin")


class _Token(msgspec.Struct, frozen=True):
    name: str
    scope: str
    person: str
    agent: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    used_on: str


class _Made(msgspec.Struct, frozen=True):
    secret: str
    token: _Token


@click.group()
def token() -> None:
    """Tokens for the page, the API and /v1 that can do less than the home's own: create, list, revoke."""


@token.command()
@click.argument("name")
@click.option("--scope", required=True, type=click.Choice(SCOPES), help="What it may do.")
@click.option("--agent", default="", help="Confine it to the threads of this agent.")
@click.option(
    "--as", "person", default="", metavar="PERSON", help="PLATFORM:USER, a name of [access.people], or owner."
)
@click.option("--expires", default="", metavar="WHEN", help="90d, 12h, 2027-01-31 or 2027-01-31T09:00:00Z.")
@json_option
@click.pass_obj
def create(place: Place, name: str, scope: str, agent: str, person: str, expires: str, as_json: bool) -> None:
    """Make a token and print it, this once; Shoal keeps only a digest.

    chat talks in its person's own threads; read reads everything; approve also decides approvals as its person; admin
    may do everything. Without --as it is the owner's for admin, else that of a person of its own, web:NAME.
    """
    body = {"name": name, "scope": scope, "person": person, "agent": agent, "expires": expires}
    made = _through(place, "POST", "/api/tokens", body, _Made) or place.write(lambda store: _create(place, store, body))
    if as_json:
        print_json(made)
        return
    print(made.secret)
    kept = made.token
    until = f"until {when(kept.expires_at)} UTC" if kept.expires_at else "until it is revoked"
    print(
        f"{kept.name}: scope {kept.scope}, as {printable(kept.person)}, {until}. It is not shown again.",
        file=sys.stderr,
    )


@token.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the tokens; what their bearers show is kept nowhere."""

    async def work(store: "Store") -> list[_Token]:
        return [_shown(one) for one in await store.tokens.all()]

    found = place.read(work)
    if as_json:
        print_json(found)
        return
    rows = [
        (one.name, one.scope, printable(one.person), one.agent or "all", one.used_on or "never", when(one.expires_at))
        for one in found
    ]
    print_table(("name", "scope", "as", "agent", "last used", "expires (UTC)"), rows, "There are no tokens.")


@token.command()
@click.argument("name")
@click.pass_obj
def revoke(place: Place, name: str) -> None:
    """Revoke a token: its bearer's next call is refused, and live streams end within a second."""
    from shoal.surfaces.cli.remote import part

    async def work(tokens: "AccessTokens") -> bool:
        await tokens.revoke(name, BY)
        return True

    if _through(place, "DELETE", f"/api/tokens/{part(name)}", None, dict[str, bool]) is None:
        place.write(lambda store: work(_tokens(place, store)))
    print(f"{printable(name)} is revoked.")


async def _create(place: Place, store: "Store", body: dict[str, str]) -> _Made:
    from shoal.actors.access_tokens import NewToken

    made, secret = await _tokens(place, store).create(msgspec.convert(body, NewToken), BY)
    return _Made(secret, _shown(made))


def _shown(found: "AccessToken") -> _Token:
    return msgspec.convert(found, _Token, from_attributes=True)


def _tokens(place: Place, store: "Store") -> "AccessTokens":
    from shoal.accounts import links_of, platform_names
    from shoal.actors.access_tokens import AccessTokens
    from shoal.actors.pairing import Pairing
    from shoal.domain.clock import SystemClock
    from shoal.surfaces.cli.agents import open_agents

    config, clock = place.config(), SystemClock()
    links = links_of(config, platform_names(config), {})
    return AccessTokens(store, clock, Pairing(store, clock), links, open_agents(place).names)


def _through(place: Place, method: str, path: str, body: object, kind: type[T]) -> T | None:
    """Through the Shoal that runs here; None when none does."""
    from shoal.surfaces.cli.remote import find_remote

    remote = find_remote(place)
    if remote is None:
        return None
    return msgspec.json.decode(asyncio.run(remote.call(method, path, body)), type=kind)
