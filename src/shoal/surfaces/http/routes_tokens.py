"""Calls about access tokens: who calls, and making, listing and revoking them."""

from datetime import datetime
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.actors.access_tokens import NewToken
from shoal.domain.ids import encode_part
from shoal.domain.tokens import AccessToken, TokenScope
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import ADMINS, EVERYONE, Answer, Endpoint, caller, json_answer
from shoal.surfaces.http.parse import path_part, read_json


class WhoView(msgspec.Struct, frozen=True):
    """Who calls, and what they are called as the author of messages. `token` is empty for the home's own;
    `thread_prefix` begins the ids of the threads that this person opens on the page."""

    token: str
    scope: TokenScope
    person: str
    author: str
    name: str
    agent: str
    thread_prefix: str


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


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to make. `person` is PLATFORM:USER, a name of [access.people] or `owner`; empty is the owner for `admin`,
    else `web:NAME`. `expires` is a span (90d), a day or a time; empty is never."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    scope: TokenScope
    person: Annotated[str, msgspec.Meta(max_length=300)] = ""
    agent: Annotated[str, msgspec.Meta(max_length=64)] = ""
    expires: Annotated[str, msgspec.Meta(max_length=40)] = ""


class NewTokenView(msgspec.Struct, frozen=True):
    """The new token; `secret` is what its bearer shows, and is told this once."""

    secret: str
    token: TokenView


class Revoked(msgspec.Struct, frozen=True):
    """Nobody gets in with it any more."""

    revoked: bool


def token_view(token: AccessToken) -> TokenView:
    """A token as the API shows it."""
    return TokenView(
        name=token.name,
        scope=token.scope,
        person=token.person,
        agent=token.agent,
        created_by=token.created_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
        used_on=token.used_on,
    )


async def _who(_: Web, request: Request) -> Response:
    by = caller(request)
    token, name = by.token, by.author.name or "owner"
    prefix = f"web:{encode_part(by.channel or 'lobby')}:"
    return json_answer(WhoView(token.name, token.scope, by.person, by.author.id, name, token.agent, prefix))


async def _tokens(web: Web, _: Request) -> Response:
    return json_answer([token_view(token) for token in await web.core.tokens.all()])


async def _create_token(web: Web, request: Request) -> Response:
    body, by = await read_json(request, TokenRequest, seconds=web.options.body_seconds), caller(request)
    wanted = NewToken(body.name, body.scope, body.person, body.agent, body.expires)
    token, secret = await web.core.tokens.create(wanted, by.person, by.token.name)
    return json_answer(NewTokenView(secret, token_view(token)), 201)


async def _revoke_token(web: Web, request: Request) -> Response:
    by = caller(request)
    await web.core.tokens.revoke(path_part(request, "name"), by.person, by.token.name)
    return json_answer(Revoked(True))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/me", handler=_who, scopes=EVERYONE, narrows=True,
        summary="Who calls, and what their token may do.", answer=Answer("The person and the token.", WhoView),
    ),
    Endpoint(
        method="GET", path="/api/tokens", handler=_tokens, scopes=ADMINS,
        summary="The access tokens.", answer=Answer("Tokens.", list[TokenView]),
    ),
    Endpoint(
        method="POST", path="/api/tokens", handler=_create_token, scopes=ADMINS, body=TokenRequest,
        summary="Make an access token; 409 when there is one of this name.",
        answer=Answer("The token, and what its bearer shows.", NewTokenView, 201),
    ),
    Endpoint(
        method="DELETE", path="/api/tokens/{name}", handler=_revoke_token, scopes=ADMINS,
        summary="Revoke an access token: its streams end, and its next call is refused.",
        answer=Answer("It is revoked.", Revoked),
    ),
)  # fmt: skip
