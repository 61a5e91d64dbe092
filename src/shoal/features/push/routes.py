"""API endpoints for the Web Push subscriptions of the caller's browsers."""

from typing import Annotated

import msgspec
from starlette.requests import Request

from shoal.features.push.service import Browser, WebPush
from shoal.surfaces.http.endpoints import EVERYONE, Removed, Routes
from shoal.threads.principals import Principal

routes = Routes()


class PushView(msgspec.Struct, frozen=True):
    """State of notifications on this installation.

    why_off: reason why notifications are off, or empty.
    key: public key with which browsers subscribe, empty if notifications are off.
    """

    on: bool
    why_off: str
    key: str


class NewSubscription(Browser, frozen=True, forbid_unknown_fields=True):
    """URL and keys of a browser's push subscription."""


class Subscribed(msgspec.Struct, frozen=True):
    """Confirmation that the browser is subscribed."""

    subscribed: bool


@routes("GET /api/push", EVERYONE, narrows=True)
async def state(push: WebPush) -> PushView:
    """Return whether notifications are on, and the public key with which browsers subscribe."""
    why_off = push.why_off
    return PushView(not why_off, why_off, "" if why_off else await push.public_key())


@routes("PUT /api/push", EVERYONE, narrows=True)
async def subscribe(push: WebPush, by: Principal, request: Request, body: NewSubscription) -> Subscribed:
    """Subscribe a browser to notifications about approvals that the caller may decide and replies in the caller's
    threads on the page. Returns 400 for an invalid subscription and 409 if 200 browsers are already subscribed.
    """
    await push.subscribe(by, body, request.headers.get("origin", ""))
    return Subscribed(True)


@routes("DELETE /api/push", EVERYONE, narrows=True)
async def unsubscribe(
    push: WebPush, by: Principal, *, endpoint: Annotated[str, msgspec.Meta(max_length=2_000)]
) -> Removed:
    """Remove the subscription of one of the caller's browsers, identified by the subscription's URL. Returns 404 if the
    browser was not subscribed.
    """
    await push.unsubscribe(by, endpoint)
    return Removed(True)
