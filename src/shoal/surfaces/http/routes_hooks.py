"""POST /hooks/{name}: calls from outside that start turns. Each proves by itself who makes it; see domain.signing."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.calls import DELIVERIES, Webhook
from shoal.domain.clock import iso
from shoal.domain.errors import NotFound, ShoalError
from shoal.domain.ids import ThreadId, parse_thread_id
from shoal.domain.messages import Author, Prompt
from shoal.domain.signing import is_genuine
from shoal.surfaces.http.core import BODY_BYTES_MAX, Web
from shoal.surfaces.http.endpoints import Answer, AnyObject, Endpoint, json_answer
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.parse import bounded_body, path_part
from shoal.triggers.webhook import delivery_key, render

PREFIX = "/hooks/"
_FAILED = "failed"


class HookAnswer(msgspec.Struct, frozen=True):
    """The call was taken in, now or, a `duplicate`, before. `thread` is empty for a duplicate into a channel."""

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
    if not is_genuine(headers, body, hook.secret(), web.core.clock.now()):
        raise ApiError(401, "unauthorized", "The call does not prove that it knows the secret of this webhook.")
    text = render(hook.template, name, body)
    key = delivery_key(name, headers, body, web.core.clock.new_id())
    if hook.thread:
        return json_answer(await _into_thread(web, name, hook, key, text), 202)
    return json_answer(await _into_channel(web, name, hook, key, text), 202)


async def _into_thread(web: Web, name: str, hook: Webhook, key: str, text: str) -> HookAnswer:
    thread = parse_thread_id(hook.thread)
    prompt = Prompt(
        thread,
        key,
        text,
        _author(name),
        web.core.clock.now(),
        agent=hook.agent,
        message_id=key,
        origin="trigger",
        tainted_by=f"webhook {name}",
    )
    receipt = await web.core.orchestrator.send(prompt)
    if receipt.status == "busy":
        raise ApiError(429, "busy", "The conversation's queue is full; send it again later.", {"Retry-After": "30"})
    return HookAnswer(True, receipt.status == "duplicate", thread)


async def _into_channel(web: Web, name: str, hook: Webhook, key: str, text: str) -> HookAnswer:
    """Post it, which opens a thread. The key is taken before, and given back when the platform takes nothing."""
    settings, now = web.core.store.settings, iso(web.core.clock.now())
    for before in (None, _FAILED, None):  # what failed may be forgotten between two looks
        if await settings.swap(DELIVERIES, key, before, now):
            break
    else:
        return HookAnswer(True, True, "")
    try:
        thread: ThreadId = await web.core.orchestrator.send_to_channel(
            hook.platform, hook.channel, text, _author(name), hook.agent, f"webhook {name}"
        )
    except ShoalError:
        await settings.swap(DELIVERIES, key, now, _FAILED)
        raise
    return HookAnswer(True, False, thread)


def _author(name: str) -> Author:
    return Author("shoal", f"webhook {name}")


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/hooks/{name}",
        handler=take_hook,
        summary="Start a turn by a webhook; by HMAC or bearer secret, once for each delivery id.",
        answer=Answer("Taken in.", HookAnswer, 202),
        body=AnyObject,
        is_open=True,
    ),
)
