"""The route table finds the module of each endpoint without importing the others."""

import pytest
from starlette.exceptions import HTTPException

from shoal.surfaces.http.table import MODULES, endpoint_for, is_file, is_open, modules_of


def test_every_endpoint_is_found_by_its_path() -> None:
    for module in MODULES:
        for endpoint in module.load():
            names = [one.name for one in modules_of(endpoint.path)]
            assert module.name in names, f"{endpoint.path} is below none of the paths of {module.name}"


def test_every_path_of_the_table_has_an_endpoint() -> None:
    for module in MODULES:
        served = [endpoint.path for endpoint in module.load()]
        for pattern in module.paths:
            alone = module._replace(paths=(pattern,))
            assert any(alone.serves(path) for path in served), f"{module.name} serves nothing below {pattern}"


def test_a_path_selects_the_one_module_that_serves_it() -> None:
    assert [one.name for one in modules_of("/api/threads/web:lobby:1/messages")] == ["routes_threads"]
    assert modules_of("/nothing") == MODULES


def test_paths_without_a_token_are_known() -> None:
    for path in ("/", "/healthz", "/hooks/x", "/platforms/teams", "/platforms/teams/other", "/console/main.js"):
        assert is_open(path), path
    for path in ("/api/threads", "/metrics", "/platforms", "/healthz/more", "/nothing", "/v1/models"):
        assert not is_open(path), path


def test_files_of_threads_are_known_by_their_paths() -> None:
    thread = "/api/threads/web:lobby:1"
    for path in ("files/attachments/a.txt", "artifacts/d1", "picture", "export", "turns/t1/speech"):
        assert is_file(f"{thread}/{path}"), path
    for path in ("", "/files", "/artifacts", "/events", "/messages", "/turns/t1/cost", "/turns/t1/speech/more"):
        assert not is_file(f"{thread}{path}"), path
    for path in ("/", "/metrics", "/api/events", "/api/agents/main/files/AGENTS.md", "/console/main.js", "/nothing"):
        assert not is_file(path), path


def test_a_module_without_declared_paths_is_tried_for_any_path() -> None:
    assert MODULES[0]._replace(paths=()).serves("/api/threads")


@pytest.mark.parametrize(
    ("call", "path", "parts"),
    [
        ("GET /api/threads", "/api/threads", {}),
        ("HEAD /api/threads", "/api/threads", {}),
        ("GET /api/threads/web:a:1", "/api/threads/{thread}", {"thread": "web:a:1"}),
        (
            "GET /api/threads/web:a:1/files/a/b",
            "/api/threads/{thread}/files/{path:path}",
            {"thread": "web:a:1", "path": "a/b"},
        ),
        (
            "GET /api/threads/web:a:1/files/",
            "/api/threads/{thread}/files/{path:path}",
            {"thread": "web:a:1", "path": ""},
        ),
    ],
)
def test_a_call_gets_its_endpoint_and_the_parts_of_its_path(call: str, path: str, parts: dict[str, str]) -> None:
    endpoint, found = endpoint_for(*call.split())
    assert (endpoint.path, found) == (path, parts)


@pytest.mark.parametrize("path", ["/nothing", "/api/threads//messages", "/api/threads/", "/api/threads/a/b/c/d"])
def test_an_unknown_path_is_not_found(path: str) -> None:
    with pytest.raises(HTTPException) as refused:
        endpoint_for("GET", path)
    assert refused.value.status_code == 404


def test_a_wrong_method_lists_the_allowed_ones() -> None:
    with pytest.raises(HTTPException) as refused:
        endpoint_for("PUT", "/api/threads/web:a:1")
    assert refused.value.status_code == 405
    assert refused.value.headers == {"Allow": "DELETE, GET, HEAD, PATCH"}
