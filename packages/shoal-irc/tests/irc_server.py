"""A fake IRC server with the users ada, ben, mallory and a bot. It records Shoal's lines and can cause failures.

Like a bouncer, it stores messages while Shoal is disconnected.
"""

import asyncio
import base64
from typing import NamedTuple

from shoal_irc.wire import parse

from shoal.testing.platforms.fake import FakePlatform

ACCOUNT, PASSWORD = "shoal-account", "hunter2"


class Person(NamedTuple):
    """A user on the network. `account` is empty if the user is not logged in."""

    nick: str
    mask: str
    account: str = ""
    is_bot: bool = False


PEOPLE = {
    "ada": Person("ada", "~ada@harbour.example", "ada-account"),
    "ben": Person("ben", "~ben@pier.example"),
    "mallory": Person("mallory", "~mallory@elsewhere.example"),
    "bot": Person("other", "bot@bots.example", "other", is_bot=True),
}


class Said(NamedTuple):
    """A line from Shoal, with the token of the PING that requested its confirmation."""

    token: str
    target: str
    text: str


class FakeIrc(FakePlatform):
    """A fake IRC server. It offers the capabilities in `capabilities`. The nicks in `taken` are in use."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = "sasl=PLAIN message-tags account-tag server-time"
        self.taken: set[str] = set()
        self.lines: list[str] = []
        self.said: list[Said] = []
        self.people = dict(PEOPLE)
        self.nick = ""
        self.port = 0
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._kept: list[str] = []
        self._late: list[str] = []
        self._count = 0

    async def start(self) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._talks[asyncio.create_task(self._talk(reader, writer))] = writer

        self._listener = await asyncio.start_server(accept, "127.0.0.1", self.port)
        self.port = int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._talks.values():  # includes clients that have not finished registering
            writer.transport.abort()
        await asyncio.gather(*self._talks)
        self._talks.clear()
        await self._listener.wait_closed()

    def drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()

    async def let_go(self) -> None:
        for token in self._late:
            self.tells(f"PONG irc.example :{token}")
        self._late.clear()
        await super().let_go()

    async def says(self, target: str, text: str, who: str = "ada") -> str:
        self._count += 1
        person = self.people.get(who) or Person(self.nick, "shoal@bots.example")
        tags = [f"msgid=m{self._count}", "time=2026-01-05T08:00:00.000Z"]
        tags += [f"account={person.account}"] if person.account else []
        tags += ["bot"] if person.is_bot else []
        if "message-tags" not in self.capabilities:
            tags = []
        line = f":{person.nick}!{person.mask} PRIVMSG {target} :{text}"

        async def deliver() -> None:
            self.tells(f"@{';'.join(tags)} {line}" if tags else line)

        await self.happen(deliver)
        return f"m{self._count}"

    def tells(self, line: str) -> None:
        """Send a line to Shoal. If Shoal is disconnected, store the line until it connects."""
        if self._writer is None:
            self._kept.append(line)
        else:
            self._writer.write(f"{line}\r\n".encode())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def answer(line: str) -> None:
            writer.write(f":irc.example {line}\r\n".encode())

        pending: tuple[str, str] | None = None
        wants_sasl, name = False, ""
        try:
            while raw := await reader.readline():
                assert len(raw) <= 512, raw
                line = parse(raw)
                self.lines.append(raw.decode().rstrip("\r\n"))
                match line.command, line.param(0):
                    case "CAP", "LS" if self.capabilities:
                        first, *rest = self.capabilities.split(" ")
                        answer(f"CAP * LS * :{first}")
                        answer(f"CAP * LS :{' '.join(rest)}")
                    case "CAP", "REQ":
                        wants_sasl = "sasl" in line.param(1).split()
                        answer(f"CAP * ACK :{line.param(1)}")
                    case "AUTHENTICATE", "PLAIN":
                        writer.write(b"AUTHENTICATE +\r\n")
                    case "AUTHENTICATE", proof:
                        right = base64.b64decode(proof) == f"\0{ACCOUNT}\0{PASSWORD}".encode()
                        if self.token_refused or not right:
                            answer("904 * :SASL authentication failed")
                        else:
                            answer("903 * :SASL authentication successful")
                    case "NICK", nick if nick in self.taken:
                        answer(f"433 * {nick} :Nickname is already in use")
                    case "NICK", nick:
                        name = nick
                    case "PING", token:
                        self._confirm(token, pending, writer)
                        pending = None
                    case "PRIVMSG", target:
                        pending = target, line.param(1)
                    case "WHOIS", nick:
                        for person in self.people.values():
                            if person.nick == nick:
                                user, _, host = person.mask.partition("@")
                                answer(f"311 {self.nick} {nick} {user} {host} * :{nick}")
                                if person.account:
                                    answer(f"330 {self.nick} {nick} {person.account} :is logged in as")
                        answer(f"318 {self.nick} {nick} :End of WHOIS")
                    case _:
                        pass
                is_done = line.command == "CAP" and line.param(0) == "END"
                if is_done or (line.command in ("NICK", "USER") and name and not self.capabilities and not self.nick):
                    self.nick, self._writer = name, writer
                    answer(f"001 {name} :Welcome")
                    for kept in self._kept:
                        self.tells(kept)
                    self._kept.clear()
                assert wants_sasl or PASSWORD not in raw.decode() or line.param(0) == "NickServ"
                await self.tell()
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()

    def _confirm(self, token: str, pending: tuple[str, str] | None, writer: asyncio.StreamWriter) -> None:
        """Execute the command before a PING, subject to the next fault, and answer the PING."""
        if pending is None:
            self.tells(f"PONG irc.example :{token}")
            return
        target, text = pending
        kind, seconds = self.troubles.popleft() if self.troubles else ("", 0.0)
        if kind in ("", "lose", "delay"):
            self.said.append(Said(token, target, text))
        match kind:
            case "refuse" | "refuse_all":
                self.tells(f":irc.example 439 {self.nick} {target} :Target change too fast. Wait {seconds:g} seconds.")
            case "fail":
                self.tells(f":irc.example 437 {self.nick} {target} :Channel is temporarily unavailable")
            case "cut" | "lose":
                self._writer = None
                writer.transport.abort()
                return
            case "delay":
                self._late.append(token)
                return
            case _:
                pass
        self.tells(f"PONG irc.example :{token}")
