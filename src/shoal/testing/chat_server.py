"""A chat platform as a process of its own: `python -m shoal.testing.chat_server --transcript FILE` prints its address.

Its people write by themselves: each says a few messages, at most `ahead` of what was answered. A bot asks for them
(`GET /updates`), acknowledges each (`POST /ack`) and answers (`POST /post`, with an idempotency key). Of the posts a
share, chosen by the seed, is refused with 429, or made with the connection broken before the answer. Everything that
happened is appended to the transcript, one JSON object a line.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from shoal.testing.model.http import Connection, Drop, Incoming, Plan, document

TROUBLES_MAX = 2
"""How often one message may meet trouble."""
UPDATES_MAX = 50


class People(msgspec.Struct, frozen=True):
    """Who writes: `threads` people, `turns` messages each, with `ahead` of them unanswered at most."""

    threads: int
    turns: int
    ahead: int = 2
    seed: int = 0

    def text(self, person: int, number: int) -> str:
        """What a person says: a directive for the scripted model, with tools or without."""
        name = f"{person}.{number}"
        drawn = random.Random(f"{self.seed}/{name}")
        rounds = drawn.choice((0, 1, 1, 2))
        if rounds and drawn.random() < 0.2:
            return f'tools=1 tool=bash args={{"command":"echo {name}"}} words=3 id={name}'
        return f'tools={rounds} tool=note args={{"text":"{name}"}} words=3 id={name}'


class Update(msgspec.Struct, frozen=True):
    """A message of a person."""

    id: str
    person: str
    text: str


class NewMessage(msgspec.Struct, frozen=True):
    """What a bot posts."""

    key: str
    thread: str
    text: str
    reply_to: str = ""


class Ack(msgspec.Struct, frozen=True):
    """A bot has taken this message, or a copy of it before."""

    id: str
    status: str


class ChatServer:
    """The platform. `trouble` is the share of first attempts that fail, half of them after the message was posted."""

    def __init__(self, transcript: Path, people: People, trouble: float = 0.0) -> None:
        self._people = people
        self._trouble = trouble
        self._file = transcript.open("ab", buffering=0)
        self._open: dict[str, Update] = {}
        self._said = dict.fromkeys(range(people.threads), 0)
        self._answered: dict[str, None] = {}
        self._keys: dict[str, str] = {}
        self._attempts: Counter[str] = Counter()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        for person in range(people.threads):
            for _ in range(people.ahead):
                self._say(person)

    async def start(self, port: int = 0) -> str:
        """Listen on loopback; returns the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._respond, self._connections), "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.close()
            await self._server.wait_closed()
        self._file.close()

    def _respond(self, incoming: Incoming) -> Plan:
        match incoming.method, incoming.path:
            case "GET", "/updates":
                return _answer(list(self._open.values())[:UPDATES_MAX])
            case "GET", "/state":
                return _answer(self._state())
            case "POST", "/ack":
                return self._ack(msgspec.json.decode(incoming.body, type=Ack))
            case "POST", "/post":
                return self._post(msgspec.json.decode(incoming.body, type=NewMessage))
            case _:
                return Plan([document(404, b"{}")])

    def _state(self) -> dict[str, int]:
        """How far it is; the connection that asks is not counted."""
        return {
            "answered": len(self._answered),
            "wanted": self._people.threads * self._people.turns,
            "connections": len(self._connections) - 1,
        }

    def _say(self, person: int) -> None:
        number = self._said[person]
        if number < self._people.turns:
            self._said[person] += 1
            name = f"{person}.{number}"
            self._open[name] = Update(name, f"person-{person}", self._people.text(person, number))

    def _ack(self, ack: Ack) -> Plan:
        if self._open.pop(ack.id, None) is not None:
            self._note("ack", id=ack.id, status=ack.status)
        return _answer({})

    def _post(self, message: NewMessage) -> Plan:
        known = self._keys.get(message.key)
        self._attempts[message.key] += 1
        attempt = self._attempts[message.key]
        drawn = random.Random(f"{self._people.seed}/{message.key.rpartition('/')[2]}/{attempt}")
        fate = drawn.random() if attempt <= TROUBLES_MAX else 1.0
        if fate < self._trouble / 2:
            self._note("refused", key=message.key)
            return Plan([document(429, b"{}", (("retry-after", "0.2"),))])
        if known is None:
            known = self._keys[message.key] = f"m{len(self._keys) + 1}"
            self._note("post", id=known, key=message.key, thread=message.thread, text=message.text, to=message.reply_to)
            self._take_answer(message.reply_to)
        else:
            self._note("repeat", id=known, key=message.key)
        if fate < self._trouble:
            return Plan([Drop()])
        return _answer({"id": known})

    def _take_answer(self, answered: str) -> None:
        if answered and answered not in self._answered:
            self._answered[answered] = None
            self._say(int(answered.partition(".")[0]))

    def _note(self, kind: str, **fields: str) -> None:
        self._file.write(json.dumps({"kind": kind, "at": time.time(), **fields}).encode() + b"\n")


def _answer(content: object) -> Plan:
    return Plan([document(200, msgspec.json.encode(content))])


async def serve(server: ChatServer, port: int) -> None:
    """Listen until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    sys.stdout.write(f"{await server.start(port)}\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop()


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(prog="shoal.testing.chat_server", description=__doc__)
    parser.add_argument("--transcript", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trouble", type=float, default=0.0, help="share of posts that meet trouble, 0 to 1")
    options = parser.parse_args()
    people = People(options.threads, options.turns, options.ahead, options.seed)
    asyncio.run(serve(ChatServer(options.transcript, people, options.trouble), options.port))


if __name__ == "__main__":
    main()
