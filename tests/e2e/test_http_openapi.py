"""The OpenAPI document is valid and complete, and the server conforms to it for any input."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from tests.e2e.http_stand import served
from tests.fuzz.fuzz_http import CONFIG, ENDLESS, LEFT_OUT
from tests.fuzz.http_app import TOKEN, AppThread

from shoal.kernel.permissions import TOKEN_SCOPES
from shoal.surfaces.http.openapi import make_document
from shoal.surfaces.http.table import api

FOREIGN = "web:lobby:private"
CANARY = "canary-of-the-owners"
EXAMPLES = 2
"""Random examples per call, the same in each run, in addition to all boundary cases. `make fuzz` tries others."""

DOCUMENT = msgspec.json.decode(make_document(api(), "0"))
CALLS = [f"{method.upper()} {path}" for path, item in DOCUMENT["paths"].items() for method in item if path != ENDLESS]
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with AppThread(tmp_path_factory.mktemp("home")) as app_address:
        yield app_address


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as http:
        yield http


def test_the_document_is_valid_openapi() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    schema.validate()


def test_the_document_lists_every_call() -> None:
    named = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert named == {(endpoint.method, endpoint.path.replace(":path}", "}")) for endpoint in api()}
    operations = [item[method]["operationId"] for item in DOCUMENT["paths"].values() for method in item]
    assert len(operations) == len(set(operations))


async def test_the_document_is_served(tmp_path: Path) -> None:
    async with served(tmp_path) as stand:
        answer = await stand.client.get("/openapi.json")
    assert answer.json()["paths"] == DOCUMENT["paths"]


def test_the_document_lists_the_token_scopes_of_a_call() -> None:
    for endpoint in api():
        operation = DOCUMENT["paths"][endpoint.path.replace(":path}", "}")][endpoint.method.lower()]
        assert operation.get("x-shoal-scopes", []) == list(endpoint.scopes)
        assert ("security" in operation) is endpoint.is_open
    assert set(DOCUMENT["x-shoal-scopes"]) == set(TOKEN_SCOPES)


@pytest.fixture(scope="module")
def confined(address: str) -> dict[str, str]:
    """Create a private conversation of the owner. For each scope, return a token that cannot access it."""
    owner = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=address, headers=owner, timeout=60) as client:
        assert client.post(f"/api/threads/{FOREIGN}/messages", json={"text": CANARY}).status_code == 202
        assert client.post("/api/agents", json={"name": "other"}).status_code == 201
        return {
            scope: client.post("/api/tokens", json={"name": scope, "scope": scope, "agent": agent}).json()["secret"]
            for scope, agent in (("chat", ""), ("read", "other"), ("approve", "other"))
        }


def try_call(call: str, test: Callable[..., None], examples: int, *modes: HypothesisTestMode) -> None:
    """Run a test with generated cases for a call such as `GET /path`. Generating the cases here keeps test
    collection fast.
    """
    method, _, path = call.partition(" ")
    tried = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    load_all_checks()
    # without explicit settings, the phases of the loaded profile would apply
    config = HypothesisTestConfig(project=schema.config, modes=list(modes), explicit_settings=tried)
    create_test(operation=schema[path][method], test_func=test, config=config)()


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_no_request_shows_a_confined_token_other_peoples_data(
    call: str, address: str, confined: dict[str, str], session: requests.Session
) -> None:
    def each(case: schemathesis.Case) -> None:
        if "thread" in case.path_parameters:
            case.path_parameters["thread"] = FOREIGN
        for secret in confined.values():
            headers = {"Authorization": f"Bearer {secret}"}
            answer = case.call(base_url=address, headers=headers, session=session, timeout=60)
            assert answer.status_code < 500
            assert CANARY not in answer.text
            if "thread" in case.path_parameters:
                assert answer.status_code in (401, 403, 404, 405)

    try_call(call, each, 1, HypothesisTestMode.FUZZING)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_the_server_conforms_to_its_document(call: str, address: str, session: requests.Session) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def each(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=address, headers=headers, session=session, excluded_checks=LEFT_OUT, timeout=60)

    try_call(call, each, EXAMPLES, *HypothesisTestMode)
