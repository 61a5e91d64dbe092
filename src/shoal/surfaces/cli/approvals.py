"""`shoal approvals`: list, show and decide approval requests."""

import click

from shoal.surfaces.cli.client import call_api, find_server, get, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import VERDICTS, echo, print_json, print_records, printable, when
from shoal.surfaces.http.approval_views import ApprovalDecided, ApprovalView, RuleTakenBack

approvals = click.Group(
    "approvals",
    help="List, inspect and decide approval requests.",
    epilog="Example: shoal approvals list",
)


@command(approvals, "list", example="shoal approvals list")
@click.option("--all", "everything", is_flag=True, help="Include decided requests.")
@click.option("--thread", default="", help="Only requests of this thread.")
def list_approvals(context: CommandContext, everything: bool, thread: str, as_json: bool) -> None:
    """List pending approval requests, newest first."""
    approvals = get(context, "/api/approvals", list[ApprovalView], pending=not everything, thread=thread)
    rows = [
        (
            _name(approval),
            VERDICTS.get(approval.state, approval.state),
            approval.expires_at,
            approval.thread,
            approval.shown,
        )
        for approval in approvals
    ]
    head = ("id", "state", "expires", "thread", "call")
    print_records(approvals, as_json, head, rows, "Nothing is waiting for approval.")


@command(approvals, "show", example="shoal approvals show 01K9V3")
def show_approval(context: CommandContext, id: str, as_json: bool) -> None:
    """Show a request in full: the exact call, the requester, and the reason."""
    approval = get(context, f"/api/approvals/{path_part(id)}", ApprovalView)
    if as_json:
        print_json(approval)
        return
    state = VERDICTS.get(approval.state, approval.state).capitalize()
    print(
        f"{state}, expires {when(approval.expires_at)} UTC, requested by {printable(approval.asked_by)} in "
        f"{approval.thread}"
    )
    if approval.item.why:
        print(f"The model says: “{printable(approval.item.why)}”")
    if approval.item.card:
        print(f"Call {approval.item.number} of {approval.item.total} on card {approval.item.card}")
    for line in (approval.runs, approval.reason, approval.values, approval.always):
        if line:
            print(printable(line))
    print(f"\n{printable(approval.shown)}")


@command(approvals, example="shoal approvals allow 01K9V3")
@click.option("--thread", "for_thread", is_flag=True, help="Allow this call for the rest of the thread.")
@click.option("--always", is_flag=True, help="Also add the rule that `approvals show` prints. Owner only.")
@click.option(
    "--call", "calls", type=int, multiple=True, help="Allow only this call on the card. The others are denied."
)
def allow(context: CommandContext, id: str, for_thread: bool, always: bool, calls: tuple[int, ...]) -> None:
    """Allow a call once. With the ID of a card, allow all of the card's calls."""
    if for_thread and always:
        raise click.UsageError("Pass either --thread or --always, not both.")
    scope = "thread" if for_thread else "always" if always else "once"
    _decide(context, id, {"decision": "allow", "scope": scope, "calls": calls}, "Allowed.")


@command(approvals, "take-back", example="shoal approvals take-back 01K9V3")
def take_back(context: CommandContext, id: str) -> None:
    """Remove the rule that "shoal approvals allow ID --always" created. From the next turn on, Shoal asks again."""
    print(call_api(context, "DELETE", f"/api/approvals/{path_part(id)}/always", into=RuleTakenBack).message)


@command(approvals, example="shoal approvals deny 01K9V3")
@click.option("--call", "calls", type=int, multiple=True, help="Deny only this call on the card.")
def deny(context: CommandContext, id: str, calls: tuple[int, ...]) -> None:
    """Deny the call. The agent continues without it."""
    _decide(context, id, {"decision": "deny", "calls": calls}, "Denied.")


def _name(approval: ApprovalView) -> str:
    item = approval.item
    return f"{item.card} call {item.number}" if item.card else approval.id


def _decide(context: CommandContext, id: str, body: dict[str, object], done: str) -> None:
    path = f"/api/approvals/{path_part(id)}"
    decided = call_api(context, "POST", path, body, into=ApprovalDecided)
    if decided.message:
        print(decided.message)
        if decided.state == "allow" and find_server(context) is None:
            echo("Shoal is not running. Allowed calls run when you start it with `shoal run`.")
        return
    if find_server(context) is not None:
        print(f"{done} The turn continues.")
        return
    thread = get(context, path, ApprovalView).thread
    echo(f"{done} Shoal is not running. Run `shoal run` or `shoal chat --thread {thread}` to continue the turn.")
