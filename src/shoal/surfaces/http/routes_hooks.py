"""POST /hooks/{name}: calls from outside that start turns. Each proves by itself who makes it; see domain.signing."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.calls import Webhook
from shoal.domain.deliveries import first_delivery
from shoal.domain.errors import NotFound
from shoal.domain.ids import parse_thread_id, unopened
from shoal.domain.messages import Author, Prompt
from shoal.domain.records import Opening
from shoal.domain.signing import proofs
from shoal.surfaces.http.core import BODY_BYTES_MAX, Web
from shoal.surfaces.http.endpoints import NOBODY, Answer, AnyObject, Endpoint, json_answer
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.parse import bounded_body, path_part
from shoal.triggers.webhook import render

PREFIX = "/hooks/"


class HookAnswer(msgspec.Struct, frozen=True):
    """The call was taken in, now or, a `duplicate`, before. `thread` is empty into a channel: it is to be opened."""

    accepted: bool
    duplicate: bool
    thread: str


async def take_hook(web: Web, request: Request) -> Response:
    """Check who calls, make a message of the body, and send it once."""
    name = path_part(request, "name")
    hook = web.options.hooks.get(name)
    if hook is None:
        raise NotFound("There is no webhook of this name. [triggers.webhooks.NAME] in shoal.toml makes one.")
    body = b"".join([piece async for piece in bounded_body(request, BODY_BYTES_MAX, seconds=web.options.body_seconds)])
    headers = {key.lower(): value for key, value in request.headers.items()}
    now = web.core.clock.now()
    proved = proofs(headers, body, hook.secret(), now)
    if not proved:
        raise ApiError(401, "unauthorized", "The call does not prove that it knows the secret of this webhook.")
    text = render(hook.template, name, body)
    delivery = await first_delivery(web.core.store.settings, proved, f"hook:{name}", now, hook.repeat_seconds)
    if delivery is None:
        return json_answer(HookAnswer(True, True, hook.thread), 202)
    return json_answer(await _send(web, name, hook, delivery.key, text), 202)


async def _send(web: Web, name: str, hook: Webhook, key: str, text: str) -> HookAnswer:
    prompt = Prompt(
        parse_thread_id(hook.thread) if hook.thread else unopened(hook.platform, hook.channel),
        key,
        text,
        Author("shoal", f"webhook {name}", trusted=True),
        web.core.clock.now(),
        agent=hook.agent,
        message_id=key,
        origin="trigger",
        tainted_by=f"webhook {name}",
    )
    if not hook.thread:
        fresh = await web.core.orchestrator.open(Opening(prompt))
        return HookAnswer(True, not fresh, "")
    receipt = await web.core.orchestrator.send(prompt)
    if receipt.status == "busy":
        raise ApiError(429, "busy", "The conversation's queue is full; send it again later.", {"Retry-After": "30"})
    return HookAnswer(True, receipt.status == "duplicate", prompt.thread)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/hooks/{name}",
        handler=take_hook,
        scopes=NOBODY,
        summary="Start a turn by a webhook; by HMAC or bearer secret, once for what was signed.",
        answer=Answer("Taken in.", HookAnswer, 202),
        body=AnyObject,
        is_open=True,
    ),
)
