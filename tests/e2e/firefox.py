"""Drives a real Firefox over WebDriver BiDi (https://w3c.github.io/webdriver-bidi/)."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection, connect

SECONDS_MAX = 60
ENTER = "\ue007"
READY = "WebDriver BiDi listening on "


class Firefox:
    """A browser tab. `errors` lists the script errors of its pages."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._tab = ""
        self._number = 0
        self.errors: list[str] = []

    async def begin(self) -> None:
        await self.command("session.new", {"capabilities": {}})
        await self.command("session.subscribe", {"events": ["log.entryAdded"]})
        tree = cast("dict[str, list[dict[str, str]]]", await self.command("browsingContext.getTree", {}))
        self._tab = tree["contexts"][0]["context"]

    async def command(self, method: str, params: Mapping[str, object]) -> object:
        """Send a command and return its result. Script errors that arrive before the result are added to `errors`."""
        self._number += 1
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                said = json.loads(await self._socket.recv())
                if said.get("id") == self._number:
                    assert said["type"] == "success", said
                    return said["result"]
                entry = said.get("params", {})
                if said.get("method") == "log.entryAdded" and entry["type"] == "javascript":
                    self.errors.append(entry["text"])

    async def open(self, address: str) -> None:
        await self.command("browsingContext.navigate", {"context": self._tab, "url": address, "wait": "complete"})

    async def resize(self, width: int, height: int = 800) -> None:
        """Set the size of the viewport in CSS pixels."""
        size = {"width": width, "height": height}
        await self.command("browsingContext.setViewport", {"context": self._tab, "viewport": size})

    async def run(self, script: str) -> object:
        wanted = {"expression": script, "target": {"context": self._tab}, "awaitPromise": True}
        answer = cast("dict[str, dict[str, object]]", await self.command("script.evaluate", wanted))
        assert "result" in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        wait = (
            f"new Promise((done) => {{ const look = () => ({script}) ? done(true) : setTimeout(look, 50); look(); }})"
        )
        await self.run(wait)

    async def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        await self.command("input.performActions", {"context": self._tab, "actions": [source]})


@asynccontextmanager
async def firefox(folder: Path) -> AsyncGenerator[Firefox]:
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("Firefox is not installed; scripts/test-deps.sh installs it")
    command = [program, "--headless", "--profile", str(folder), "--remote-debugging-port", "0"]
    environment = {**os.environ, "HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=DEVNULL, stderr=PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(SECONDS_MAX):
            async for line in process.stderr:
                if READY in (said := line.decode(errors="replace").strip()):
                    break
            else:
                raise AssertionError("Firefox ended before it could be driven")
        async with connect(f"{said.partition(READY)[2]}/session", max_size=None) as socket:
            browser = Firefox(socket)
            await browser.begin()
            yield browser
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
