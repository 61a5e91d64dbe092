"""Calls about approvals, triggers, use and the audit log."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.cards import coverage_text
from shoal.domain.errors import Conflict, InvalidInput, NotFound
from shoal.domain.events import Scope
from shoal.domain.ids import ApprovalId, parse_thread_id
from shoal.domain.permissions import Coverage
from shoal.domain.records import Approval, AuditEntry, AuditRow, NewTrigger, Trigger, UsageRow
from shoal.domain.schedule import first_time
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, DECIDERS, READERS, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import checked_text, path_part, read_json, read_query
from shoal.surfaces.http.principal import may_use
from shoal.surfaces.http.routes_threads import check_agent

LIST_MAX = 1000

Limit = Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)]


class ApprovalView(msgspec.Struct, frozen=True):
    """A question to a person; `shown` is exactly what will run. A list shows the pending ones unless told.

    `covers` is the content that it runs: `files` with their sizes (-1: not there) and SHA-256, the number of `others`,
    and why not all of it is covered (`uncovered`); the answer cannot be for the whole thread then. `runs` says it in
    words.
    """

    id: str
    thread: str
    turn: str
    tool: str
    actions: tuple[str, ...]
    shown: str
    runs: str
    covers: Coverage
    reason: str
    asked_by: str
    state: Literal["pending", "allow", "deny", "expired", "cancelled", "used"]
    scope: Scope
    decided_by: str
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None


class ApprovalsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which approvals: the pending ones or all, of one thread."""

    pending: bool = True
    thread: str = ""
    limit: Limit = 200


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to an approval: for this one call, or for the same call with the same content in the whole thread,
    which is an error where `uncovered` says why that cannot be."""

    decision: Literal["allow", "deny"]
    scope: Scope = "once"


class Decided(msgspec.Struct, frozen=True):
    """What the approval became."""

    id: str
    state: str


class TriggerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something that starts a turn at a time: in `thread`, or in a new thread of `platform` and `channel`.

    `schedule` is an ISO 8601 time for `one-shot` and a cron line for `periodic`.
    """

    kind: Literal["one-shot", "periodic"]
    schedule: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    text: str
    thread: str = ""
    platform: str = ""
    channel: str = ""
    timezone: Annotated[str, msgspec.Meta(max_length=64)] = "UTC"
    agent: str = ""
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""


class TriggerView(msgspec.Struct, frozen=True):
    """A trigger; `next_at` is null when it will not come again."""

    id: str
    name: str
    kind: Literal["one-shot", "periodic"]
    schedule: str
    timezone: str
    text: str
    thread: str
    platform: str
    channel: str
    agent: str
    state: Literal["active", "paused", "done", "missed", "failed"]
    next_at: datetime | None
    last_at: datetime | None
    created_at: datetime
    created_by: str
    failures: int
    error: str


class Removed(msgspec.Struct, frozen=True):
    """It is gone."""

    removed: bool


class TokensView(msgspec.Struct, frozen=True):
    """Tokens used; `input_tokens` includes the cached ones."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int


class UsageView(msgspec.Struct, frozen=True):
    """Use of a model by an agent on a day (UTC); `usd` is null when its price is unknown."""

    day: str
    agent: str
    model: str
    calls: int
    usage: TokensView
    usd: float | None


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many days back."""

    days: Annotated[int, msgspec.Meta(ge=1, le=3660)] = 30


class CeilingView(msgspec.Struct, frozen=True):
    """A ceiling of [budget] under which a model was called: what is spent or set aside of it. 0 is no ceiling."""

    scope: str
    day: str
    usd: float
    usd_max: float
    tokens: int
    tokens_max: int


class Lifted(msgspec.Struct, frozen=True):
    """The day (UTC) on which no ceiling holds anything up."""

    day: str


class AuditView(msgspec.Struct, frozen=True):
    """An audit entry in its hash chain."""

    chain: str
    number: int
    at: datetime
    entry: AuditEntry
    previous: str
    hash: str


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest entries, of one chain or of all."""

    limit: Limit = 100
    chain: Annotated[str, msgspec.Meta(max_length=600)] = ""


def approval_view(approval: Approval) -> ApprovalView:
    """An approval as the API shows it."""
    return ApprovalView(
        id=approval.id,
        thread=approval.thread,
        turn=approval.turn,
        tool=approval.tool,
        actions=approval.actions,
        shown=approval.shown,
        runs=coverage_text(approval.covers),
        covers=approval.covers,
        reason=approval.reason,
        asked_by=approval.asked_by,
        state=approval.state,
        scope=approval.scope,
        decided_by=approval.decided_by,
        created_at=approval.created_at,
        expires_at=approval.expires_at,
        decided_at=approval.decided_at,
    )


def trigger_view(trigger: Trigger) -> TriggerView:
    """A trigger as the API shows it."""
    spec = trigger.spec
    return TriggerView(
        id=trigger.id,
        name=spec.name,
        kind=spec.kind,
        schedule=spec.schedule,
        timezone=spec.timezone,
        text=spec.text,
        thread=spec.thread or "",
        platform=spec.platform,
        channel=spec.channel,
        agent=spec.agent,
        state=trigger.state,
        next_at=trigger.next_at,
        last_at=trigger.last_at,
        created_at=trigger.created_at,
        created_by=spec.author.id if spec.author is not None else spec.created_by,
        failures=trigger.failures,
        error=trigger.error,
    )


async def _approvals(web: Web, request: Request) -> Response:
    query = read_query(request, ApprovalsQuery)
    thread = parse_thread_id(query.thread) if query.thread else None
    by, journal = caller(request), web.core.store.journal
    limit = LIST_MAX if by.is_confined else query.limit
    found = await web.core.store.approvals.search(pending=query.pending, thread=thread, limit=limit)
    if by.is_confined:
        shown = {one: await may_use(by, journal, one) for one in {approval.thread for approval in found}}
        found = [approval for approval in found if shown[approval.thread]][: query.limit]
    return json_answer([approval_view(approval) for approval in found])


async def _approval(web: Web, request: Request) -> Response:
    return json_answer(approval_view(await _known_approval(web, request, ApprovalId(path_part(request, "id")))))


async def _known_approval(web: Web, request: Request, approval_id: ApprovalId) -> Approval:
    """One that the caller may see. Raises NotFound for any other."""
    found = await web.core.store.approvals.get(approval_id)
    if found is None or not await may_use(caller(request), web.core.store.journal, found.thread):
        raise NotFound(f"There is no approval {approval_id[:80]}. GET /api/approvals lists the open ones.")
    return found


async def _decide(web: Web, request: Request) -> Response:
    approval_id = ApprovalId(path_part(request, "id"))
    body = await read_json(request, DecisionRequest, seconds=web.options.body_seconds)
    allow = body.decision == "allow"
    await _known_approval(web, request, approval_id)
    state = await web.core.orchestrator.decide(approval_id, allow, caller(request).asker, body.scope)
    return json_answer(Decided(approval_id, state))


async def _triggers(web: Web, _: Request) -> Response:
    return json_answer([trigger_view(trigger) for trigger in await web.core.store.triggers.all()])


async def _add_trigger(web: Web, request: Request) -> Response:
    body = await read_json(request, TriggerRequest, seconds=web.options.body_seconds)
    if bool(body.thread) == bool(body.platform and body.channel):
        raise InvalidInput("A trigger goes into `thread`, or into `platform` and `channel`; give one of the two.")
    trigger = NewTrigger(
        kind=body.kind,
        schedule=body.schedule,
        text=checked_text(body.text),
        author=caller(request).author,
        tainted_by="",
        thread=parse_thread_id(body.thread) if body.thread else None,
        platform=body.platform,
        channel=body.channel,
        timezone=body.timezone,
        agent=check_agent(web, caller(request), body.agent),
        name=body.name,
        created_by=caller(request).author.id,
    )
    return json_answer(trigger_view(await web.core.add_trigger(trigger)), 201)


async def _pause_trigger(web: Web, request: Request) -> Response:
    trigger = await _trigger(web, path_part(request, "id"))
    if not await web.core.store.triggers.pause(trigger.id):
        raise Conflict(f"Trigger {trigger.id} is {trigger.state}: there is nothing to pause.")
    return json_answer(trigger_view(await _trigger(web, trigger.id)))


async def _resume_trigger(web: Web, request: Request) -> Response:
    trigger = await _trigger(web, path_part(request, "id"))
    if not await web.core.store.triggers.resume(trigger.id, first_time(trigger.spec, web.core.clock.now())):
        raise Conflict(f"Trigger {trigger.id} is {trigger.state}: there is nothing to resume.")
    web.core.due("triggers")
    return json_answer(trigger_view(await _trigger(web, trigger.id)))


async def _trigger(web: Web, id: str) -> Trigger:
    for trigger in await web.core.store.triggers.all():
        if trigger.id == id:
            return trigger
    raise NotFound(f"There is no trigger {id[:80]}. GET /api/triggers lists them.")


async def _remove_trigger(web: Web, request: Request) -> Response:
    trigger = path_part(request, "id")
    if not await web.core.store.triggers.remove(trigger):
        raise NotFound(f"There is no trigger {trigger[:80]}. GET /api/triggers lists them.")
    return json_answer(Removed(True))


def _usage_view(row: UsageRow) -> UsageView:
    used = row.usage
    tokens = TokensView(
        used.input_tokens, used.output_tokens, used.cached_tokens, used.cache_write_tokens, used.reasoning_tokens
    )
    return UsageView(row.day, row.agent, row.model, row.calls, tokens, row.usd)


async def _usage(web: Web, request: Request) -> Response:
    query = read_query(request, UsageQuery)
    return json_answer([_usage_view(row) for row in await web.core.store.ledger.usage(query.days)])


async def _ceilings(web: Web, _: Request) -> Response:
    found = await web.core.store.budget.standings()
    return json_answer(
        [CeilingView(one.scope, one.day, one.usd, one.usd_max, one.tokens, one.tokens_max) for one in found]
    )


async def _lift(web: Web, request: Request) -> Response:
    day, by = await web.core.store.budget.lift(), caller(request)
    entry = AuditEntry("budget", "lift", "allow", user=by.author.id, detail=day, token=by.token.name)
    await web.core.store.audit.record("owner", [entry])
    return json_answer(Lifted(day))


def _audit_view(row: AuditRow) -> AuditView:
    return AuditView(row.chain, row.number, row.at, row.entry, row.previous, row.hash)


async def _audit(web: Web, request: Request) -> Response:
    query = read_query(request, AuditQuery)
    rows = await web.core.store.audit.tail(query.limit, chain_name=query.chain)
    return json_answer([_audit_view(row) for row in rows])


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/approvals", handler=_approvals, scopes=READERS, narrows=True, query=ApprovalsQuery,
        summary="Questions to people, newest first.", answer=Answer("Approvals.", list[ApprovalView]),
    ),
    Endpoint(
        method="GET", path="/api/approvals/{id}", handler=_approval, scopes=READERS, narrows=True,
        summary="One approval.", answer=Answer("The approval.", ApprovalView),
    ),
    Endpoint(
        method="POST", path="/api/approvals/{id}", handler=_decide, scopes=DECIDERS, narrows=True, body=DecisionRequest,
        summary="Answer an approval; 409 when it was decided already, 410 when it has expired.",
        answer=Answer("What it became.", Decided),
    ),
    Endpoint(
        method="GET", path="/api/triggers", handler=_triggers, scopes=READERS,
        summary="What starts turns by the clock, the next due first.", answer=Answer("Triggers.", list[TriggerView]),
    ),
    Endpoint(
        method="POST", path="/api/triggers", handler=_add_trigger, scopes=ADMINS, body=TriggerRequest,
        summary="Schedule a turn.", answer=Answer("The trigger.", TriggerView, 201),
    ),
    Endpoint(
        method="DELETE", path="/api/triggers/{id}", handler=_remove_trigger, scopes=ADMINS,
        summary="Remove a trigger.", answer=Answer("It is gone.", Removed),
    ),
    Endpoint(
        method="POST", path="/api/triggers/{id}/pause", handler=_pause_trigger, scopes=ADMINS,
        summary="Let a trigger rest.", answer=Answer("The trigger.", TriggerView),
    ),
    Endpoint(
        method="POST", path="/api/triggers/{id}/resume", handler=_resume_trigger, scopes=ADMINS,
        summary="Let a trigger come again that rests or was switched off.", answer=Answer("The trigger.", TriggerView),
    ),
    Endpoint(
        method="GET", path="/api/usage", handler=_usage, scopes=READERS, query=UsageQuery,
        summary="What models were used for, by day, agent and model.", answer=Answer("Use.", list[UsageView]),
    ),
    Endpoint(
        method="GET", path="/api/usage/ceilings", handler=_ceilings, scopes=READERS,
        summary="Today's budget: ceilings that models were called under, and what is spent of them.",
        answer=Answer("Ceilings.", list[CeilingView]),
    ),
    Endpoint(
        method="POST", path="/api/usage/lift", handler=_lift, scopes=ADMINS,
        summary="Let no ceiling hold anything up for the rest of the day (UTC).",
        answer=Answer("The day.", Lifted),
    ),
    Endpoint(
        method="GET", path="/api/audit", handler=_audit, scopes=READERS, query=AuditQuery,
        summary="The audit log's newest entries, the oldest of them first.",
        answer=Answer("Entries.", list[AuditView]),
    ),
)  # fmt: skip
