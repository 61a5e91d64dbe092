"""`shoal approvals`: the questions that wait for a person."""

from typing import Literal

import click

from shoal.domain.cards import coverage_text
from shoal.domain.errors import NotFound
from shoal.domain.ids import ApprovalId, parse_thread_id
from shoal.domain.records import Settlement
from shoal.domain.store import Store
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable, when
from shoal.surfaces.cli.place import Place


@click.group()
def approvals() -> None:
    """Questions that wait for a person: what exactly would run, and your answer."""


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Those that were decided too.")
@click.option("--thread", help="Only those of this thread.")
@json_option
@click.pass_obj
def list_(place: Place, everything: bool, thread: str | None, as_json: bool) -> None:
    """List the questions, the newest first."""
    wanted = parse_thread_id(thread) if thread else None
    found = place.read(lambda store: store.approvals.search(pending=not everything, thread=wanted))
    if as_json:
        print_json(found)
        return
    rows = [
        (approval.id, approval.state, when(approval.expires_at), approval.thread, printable(approval.shown))
        for approval in found
    ]
    print_table(("id", "state", "expires", "thread", "what would run"), rows, "Nothing waits for an answer.")


@approvals.command()
@click.argument("id")
@json_option
@click.pass_obj
def show(place: Place, id: str, as_json: bool) -> None:
    """Show one question whole: what exactly would run, who asked, and why it is asked."""
    found = place.read(lambda store: store.approvals.get(ApprovalId(id)))
    if found is None:
        raise NotFound(f"There is no approval {id}. `shoal approvals list` shows the open ones.")
    if as_json:
        print_json(found)
        return
    print(f"{found.id}  {found.state}, expires {when(found.expires_at)} UTC, asked by {printable(found.asked_by)}")
    print(f"in {found.thread}")
    for said in (coverage_text(found.covers), found.reason):
        if said:
            print(printable(said))
    print(f"\n{printable(found.shown)}")


@approvals.command()
@click.argument("id")
@click.option("--thread", "for_thread", is_flag=True, help="Allow the same for the whole thread.")
@click.pass_obj
def allow(place: Place, id: str, for_thread: bool) -> None:
    """Allow what the question shows, once."""
    _decide(place, ApprovalId(id), "allow", "thread" if for_thread else "once")


@approvals.command()
@click.argument("id")
@click.pass_obj
def deny(place: Place, id: str) -> None:
    """Refuse it; the agent is told and goes on without."""
    _decide(place, ApprovalId(id), "deny", "once")


def _decide(
    place: Place, approval: ApprovalId, decision: Literal["allow", "deny"], scope: Literal["once", "thread"]
) -> None:
    """Through the Shoal that runs here, so that the turn goes on at once; else in the database."""
    import asyncio

    from shoal.surfaces.cli.remote import find_remote, part

    done = "Allowed." if decision == "allow" else "Denied."
    remote = find_remote(place)
    if remote is not None:
        body = {"decision": decision, "scope": scope}
        asyncio.run(remote.call("POST", f"/api/approvals/{part(approval)}", body))
        print(f"{done} The turn goes on.")
        return

    async def settle(store: Store) -> Settlement:
        return await store.approvals.settle(approval, decision, scope, "owner", "owner")

    thread = place.write(settle).approval.thread
    print(f"{done} Nothing runs here now: the turn goes on with `shoal run`, or with `shoal chat --thread {thread}`.")
