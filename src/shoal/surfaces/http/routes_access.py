"""Calls about who may call: the caller themselves and what their browsers are told of, access tokens, and people who
were let in by pairing code."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request

from shoal.actors.access_tokens import NewToken
from shoal.actors.principals import Principal
from shoal.domain.ids import encode_part
from shoal.domain.permissions import AccessToken, TokenScope
from shoal.push import Browser
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, READERS, Removed, Routes, WebContext, view

routes = Routes()

PREFERENCES = "preferences"
"""The settings' scope of what people have set for themselves."""


class Preferences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person has set for themselves on the page."""

    theme: Literal["system", "light", "dark"] = "system"
    grouping: Literal["day", "agent", "platform"] = "day"


class WhoView(msgspec.Struct, frozen=True):
    """Who calls, and what they are called as the author of messages. `token` is empty for the home's own;
    `thread_prefix` begins the ids of the threads that this person opens on the page, and `answers_as` and
    `answers_with` are the agent and the model that answer there unless others are chosen, where that is known."""

    token: str
    scope: TokenScope
    person: str
    author: str
    name: str
    agent: str
    thread_prefix: str
    answers_as: str
    answers_with: str
    preferences: Preferences


class TokenView(msgspec.Struct, frozen=True):
    """An access token. `person` is PLATFORM:USER; an empty `agent` is all; `used_on` is a day (UTC) or empty."""

    name: str
    scope: TokenScope
    person: str
    agent: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    used_on: str


class NewTokenView(msgspec.Struct, frozen=True):
    """The new token; `secret` is what its bearer shows, and is shown this once."""

    secret: str
    token: TokenView


class TokenRevoked(msgspec.Struct, frozen=True):
    """Nobody gets in with it any more."""

    revoked: bool


class PairedView(msgspec.Struct, frozen=True):
    """Somebody who was let in by code: when (null: unknown), and by whom."""

    platform: str
    user: str
    name: str
    by: str
    at: datetime | None


class WaitingView(msgspec.Struct, frozen=True):
    """A stranger who was given a code, which is good until `expires_at`."""

    platform: str
    user: str
    name: str
    expires_at: datetime


class AccessView(msgspec.Struct, frozen=True):
    """The people of all platforms, besides those that the configuration names."""

    paired: list[PairedView]
    waiting: list[WaitingView]


class PairRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code that a stranger was given."""

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class PairAnswer(msgspec.Struct, frozen=True):
    """Who may speak now."""

    platform: str
    user: str


@routes("GET /api/me", EVERYONE, narrows=True)
async def who(web: WebContext, by: Principal) -> WhoView:
    """Who calls, and what their token may do."""
    token, name = by.token, by.author.name or "owner"
    prefix = f"web:{encode_part(by.channel or 'lobby')}:"
    kept = await web.app.store.settings.get(PREFERENCES, by.person)
    preferences = msgspec.json.decode(kept, type=Preferences) if kept else Preferences()
    answers = None if token.agent else web.app.agents.default()
    agent, model = (answers.name, answers.model) if answers else (token.agent, "")
    return WhoView(
        token.name, token.scope, by.person, by.author.id, name, token.agent, prefix, agent, model, preferences
    )


@routes("PUT /api/me/preferences", EVERYONE, narrows=True)
async def set_preferences(web: WebContext, by: Principal, body: Preferences) -> Preferences:
    """Keep what the caller has set for themselves, for every browser they sign in with."""
    await web.app.store.settings.put(PREFERENCES, by.person, msgspec.json.encode(body).decode())
    return body


# ---- notifications of the caller's browsers ----


class PushView(msgspec.Struct, frozen=True):
    """Whether browsers can be told, else why not, and the public key that they subscribe with."""

    on: bool
    why_off: str
    key: str


class NewSubscription(Browser, frozen=True, forbid_unknown_fields=True):
    """Where a push service takes messages for a browser, with the browser's keys, as its subscription has them."""


class Subscribed(msgspec.Struct, frozen=True):
    """The browser is told from now on."""

    subscribed: bool


@routes("GET /api/push", EVERYONE, narrows=True)
async def push(web: WebContext) -> PushView:
    """Whether this installation sends notifications, and the key that browsers know it by."""
    why_off = web.app.push.why_off
    return PushView(not why_off, why_off, "" if why_off else await web.app.push.public_key())


@routes("PUT /api/push", EVERYONE, narrows=True)
async def subscribe(web: WebContext, by: Principal, request: Request, body: NewSubscription) -> Subscribed:
    """Tell a browser of approvals that the caller may decide, and of answers in their own threads of the page."""
    await web.app.push.subscribe(by, body, request.headers.get("origin", ""))
    return Subscribed(True)


@routes("DELETE /api/push", EVERYONE, narrows=True)
async def unsubscribe(
    web: WebContext, by: Principal, *, endpoint: Annotated[str, msgspec.Meta(max_length=2_000)]
) -> Removed:
    """Tell a browser of the caller's, by the address of its subscription, nothing more; 404 when it was not told."""
    await web.app.push.unsubscribe(by, endpoint)
    return Removed(True)


# ---- tokens, and people who were let in ----


@routes("GET /api/tokens", ADMINS, answer=list[TokenView])
async def tokens(web: WebContext) -> list[AccessToken]:
    """The access tokens."""
    return await web.app.tokens.all()


@routes("POST /api/tokens", ADMINS, status=201)
async def create_token(web: WebContext, by: Principal, body: NewToken) -> NewTokenView:
    """Make an access token; 409 when there is one of this name."""
    token, secret = await web.app.tokens.create(body, by.person, by.token.name)
    return NewTokenView(secret, view(TokenView, token))


@routes("DELETE /api/tokens/{name}", ADMINS)
async def revoke_token(web: WebContext, by: Principal, name: str) -> TokenRevoked:
    """Revoke an access token: its streams end, and its next call is refused."""
    await web.app.tokens.revoke(name, by.person, by.token.name)
    return TokenRevoked(True)


@routes("GET /api/access", READERS)
async def access(web: WebContext) -> AccessView:
    """Who was let in by pairing code, and who waits for it; codes are never shown."""
    shown = AccessView([], [])
    for platform in sorted(web.app.adapters):
        found = await web.app.pairing.roster(platform)
        shown.paired.extend(view(PairedView, one, platform=platform) for one in found.paired)
        shown.waiting.extend(view(WaitingView, one, platform=platform) for one in found.waiting)
    return shown


@routes("POST /api/access/pair", ADMINS)
async def pair(web: WebContext, by: Principal, body: PairRequest) -> PairAnswer:
    """Let in whoever was given this code; 404 when there is none or it has expired."""
    return PairAnswer(*await web.app.pairing.confirm(body.code, sorted(web.app.adapters), by.person))


@routes("DELETE /api/access/{platform}/{user:path}", ADMINS)
async def unpair(web: WebContext, by: Principal, platform: str, user: str) -> Removed:
    """Remove somebody who was let in by code."""
    await web.app.pairing.remove(platform, user, by.person)
    return Removed(True)
