"""Calls about the process itself: alive, ready, figures, and the description of the API."""

import asyncio
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shoal.domain.errors import StoreError
from shoal.surfaces.http.core import Web
from shoal.surfaces.http.endpoints import EVERYONE, JSON, NOBODY, READERS, Answer, AnyObject, Endpoint, json_answer

PROBE_SECONDS_MAX = 2.0
"""How long the store may take to answer."""
PROBE_SECONDS = 1.0
"""How long an answer about the store counts, so that nobody can make it write without end."""


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"]


class Readiness(msgspec.Struct, frozen=True):
    """Whether messages are taken and answered; `store` and `engine` say `ok` or what is wrong. Where the database is
    damaged, `store` is the sentence that says what to do."""

    ready: bool
    store: str
    engine: str


async def _healthz(_: Web, __: Request) -> Response:
    return json_answer(Health("ok"))


async def _readyz(web: Web, _: Request) -> Response:
    readiness = Readiness(False, await _store_state(web), _engine_state(web))
    ready = readiness.store == readiness.engine == "ok"
    return json_answer(msgspec.structs.replace(readiness, ready=ready), 200 if ready else 503)


def _engine_state(web: Web) -> str:
    """`unregistered` is a worker whose signs of life do not reach the database."""
    state = web.core.state
    if state != "running":
        return state
    return "ok" if web.core.engine.is_ready else "unregistered"


async def _store_state(web: Web) -> str:
    async with web.probing:
        now = web.core.clock.monotonic()
        if web.probed is None or now - web.probed[0] >= PROBE_SECONDS:
            web.probed = (now, await _probe(web))
        return web.core.health.damage.replace(f"{web.core.home.root}/", "") or web.probed[1]


async def _probe(web: Web) -> str:
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            await web.core.store.settings.put("http", "probe", web.core.clock.now().isoformat())
    except (StoreError, TimeoutError) as error:
        return type(error).__name__
    return "ok"


async def _metrics(web: Web, _: Request) -> Response:
    backlog = await web.core.store.inbox.backlog()
    depth = await web.core.store.outbox.depth()
    text = web.counters.render(backlog, depth, web.core.engine.running, web.core.clock.now())
    return Response(text, media_type="text/plain; version=0.0.4")


async def _openapi(web: Web, _: Request) -> Response:
    return Response(web.describe(), media_type=JSON)


ENDPOINTS = (
    Endpoint(
        method="GET", path="/healthz", handler=_healthz, scopes=NOBODY, is_open=True,
        summary="The process answers.", answer=Answer("It does.", Health),
    ),
    Endpoint(
        method="GET", path="/readyz", handler=_readyz, scopes=NOBODY, is_open=True,
        summary="Messages are taken and answered; 503 while they are not.", answer=Answer("Ready.", Readiness),
    ),
    Endpoint(
        method="GET", path="/metrics", handler=_metrics, scopes=READERS,
        summary="Figures for Prometheus.", answer=Answer("Figures.", None, 200, "text/plain"),
    ),
    Endpoint(
        method="GET", path="/openapi.json", handler=_openapi, scopes=EVERYONE, narrows=True,
        summary="This description.", answer=Answer("OpenAPI 3.1.", AnyObject),
    ),
)  # fmt: skip
