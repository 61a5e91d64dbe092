"""The table of paths finds the module of every endpoint, and imports no other."""

from shoal.surfaces.http.table import MODULES, is_file, is_open, modules_of


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


def test_a_message_needs_one_module() -> None:
    assert [one.name for one in modules_of("/api/threads/web:lobby:1/messages")] == ["routes_threads"]
    assert modules_of("/nothing") == MODULES


def test_what_needs_no_token_is_known_by_its_path() -> None:
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


def test_a_module_without_paths_is_asked_for_any_path() -> None:
    assert MODULES[0]._replace(paths=()).serves("/api/threads")
