"""The OpenAPI document is valid, names every call, and the server keeps to it whatever is sent."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance
from tests.e2e.http_stand import TOKEN, served

from shoal.surfaces.http.core import WebOptions
from shoal.surfaces.http.openapi import make_document
from shoal.surfaces.http.server import API

DOCUMENT = msgspec.json.decode(make_document(API, "0"))
LEFT_OUT = [
    ignored_auth,  # sends so many wrong tokens that the limit on them answers; see test_http_access
    positive_data_acceptance,  # a schema cannot say that a text must not be blank, or that an agent must exist
]
schema = schemathesis.openapi.from_dict(DOCUMENT)


class Thread:
    """A server in a thread of its own, for a client that blocks."""

    def __init__(self, root: Path) -> None:
        self.address = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(root),))

    def __enter__(self) -> str:
        self._thread.start()
        self._ready.wait()
        return self.address

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, root: Path) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with served(root, WebOptions(token=TOKEN, port=0)) as stand:
            stand.orchestrator.on_prompt = stand.echo
            stand.orchestrator.prompts_max = 1000
            self.address = stand.address
            self._ready.set()
            await self._stop.wait()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Thread(tmp_path_factory.mktemp("home")) as found:
        yield found


def test_the_document_is_valid_openapi() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    schema.validate()


def test_the_document_names_every_call() -> None:
    named = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert named == {(endpoint.method, endpoint.path.replace(":path}", "}")) for endpoint in API}
    operations = [item[method]["operationId"] for item in DOCUMENT["paths"].values() for method in item]
    assert len(operations) == len(set(operations))


async def test_the_document_is_served(tmp_path: Path) -> None:
    async with served(tmp_path) as stand:
        answer = await stand.client.get("/openapi.json")
    assert answer.json()["paths"] == DOCUMENT["paths"]


@pytest.mark.slow
@schema.exclude(path="/api/events").parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_the_server_keeps_to_its_document(case: schemathesis.Case, address: str) -> None:  # pyright: ignore[reportMissingTypeArgument]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=address, headers=headers, excluded_checks=LEFT_OUT, timeout=20)
