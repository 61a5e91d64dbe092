"""The OpenAPI document is valid, names every call, and the server keeps to it whatever is sent."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from tests.e2e.http_stand import served
from tests.fuzz.fuzz_http import ENDLESS, LEFT_OUT
from tests.fuzz.http_app import TOKEN, AppThread

from shoal.surfaces.http.openapi import make_document
from shoal.surfaces.http.server import API

EXAMPLES = 15
"""For each call: so many that all of them together take less than 40 seconds."""

DOCUMENT = msgspec.json.decode(make_document(API, "0"))
schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The whole app with the demo model."""
    with AppThread(tmp_path_factory.mktemp("home")) as found:
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
@schema.exclude(path=ENDLESS).parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_the_server_keeps_to_its_document(case: schemathesis.Case, address: str) -> None:  # pyright: ignore[reportMissingTypeArgument]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=address, headers=headers, excluded_checks=LEFT_OUT, timeout=20)
