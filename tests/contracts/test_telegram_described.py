"""Checks the Telegram adapter's calls and the fake's updates against the Bot API documentation."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.contracts.test_chat_telegram import Telegram

from shoal.kernel.posts import Button, OutboundPost
from shoal.testing.contracts.chat_peer import Inbox, serving
from shoal.testing.platforms.telegram import FakeTelegram

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def described() -> Mapping[str, str]:
    setup = subprocess.run(
        [ROOT / "scripts" / "counterpart.sh", "bot-api"], check=False, capture_output=True, text=True
    )
    if setup.returncode:
        pytest.skip(setup.stderr.strip())
    return {**os.environ, "PYTHONPATH": str(ROOT / "build" / "bot-api" / "python")}


def problems(told: Mapping[str, object], environment: Mapping[str, str]) -> list[str]:
    argv = [sys.executable, str(ROOT / "tests" / "contracts" / "bot_api.py")]
    result = subprocess.run(argv, input=json.dumps(told), env=environment, check=True, capture_output=True, text=True)
    return result.stdout.splitlines()


WRONG_CALLS = [("sendMessage", {"chat_id": 7}), ("sendMassage", {}), ("getMe", {"chat": 7})]
WRONG_UPDATE = {"update_id": 1, "message": {"message_id": 1, "date": 1, "chat": {"id": 7}}}


@pytest.mark.slow
async def test_every_call_and_update_matches_the_bot_api(tmp_path: Path, described: Mapping[str, str]) -> None:
    server = FakeTelegram()
    server.add_chat(7)
    server.add_chat(-100, "supergroup", (41,))
    await server.start()
    peer, inbox = Telegram(tmp_path, server), Inbox()
    file = tmp_path / "tides.txt"
    file.write_bytes(b"high at noon")
    async with serving(peer.adapter, inbox):
        question = await peer.says("/status")
        await peer.says("hello")
        await server.says(-100, "hello @shoal_test_bot", topic=41)
        await peer.sends_file("tide table.txt", b"high at noon")
        await inbox.prompts(3)
        buttons = (Button("Allow", "allow:01K"), Button("Deny", "deny:01K"))
        message_id = await peer.adapter.post(
            OutboundPost(peer.thread, "k1", "**May I?** [x](https://example.com)", buttons=buttons)
        )
        await peer.adapter.post(
            OutboundPost(peer.thread, "k2", "The table.", kind="file", file=file, reply_to=question)
        )
        await peer.adapter.typing(peer.thread, "thinking")
        await peer.clicks(message_id, "Deny")
        await inbox.until(lambda: bool(inbox.decided))
        await peer.adapter.edit(peer.thread, message_id, "Denied.")
        await peer.changes(question, "/status now")
        inbox.threads[message_id] = peer.thread
        await peer.reacts(message_id, "❌")
        await inbox.until(lambda: len(inbox.came) > 3)
    await peer.adapter.close()
    await server.stop()
    uploads = {"sendDocument": {"document": "what was uploaded"}}
    calls = [(method, {**arguments, **uploads.get(method, {})}) for method, arguments in server.calls]
    sent = {"calls": [*calls, *WRONG_CALLS], "updates": [*server.updates, WRONG_UPDATE]}
    assert {method for method, _ in server.calls} > {"getMe", "getUpdates", "sendMessage", "sendDocument", "getFile"}
    lines = await asyncio.to_thread(problems, sent, described)
    wrong = ["sendMessage: ", "sendMassage: no such method", "getMe: .chat is unknown", "Update: "]
    assert len(lines) == len(wrong), "\n".join(lines)
    assert all(line.startswith(start) for line, start in zip(lines, wrong, strict=True)), "\n".join(lines)
