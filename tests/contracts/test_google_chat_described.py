"""Checks the Google Chat adapter's calls and the fake's events against the Chat API's discovery document."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any  # noqa: TID251 - a document of any form
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from tests.contracts.google_chat_peer import DIRECT, HARBOUR, GoogleChat

from shoal.kernel.posts import Button, OutboundPost
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.google_chat import FakeGoogleChat

ROOT = Path(__file__).parents[2]
DOCUMENT = "build/google-chat-api/python/googleapiclient/discovery_cache/documents/chat.v1.json"


@pytest.fixture(scope="session")
def described() -> Mapping[str, Any]:
    script = ROOT / "scripts" / "counterpart.sh"
    download = subprocess.run([script, "google-chat-api"], check=False, capture_output=True, text=True)
    if download.returncode:
        pytest.skip(download.stderr.strip())
    return json.loads((ROOT / DOCUMENT).read_text(encoding="utf-8"))


def methods(node: Mapping[str, Any]) -> Iterator[Any]:
    yield from node.get("methods", {}).values()
    for inner in node.get("resources", {}).values():
        yield from methods(inner)


def problems(value: object, schema: Mapping[str, Any], described: Mapping[str, Any], where: str) -> Iterator[str]:
    schema = described["schemas"][schema["$ref"]] if "$ref" in schema else schema
    match schema.get("type"):
        case "object":
            if not isinstance(value, dict):
                yield f"{where} is no object"
                return
            for name, inner in value.items():
                known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
                if known is None:
                    yield f"{where} has no {name}"
                else:
                    yield from problems(inner, known, described, f"{where}.{name}")
        case "array":
            for number, inner in enumerate(value if isinstance(value, list) else ["no list"]):
                yield from problems(inner, schema["items"], described, f"{where}[{number}]")
        case kind:
            wanted = {"string": str, "integer": int, "boolean": bool, "number": float}[str(kind)]
            if not isinstance(value, wanted) or ("enum" in schema and value not in schema["enum"]):
                yield f"{where} is {value!r}"


def called(method: str, path: str, body: bytes, described: Mapping[str, Any]) -> list[str]:
    parts = urlsplit(path)
    known = [
        candidate for candidate in methods(described)
        if candidate["httpMethod"] == method and re.fullmatch(_pattern(candidate), unquote(parts.path))
    ]  # fmt: skip
    if not known:
        return [f"there is no {method} {parts.path}"]
    (described_method, *_) = sorted(known, key=lambda one: -len(one["flatPath"]))
    allowed = {**described_method["parameters"], **described["parameters"]}
    wrong = [f"{path} has no parameter {name}" for name in parse_qs(parts.query) if name not in allowed]
    if body:
        wrong += problems(json.loads(body), described_method["request"], described, described_method["id"])
    return wrong


def _pattern(method: Mapping[str, str]) -> str:
    path = re.sub(r"\\\{\w+\\\}", "[^/:]+", re.escape(f"/{method['flatPath']}"))
    return path if "media" not in method["id"] else path.replace("[^/:]+", ".+")


@pytest.mark.slow
async def test_every_call_and_event_matches_googles_description(tmp_path: Path, described: Mapping[str, Any]) -> None:
    clock = ManualClock()
    server = FakeGoogleChat(clock)
    await server.start()
    server.add(DIRECT, "DIRECT_MESSAGE")
    server.add(HARBOUR, "SPACE")
    peer, inbox = GoogleChat(tmp_path, server, clock), Inbox()
    peer.adapter = peer.make(read_history=True)
    async with serving(peer.adapter, inbox):
        question = await peer.says("hello")
        await peer.sends_file("tide table.txt", b"high at noon")
        await server.says(HARBOUR, "/help")
        await server.chooses(HARBOUR, 1)
        buttons = (Button("Allow", "allow:01K"), Button("Deny", "deny:01K"))
        message_id = await peer.adapter.post(
            OutboundPost(peer.thread, "k1", "**May I?**", buttons=buttons, reply_to=question)
        )
        await peer.clicks(message_id, "Deny")
        await peer.adapter.edit(peer.thread, message_id, "No.")
        thread = await peer.adapter.open_thread(HARBOUR, "a tide")
        await peer.adapter.post(OutboundPost(thread, "k2", "for you", "ephemeral", user="1001"))
        await peer.adapter.open_thread("1001", "direct")
        assert [prompt async for prompt in peer.adapter.history(peer.thread, inbox.said()[0].at, 5)] == []
    await server.stop()
    calls = [call for call in server.calls if call[1].startswith("/v1/")]
    assert len(calls) > 8
    assert [wrong for method, path, body in calls for wrong in called(method, path, body, described)] == []
    event = described["schemas"]["DeprecatedEvent"]
    told = [json.loads(json.dumps(event)) for event in server.events]
    assert [wrong for one in told for wrong in problems(one, event, described, one["type"])] == []


def test_calls_unknown_to_google_are_reported(described: Mapping[str, Any]) -> None:
    assert called("POST", "/v1/spaces/A/messages?requestID=1", b'{"txt": 1}', described) == [
        "/v1/spaces/A/messages?requestID=1 has no parameter requestID",
        "chat.spaces.messages.create has no txt",
    ]
    assert called("PATCH", "/v1/spaces/A", b"", described) == []
    assert called("POST", "/v1/places/A/messages", b"", described) == ["there is no POST /v1/places/A/messages"]
