"""Calls that prove by themselves who makes them: webhooks that start turns, and events of chat platforms."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.connections import Connections
from shoal.kernel.clock import Clock
from shoal.kernel.errors import NotFound
from shoal.kernel.ids import parse_thread_id, unopened
from shoal.kernel.messages import Author, Prompt
from shoal.kernel.records import Opening
from shoal.kernel.webhooks import HttpInbound, first_delivery, proofs, render
from shoal.store.store import Store
from shoal.surfaces.http.endpoints import JSON, OPEN, AnyObject, Routes, whole_body
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions
from shoal.threads.orchestrator import Orchestrator

routes = Routes()

HOOKS, PLATFORMS = "/hooks/", "/platforms/"


class HookAnswer(msgspec.Struct, frozen=True):
    """The call was taken in, now or, a `duplicate`, before. `thread` is empty into a channel: it is to be opened."""

    accepted: bool
    duplicate: bool
    thread: str


@routes("POST /hooks/{name}", OPEN, status=202, raw_body=JSON)
async def take_hook(
    store: Store, clock: Clock, orchestrator: Orchestrator, options: WebOptions, request: Request, name: str
) -> HookAnswer:
    """Start a turn by a webhook; by HMAC or bearer secret, once for what was signed."""
    hook = options.hooks.get(name)
    if hook is None:
        raise NotFound("There is no webhook of this name. [triggers.webhooks.NAME] in shoal.toml makes one.")
    body = await whole_body(request, seconds=options.body_seconds)
    headers = {key.lower(): value for key, value in request.headers.items()}
    now = clock.now()
    proved = proofs(headers, body, hook.secret.reveal(), now)
    if not proved:
        raise ApiError(401, "unauthorized", "The call does not prove that it knows the secret of this webhook.")
    text = render(hook.template, name, body)
    delivery = await first_delivery(store.settings, proved, f"hook:{name}", now, hook.repeat_seconds)
    if delivery is None:
        return HookAnswer(True, True, hook.thread)
    prompt = Prompt(
        parse_thread_id(hook.thread) if hook.thread else unopened(*hook.channel.split(":", 1)),
        delivery.key,
        text,
        Author("shoal", f"webhook {name}", trusted=True),
        clock.now(),
        agent=hook.agent,
        message_id=delivery.key,
        origin="trigger",
        tainted_by=f"webhook {name}",
    )
    if not hook.thread:
        fresh = await orchestrator.open(Opening(prompt))
        return HookAnswer(True, not fresh, "")
    receipt = await orchestrator.send(prompt)
    if receipt.status == "busy":
        raise ApiError(429, "busy", "The conversation's queue is full; send it again later.", {"Retry-After": "30"})
    return HookAnswer(True, receipt.status == "duplicate", prompt.thread)


@routes("POST /platforms/{platform}", OPEN, raw_body=JSON, answer=AnyObject)
async def receive(connections: Connections, options: WebOptions, request: Request, platform: str) -> Response:
    """A chat platform delivers an event."""
    adapter = connections.adapters.get(platform)
    if not isinstance(adapter, HttpInbound):
        raise NotFound("No platform of this name takes calls here.")
    body = await whole_body(request, seconds=options.body_seconds)
    headers = {name.lower(): value for name, value in request.headers.items()}
    answer = await adapter.receive(headers, body)
    return Response(answer.body, answer.status, media_type=answer.media_type)


@routes("POST /platforms/{platform}/{account}", OPEN, raw_body=JSON, answer=AnyObject)
async def receive_of_account(
    connections: Connections, options: WebOptions, request: Request, platform: str, account: str
) -> Response:
    """A chat platform delivers an event to one of several accounts."""
    return await receive(connections, options, request, f"{platform}.{account}")
