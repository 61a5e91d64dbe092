"""`shoal mcp`: what MCP servers changed or added since the owner allowed their tools, and the decision on it."""

from typing import TYPE_CHECKING

import click

from shoal.domain.errors import NotFound
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.domain.store import Store
    from shoal.tools.mcp.pins import Pin, Pins, ServerPins

BY = "terminal:owner"


@click.group()
def mcp() -> None:
    """Tools of MCP servers. What a server says of its tools at first is allowed; what it changes waits for you."""


@mcp.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the tools, what waits first."""
    found = place.read(lambda store: _pins(place, store).listed())
    if as_json:
        print_json([_row(server, pin) for server in found for pin in server.tools.values()])
        return
    rows = sorted(
        (_row(server, pin) for server in found for pin in server.tools.values()),
        key=lambda row: (row["state"] == "allowed", row["name"]),
    )
    print_table(
        ("tool", "state", "digest", "pinned (UTC)"),
        [(printable(row["name"]), row["state"], row["digest"], row["since"]) for row in rows],
        "No MCP server was connected yet.",
    )


@mcp.command()
@click.argument("name")
@click.pass_obj
def show(place: Place, name: str) -> None:
    """Show what a server changed of tool NAME, as a diff, or what is allowed of it."""
    found = place.read(lambda store: _pins(place, store).listed())
    pin = next((pin for server in found for pin in server.tools.values() if pin.name == name), None)
    if pin is None:
        raise NotFound(f"There is no tool {name[:80]!r} of an MCP server. `shoal mcp list` shows them.")
    if pin.offered is None:
        print(f"{pin.name} is allowed as its server offers it:\n")
        print(printable(pin.allowed.text if pin.allowed is not None else ""))
        return
    print(f"{pin.name} is {pin.state}; - is what you allowed, + what the server offers:\n")
    print(printable(pin.change))
    print(f"\nTo allow it: shoal mcp allow {pin.name} {_short(pin)}")


@mcp.command()
@click.argument("name")
@click.argument("digest")
@click.pass_obj
def allow(place: Place, name: str, digest: str) -> None:
    """Let agents use tool NAME as DIGEST says, which `list` and `show` name."""
    _decide(place, name, digest, allowed=True)
    print(f"Allowed. Agents are told of {printable(name)} as its server offers it now, within a minute.")


@mcp.command()
@click.argument("name")
@click.argument("digest")
@click.pass_obj
def deny(place: Place, name: str, digest: str) -> None:
    """Leave tool NAME as it was allowed, or hidden if it is new, and do not be asked for DIGEST again."""
    _decide(place, name, digest, allowed=False)
    print("Denied. Agents go on with what you allowed before.")


def _row(server: "ServerPins", pin: "Pin") -> dict[str, str]:
    row = {"server": server.server, "name": pin.name, "state": pin.state}
    return {**row, "digest": _short(pin), "since": when(server.since)}


def _short(pin: "Pin") -> str:
    from shoal.tools.mcp.pins import DIGEST_CHARS

    definition = pin.offered or pin.allowed
    return definition.digest[:DIGEST_CHARS] if definition is not None else ""


def _decide(place: Place, name: str, digest: str, *, allowed: bool) -> None:
    """Through the Shoal that runs here, so that it counts at once; else in the database."""
    import asyncio

    from shoal.surfaces.cli.remote import find_remote, part

    remote = find_remote(place)
    if remote is not None:
        body = {"decision": "allow" if allowed else "deny", "digest": digest}
        asyncio.run(remote.call("POST", f"/api/mcp/{part(name)}", body))
        return
    place.write(lambda store: _pins(place, store).decide(name, digest, allowed, BY))


def _pins(place: Place, store: "Store") -> "Pins":
    from shoal.domain.clock import SystemClock
    from shoal.servers import make_pins

    return make_pins(place.config(), place.home, store, SystemClock())
