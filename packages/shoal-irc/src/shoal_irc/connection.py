"""Connection to an IRC server: registration, and messages that the server confirms with a PONG."""

import asyncio
import base64
import re
from typing import Literal

from shoal.kernel.errors import PlatformError
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.settings_platforms import AccountSettings
from shoal_irc.wire import Line, parse, written

QUIET_SECONDS = 120.0
"""Seconds of silence before a PING is sent. After twice that time, the connection counts as broken."""
READ_BYTES_MAX = 16_384
"""Maximum length of a line in bytes. IRC allows 8,191 bytes of tags plus 512; the rest is a margin."""
WANTED = frozenset({"message-tags", "account-tag", "server-time"})
GONE = frozenset({"401", "403", "404", "477", "531"})
REFUSED = {
    **dict.fromkeys(("902", "904", "905", "906", "908"), "rejected the token or password of platforms.irc.user"),
    **dict.fromkeys(("432", "464", "465", "ERROR"), "rejected the connection"),
}


class IrcSettings(AccountSettings, frozen=True, kw_only=True):
    """An account on an IRC network."""

    server: str
    port: int = 6697
    tls: bool = True
    nick: str = "shoal"
    join: tuple[str, ...] = ()
    """Channels to join."""
    user: str = ""
    """Account name for NickServ or SASL. Empty means the nick."""
    password: Secret = NO_SECRET
    """Password of the account."""
    login: Literal["sasl", "nickserv"] = "sasl"
    """How the password is sent. Use `nickserv` only if the network reserves the nick NickServ."""
    server_password: Secret = NO_SECRET
    """Password of the server itself or of a bouncer."""


class Connection:
    """A connection to a server.

    The caller must await `next` continuously, because it reads the responses that `say` and `whois` wait for.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, settings: IrcSettings) -> None:
        self.nick = settings.nick
        self._reader = reader
        self._writer = writer
        self._settings = settings
        self._unconfirmed: dict[str, tuple[str, asyncio.Future[None]]] = {}
        self._known: dict[str, set[str]] = {}

    def send(self, *words: str) -> None:
        """Send a line. Raises PlatformError if the words cannot be sent as one IRC line."""
        self._writer.write(written(*words))

    def close(self) -> None:
        """Close the connection. Calls that wait for a confirmation raise PlatformError."""
        self._writer.close()
        for _, waiting in self._unconfirmed.values():
            if not waiting.done():
                waiting.set_exception(PlatformError("The connection to IRC was lost.", outcome_unknown=True))

    async def register(self) -> None:
        own, offered = self._settings, set[str]()
        password = own.password.reveal()
        if own.server_password:
            self.send("PASS", own.server_password.reveal())
        self.send("CAP", "LS", "302")
        self.send("NICK", self.nick)
        self.send("USER", "shoal", "0", "*", "Shoal")
        while (line := await self.next()).command != "001":
            match line.command, line.param(1):
                case "CAP", "LS":
                    offered |= {cap.partition("=")[0] for cap in line.params[-1].split()}
                    if line.param(2) == "*":
                        continue  # more lines follow
                    signs_in = bool(password) and own.login == "sasl"
                    if signs_in and "sasl" not in offered:
                        raise PlatformError(
                            f'{own.server} does not support SASL. Set platforms.irc.login = "nickserv".'
                        )
                    asked = sorted(WANTED & offered) + (["sasl"] if signs_in else [])
                    self.send(*(("CAP", "REQ", " ".join(asked)) if asked else ("CAP", "END")))
                case "CAP", "ACK" if "sasl" in line.params[-1].split():
                    self.send("AUTHENTICATE", "PLAIN")
                case "CAP", "NAK":
                    raise PlatformError(f"{own.server} rejected capabilities that it had offered: {line.params[-1]}")
                case ("CAP", "ACK") | ("903", _):
                    self.send("CAP", "END")
                case "433", _:
                    self.nick += "_"
                    self.send("NICK", self.nick)
                case command, _ if command in REFUSED:
                    raise PlatformError(f"{own.server} {REFUSED[command]}: {line.params[-1]}")
                case _ if line.command == "AUTHENTICATE":
                    proof = base64.b64encode(f"\0{own.user or own.nick}\0{password}".encode()).decode()
                    for at in range(0, len(proof) + 1, 400):  # a full last line must be followed by an empty one
                        self.send("AUTHENTICATE", proof[at : at + 400] or "+")
                case _:
                    pass
        self.nick = line.param(0)
        if password and own.login == "nickserv":
            self.send("PRIVMSG", "NickServ", f"IDENTIFY {own.user or own.nick} {password}")
        for channel in own.join:
            self.send("JOIN", channel)

    async def next(self) -> Line:
        """Return the next line after applying nick changes, confirmations and WHOIS responses. Raises PlatformError."""
        line = parse(await self._read())
        about, text = line.param(1), line.params[-1] if line.params else ""
        match line.command:
            case "PING":
                self.send("PONG", text)
            case "PONG" if text in self._unconfirmed:
                self._end(text, None)
            case "NICK" if line.source.partition("!")[0] == self.nick:
                self.nick = text
            case "311":  # WHOIS: nick, user, host
                self._known[about.lower()] = {f"{line.param(2)}@{line.param(3)}"}
            case "330" if about.lower() in self._known:  # nick, account
                self._known[about.lower()].add(line.param(2))
            case command if command.isdecimal() and "400" <= command < "600":
                seconds = re.search(r"(\d+) sec", text)
                refusal = PlatformError(
                    f"{about}: {text}", retry_after_seconds=float(seconds[1]) if seconds else None,
                    permanent=command in GONE,
                )  # fmt: skip
                for token, (target, _) in tuple(self._unconfirmed.items()):
                    if target.lower() == about.lower():
                        self._end(token, refusal)
            case _:
                pass
        return line

    async def say(self, target: str, text: str, token: str) -> None:
        """Send a message and wait until the server has confirmed it. Raises PlatformError."""
        if "," in target:
            raise PlatformError(f"{target!r} contains more than one recipient.", permanent=True)
        await self._confirmed(target, token, "PRIVMSG", target, text)

    async def whois(self, nick: str) -> set[str]:
        """Return the identities of the user with this nick: USER@HOST, and the account if the user is logged in.

        Raises PlatformError.
        """
        self._known.pop(nick.lower(), None)
        try:
            await self._confirmed(nick, f"whois.{nick}", "WHOIS", nick)
        except PlatformError as error:
            if not error.permanent:
                raise
        return self._known.pop(nick.lower(), set())

    async def _confirmed(self, target: str, token: str, *words: str) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed[token] = target, waiting
        try:
            self.send(*words)
            self.send("PING", token)
            await self._writer.drain()
            async with asyncio.timeout(QUIET_SECONDS):
                await waiting
        except OSError as error:
            raise PlatformError("The IRC server did not confirm a message.", outcome_unknown=True) from error
        finally:
            self._unconfirmed.pop(token, None)

    def _end(self, token: str, refusal: PlatformError | None) -> None:
        _, waiting = self._unconfirmed.pop(token)
        if not waiting.done():
            if refusal is not None:
                waiting.set_exception(refusal)
            else:
                waiting.set_result(None)

    async def _read(self) -> bytes:
        for asked in (False, True):
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    raw = await self._reader.readline()
            except TimeoutError:
                if asked:
                    break
                self.send("PING", "shoal")
                continue
            except (OSError, ValueError) as error:  # the connection broke, or the line is too long
                raise PlatformError(f"The connection to {self._settings.server} was lost: {error}.") from error
            if raw.endswith(b"\n"):
                return raw
            raise PlatformError(f"{self._settings.server} closed the connection.")
        raise PlatformError(f"{self._settings.server} does not respond.")


async def connect(settings: IrcSettings) -> Connection:
    """Open a connection without registering. Raises PlatformError."""
    try:
        async with asyncio.timeout(QUIET_SECONDS):
            opened = asyncio.open_connection(
                settings.server, settings.port, ssl=settings.tls or None, limit=READ_BYTES_MAX
            )
            return Connection(*await opened, settings)
    except OSError as error:
        raise PlatformError(f"Cannot reach {settings.server}:{settings.port}: {error}.") from error
