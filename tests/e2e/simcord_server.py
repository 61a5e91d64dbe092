"""Serves simcord, an independent simulation of Discord, on loopback: its API, its gateway, and routes to act as a
person.

Run it with simcord's packages on the path. It prints its address and serves until standard input is closed. simcord
checks intents and decides which events a bot receives. Tests act as Ada through `/people/…`.
"""

import importlib
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any  # noqa: TID251 (simcord has no types)

import anyio

TOKEN = "OTAw.simulated.token-for-tests-only"
HEARTBEAT_MS = 41_250
ANYBODY = ("/interactions/", "/webhooks/")
MAY = (
    "view_channel", "send_messages", "create_public_threads", "send_messages_in_threads", "attach_files",
    "read_message_history",
)  # fmt: skip
"""Permissions that the setup page tells people to grant, and no others."""

web = importlib.import_module("aiohttp.web")
discord = importlib.import_module("discord")
backends = importlib.import_module("simcord.backend")
router = importlib.import_module("simcord.http.router")
interactions = importlib.import_module("simcord.interactions")
actors = importlib.import_module("simcord.actors")
gateways = importlib.import_module("simcord.gateway")


class Now:
    """The simulation's clock. It shows real time, as the bot's clock does."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class Parsers(dict[str, Callable[[Any], None]]):
    """Accepts every event. In discord.py, this table contains a parser for each event that it knows."""

    def __init__(self, take: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.take = take

    def __missing__(self, name: str) -> Callable[[Any], None]:
        return lambda data: self.take(name, data)


class Simulation:
    """A server with one channel, Ada, and her direct conversation with the bot."""

    def __init__(self) -> None:
        self.backend = backends.Backend(clock=Now())
        self.ada = self.backend.make_user("ada", global_name="Ada")
        self.guild = self.backend.create_guild("Pier")
        self.backend.add_member(self.guild.id, self.ada.id)
        may = discord.Permissions(**dict.fromkeys(MAY, True)).value
        people = discord.Permissions(view_channel=True, use_application_commands=True).value
        for role in self.guild.roles.values():
            role.permissions = people if role.id == self.guild.id else may
        self.harbour = self.backend.create_channel(self.guild.id, "harbour")
        self.direct = self.backend.get_dm_channel(self.ada.id)
        self.address = ""
        self.refused: list[tuple[str, str, int, int]] = []
        self.changes = 0
        self.changed = anyio.Event()
        self.backend.subscribers.append(lambda _name, _data: self.note())

    def note(self) -> None:
        self.changes += 1
        self.changed.set()
        self.changed = anyio.Event()

    # ---- the bot ----

    async def api(self, request: Any) -> Any:
        path = f"/{request.match_info['path']}"
        if not path.startswith(ANYBODY) and request.headers.get("authorization") != f"Bot {TOKEN}":
            return web.json_response({"message": "401: Unauthorized", "code": 0}, status=401)
        if path == "/gateway/bot":
            start = {"total": 1000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}
            url = self.address.replace("http", "ws") + "/gateway"
            return web.json_response({"url": url, "shards": 1, "session_start_limit": start})
        body, files = await _body(request)
        try:
            content = router.dispatch(
                self.backend, request.method, path, json=body, params=dict(request.query), files=files
            )
        except backends.errors.BackendError as error:
            self.refused.append((request.method, path, error.status, error.code))
            return web.json_response(error.to_json(), status=error.status)
        finally:
            self.note()
        return web.Response(status=204) if content is None else web.json_response(content)

    async def gateway(self, request: Any) -> Any:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        out, coming = anyio.create_memory_object_stream[Mapping[str, Any]](math.inf)
        out.send_nowait({"op": 10, "d": {"heartbeat_interval": HEARTBEAT_MS}, "t": None, "s": None})
        events = 0

        def tell(name: str, data: Any) -> None:
            nonlocal events
            events += 1
            out.send_nowait({"op": 0, "d": data, "t": name, "s": events})

        feed: Callable[[str, Any], None] | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_send, socket, coming)
            async for message in socket:
                frame = json.loads(message.data)
                if frame["op"] == 1:
                    out.send_nowait({"op": 11, "d": None, "t": None, "s": None})
                elif frame["op"] == 2 and frame["d"]["token"] == TOKEN:
                    feed = self._begin(frame["d"]["intents"], tell)
                else:  # a session cannot be resumed: it ends with its connection
                    out.send_nowait({"op": 9, "d": False, "t": None, "s": None})
            tasks.cancel_scope.cancel()
        if feed is not None:
            self.backend.subscribers.remove(feed)
        return socket

    def _begin(self, intents: int, tell: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        flags = discord.Intents._from_value(intents)
        gate = gateways.FakeGateway(self.backend, SimpleNamespace(intents=flags, parsers=Parsers(tell)))
        tell("READY", {
            "v": 10, "user": backends.serializers.user_payload(self.backend.bot_user), "session_id": "simulated",
            "guilds": [{"id": str(self.guild.id), "unavailable": True}], "resume_gateway_url": "",
            "application": {"id": str(self.backend.application_id), "flags": 0},
        })  # fmt: skip
        gate.feed("GUILD_CREATE", backends.serializers.guild_create_payload(self.backend, self.guild))
        feed = gate.feed
        self.backend.subscribers.append(feed)
        return feed

    # ---- people ----

    async def person(self, request: Any) -> Any:
        verbs = {"says": self.says, "edits": self.edits, "clicks": self.clicks, "commands": self.commands,
                 "reacts": self.reacts}  # fmt: skip
        return web.json_response(str(verbs[request.match_info["verb"]](**await request.json())))

    def says(self, channel: int, text: str) -> int:
        return self.backend.create_message(channel, self.ada.id, text).id

    def edits(self, channel: int, message: int, text: str) -> int:
        return self.backend.edit_message(channel, message, {"content": text}).id

    def reacts(self, channel: int, message: int, emoji: str) -> int:
        self.backend.add_reaction(channel, message, emoji, self.ada.id)
        return message

    def clicks(self, channel: int, message: int, label: str) -> int:
        shown = self.backend.get_message(channel, message)
        button = actors._find_component(shown.components, types=(2,), custom_id=None, label=label)
        data = {"custom_id": button["custom_id"], "component_type": 2}
        payload = {"message": backends.serializers.message_payload(self.backend, shown)}
        return self._interacts(3, channel, data, payload, source=message)

    def commands(self, channel: int, name: str, text: str = "") -> int:
        """Run a slash command. Fails unless Discord offers it to Ada in this channel."""
        offered = self.backend.visible_commands(user_id=self.ada.id, channel_id=channel)
        command = next(command for command in offered if command["name"] == name)
        known = {option["name"]: option for option in command["options"]}
        value = interactions.validate_option_value(name, known["text"], text) if text else None
        options = [{"type": 3, "name": "text", "value": value}] if text else []
        data = {"id": command["id"], "name": name, "type": 1, "options": options}
        return self._interacts(2, channel, data, {})

    def _interacts(self, kind: int, channel: int, data: Any, more: Mapping[str, Any], source: int | None = None) -> int:
        guild = self.backend.get_channel(channel).guild_id
        record, payload = interactions.base_payload(
            self.backend, type=kind, channel_id=channel, guild_id=guild, user_id=self.ada.id, data=data
        )
        record.source_message_id = source
        self.backend.emit("INTERACTION_CREATE", {**payload, **more})
        return record.id

    async def world(self, request: Any) -> Any:
        """Wait until more than `after` changes have happened, then return everything that is visible."""
        while self.changes <= int(request.query["after"]):
            await self.changed.wait()
        messages = [message for channel in self.backend.messages.values() for message in channel.values()]
        return web.json_response({
            "changes": self.changes,
            "messages": [self._shown(message) for message in messages],
            "threads": {
                str(channel.id): channel.name
                for channel in self.backend.channels.values() if channel.is_thread
            },
            "heard": {
                str(interaction.id): {
                    "message": str(interaction.message_id),
                    "loading": interaction.loading,
                    "ephemeral": interaction.ephemeral,
                }
                for interaction in self.backend.interactions.values()
            },
            "commands": [name for name, _ in self.backend.commands.get(None, {})],
            "refused": self.refused,
        })  # fmt: skip

    def _shown(self, message: Any) -> Mapping[str, Any]:
        labels = [button["label"] for row in message.components for button in row["components"]]
        return {
            "id": str(message.id), "channel": str(message.channel_id), "text": message.content, "labels": labels,
            "bot": message.author_id == self.backend.bot_user.id, "edited": message.edited_timestamp is not None,
            "hidden": message.is_ephemeral, "kind": int(message.type),
            "files": [file["filename"] for file in message.attachments],
        }  # fmt: skip


async def _send(socket: Any, coming: Any) -> None:
    async for frame in coming:
        await socket.send_json(frame)


async def _body(request: Any) -> tuple[Any, list[Any]]:
    if not request.content_type.startswith("multipart/"):
        text = await request.text()
        return json.loads(text) if text else None, []
    body, files = None, []
    async for part in await request.multipart():
        content = bytes(await part.read())
        if part.name == "payload_json":
            body = json.loads(content)
        else:
            files.append(SimpleNamespace(fp=io.BytesIO(content), filename=part.filename, description=None))
    return body, files


async def _serve() -> None:
    simulation = Simulation()
    app = web.Application()
    app.router.add_get("/gateway", simulation.gateway)
    app.router.add_get("/people/world", simulation.world)
    app.router.add_post("/people/{verb}", simulation.person)
    app.router.add_route("*", "/api/v10/{path:.*}", simulation.api)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    simulation.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    names = {
        "bot": simulation.backend.bot_user,
        "ada": simulation.ada,
        "harbour": simulation.harbour,
        "direct": simulation.direct,
    }
    greeting = {"address": simulation.address, "token": TOKEN, **{name: str(one.id) for name, one in names.items()}}
    sys.stdout.write(json.dumps(greeting) + "\n")
    sys.stdout.flush()
    await anyio.to_thread.run_sync(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    anyio.run(_serve)
