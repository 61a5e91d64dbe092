"""A simulated chat platform: `python -m tests.chaos.chat_server --transcript FILE` prints its address and serves.

Simulated people write the messages. Each person sends a fixed number of messages, of which at most `ahead` may be
unanswered. A bot polls for messages (`GET /updates`), acknowledges each one (`POST /ack`), and posts with an
idempotency key (`POST /post`). A seeded share of the posts fails with 429 or 500, or succeeds but loses the
response. All events are appended to the transcript, one JSON object per line.

With `--mixed`, people also steer, stop, edit and delete messages, send files (`GET /file/NAME`), decide approvals,
and ask for reminders, subagents, processes and memory. People with odd numbers also undo a turn's changes to their
files below `--folder`, undo the undo, retry a message, and write in a fork of their conversation. A `--keyless`
platform ignores keys, but its messages can be edited and deleted.
"""

import argparse
import asyncio
import json
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from shoal.kernel.crash_log import ENDED_TWICE
from shoal.kernel.posts import REPEATED, WRITING, Button
from shoal.testing.model.http import Connection, Drop, Incoming, Plan, document

Deed: TypeAlias = Literal["say", "steer", "stop", "edit", "delete", "press", "command", "tell"]
Kind: TypeAlias = Literal[
    "plain",
    "steer",
    "stop",
    "edit",
    "delete",
    "guarded",
    "remind",
    "subagent",
    "spawn",
    "process",
    "remember",
    "spend",
    "file",
    "undo",
    "retry",
    "fork",
]

KINDS: tuple[Kind, ...] = get_args(Kind)
KIND_WEIGHTS = (6, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 0.5, 1, 3, 1.5, 1.5)
GOING_BACK: tuple[Kind, ...] = ("undo", "retry", "fork")
LINE_KINDS: tuple[Kind, ...] = ("plain", "edit", "delete", "file")
LINE_KIND_WEIGHTS = (6, 1, 1, 1)
FACTS = 20
"""Number of different facts to remember, over all people."""
SPENT_ROUNDS = 90
"""Rounds of a turn that exceeds any budget."""
DECISIONS = (("allow",), ("deny",), ("allow", "allow"), ("allow", "deny"), ("deny", "allow"))
PLANS = (("last",), ("turn",), ("last", "back"), ("last", "back", "turn"))
"""Sequences of undos: the person's last turn, the same turn by its id, and `back` to take the undo back."""
COPY = "fork:"
"""Prefix of the id of a thread opened for a copy. The command's id and `:0` follow."""
AGAIN_SECONDS = 0.5
"""Delay before a person repeats a command because a turn is running, or looks again for a copy's thread, in seconds."""
LOOKS_MAX = 40
"""Maximum number of looks for a copy's thread before a person asks for another copy."""
DEED_SECONDS_MAX = 0.8
"""Maximum delay before a person steers, stops or edits a message, in seconds."""
LATE_SECONDS = 4.0
"""Delay of a late decision, in seconds."""
TROUBLES_MAX = 2
"""Maximum number of failures per message."""
UPDATES_MAX = 50


_DONE = re.compile(r"DONE \d+ (\S+)")
_TURN = re.compile(r"[0-9A-Z]{26}")
_UNDONE = re.compile(r"reverses this|have already been undone")
_DIFFERING = re.compile(r"other changes too: (.*)\. Keep or overwrite")
_NOT_NOW = re.compile(r"still running|^The platform answered|^The connection broke|^Too many posts")


def answers_of(text: str) -> list[str]:
    """Return the names of the messages that a text answers, in order. Previews and other texts answer no message."""
    match = None if text.endswith(WRITING) else _DONE.match(text.removeprefix(REPEATED).lstrip())
    return match.group(1).split("+") if match else []


class People(msgspec.Struct, frozen=True):
    """The people who write on a platform.

    - `threads`: the number of people.
    - `first`: the number of the first person.
    - `turns`: the number of messages per person.
    - `ahead`: the maximum number of unanswered messages per person.
    - `mixed`: send messages of random kinds, except for the last two messages of each person.
    - `lines`: only edit and delete messages and send files with them.
    - `pause_seconds`: the average pause after a message.
    - `agents`: the number of agents, or 0 for the default agent alone.
    """

    threads: int
    turns: int
    ahead: int = 2
    seed: int = 0
    first: int = 0
    mixed: bool = False
    pause_seconds: float = 0.0
    lines: bool = False
    agents: int = 0

    def numbers(self) -> range:
        return range(self.first, self.first + self.threads)

    def kind(self, name: str) -> Kind:
        is_last = int(name.partition(".")[2]) >= self.turns - 2
        drawn = random.Random(f"{self.seed}/kind/{name}")
        kinds, weights = (LINE_KINDS, LINE_KIND_WEIGHTS) if self.lines else (KINDS, KIND_WEIGHTS)
        kind = drawn.choices(kinds, weights)[0]
        is_odd = int(name.partition(".")[0]) % 2
        if not self.mixed or is_last or kind in (("stop",) if is_odd else GOING_BACK):
            # a stop that is delivered twice may end any turn, so people who stop turns never undo, retry or fork
            return "plain"
        return kind

    def agent(self, person: int) -> str:
        """Return the agent of a person, or an empty string for the default agent. Several people share an agent
        and its workspace.
        """
        return f"crew-{person % self.agents}" if self.agents else ""

    def drafts(self, person: int) -> str:
        """Return the folder of a person's files, relative to the workspace."""
        return f"drafts/{person}"

    def words(self, name: str) -> str:
        """Return the text of a message of any kind.

        A reminder, subagent or process that the message starts has its own name, with the prefix `t`, `c` or `p`.
        """
        kind = self.kind(name)
        match kind:
            case "undo":
                here = self.drafts(int(name.partition(".")[0]))
                write = f"echo {name} | tee {here}/a {here}/b > {here}/only-{name}"
                tool, arguments = "bash", {"command": f"mkdir -p {here} && rm -f {here}/only-* && {write}"}
            case "plain" | "retry" | "fork":
                return self.text(*(int(part) for part in name.split(".")))
            case "guarded":
                tool, arguments = "guarded", {"text": name}
            case "remind":
                tool, arguments = "remind", {"when": "in 1 seconds", "text": f"words=3 id=t{name}"}
            case "subagent" | "spawn":
                mark = json.dumps({"text": f"c{name}"})
                tool, arguments = kind, {"task": f"id=c{name} tools=1 tool=note words=3 args={mark}"}
            case "process":
                hook = {"on": "exit", "note": f"words=3 id=p{name}"}
                tool, arguments = "process_start", {"command": "sleep 0.2", "hooks": [hook]}
            case "remember":
                fact = int(name.partition(".")[2]) % FACTS
                tool, arguments = "remember", {"text": f"Fact {fact} is kept."}
            case "steer" | "stop" | "edit" | "delete" | "spend" | "file":
                tool, arguments = "note", {"text": name}
        rounds = SPENT_ROUNDS if kind == "spend" else 3 if tool == "note" else 1
        return f"id={name} tools={rounds} tool={tool} words=3 args={json.dumps(arguments)}"

    def text(self, person: int, number: int) -> str:
        """Return the text of a plain message: a directive for the scripted model."""
        name = f"{person}.{number}"
        drawn = random.Random(f"{self.seed}/{name}")
        rounds = drawn.choice((0, 1, 1, 2))
        if rounds and drawn.random() < 0.2:
            return f'tools=1 tool=bash args={{"command":"echo {name}"}} words=3 id={name}'
        return f'tools={rounds} tool=note args={{"text":"{name}"}} words=3 id={name}'


class Update(msgspec.Struct, frozen=True):
    """An action of a person: a message, possibly with a file, or an action on the message or button `target`.

    It happens in the person's own thread unless `thread` is set.
    """

    id: str
    person: str
    text: str
    do: Deed = "say"
    target: str = ""
    file: str = ""
    thread: str = ""
    agent: str = ""


class NewMessage(msgspec.Struct, frozen=True):
    key: str
    thread: str
    text: str
    reply_to: str = ""
    buttons: tuple[Button, ...] = ()


class Change(msgspec.Struct, frozen=True):
    """An edit of a bot's message. An empty text deletes the message."""

    id: str
    text: str = ""


class Ack(msgspec.Struct, frozen=True):
    """A bot's acknowledgement of an update, possibly of a redelivered one, with the response to a command."""

    id: str
    status: str
    answer: str = ""


class Return(msgspec.Struct):
    """The commands with which a person undoes, retries or forks after message `name`, which turn `turn` answered.

    - `before`, `after`: the person's files before and after that turn.
    - `steps`: the remaining commands.
    """

    name: str
    before: str
    turn: str = ""
    after: str = ""
    steps: list[str] = msgspec.field(default_factory=list[str])
    tries: int = 0
    looks: int = 0


class ChatServer:
    """The platform. Each of the first TROUBLES_MAX attempts of a post fails with the probability `trouble`."""

    def __init__(
        self,
        transcript: Path,
        people: People,
        trouble: float = 0.0,
        *,
        keyless: bool = False,
        agents: Path | None = None,
    ) -> None:
        self._people = people
        self._agents = agents or transcript.parent
        self._trouble = trouble
        self._keyless = keyless
        self._file = transcript.open("ab", buffering=0)
        self._open: dict[str, tuple[float, Update]] = {}
        self._said = dict.fromkeys(people.numbers(), 0)
        self._settled = dict.fromkeys(people.numbers(), 0)
        self._due = dict.fromkeys(people.numbers(), 0.0)
        self._silent: dict[int, set[int]] = {person: set() for person in people.numbers()}
        """Messages that may stay unanswered, so nobody waits for them."""
        self._returns: dict[int, Return] = {}
        """People who are going back, or are about to. They send nothing else until they are done."""
        self._copies: dict[str, str] = {}
        """Threads opened for copies, by the id of the command."""
        self._turns: dict[str, str] = {}
        """Turn of each bot message, taken from its key."""
        self._keys: dict[str, str] = {}
        self._standing: dict[str, str] = {}
        self._asked: set[str] = set()
        self._attempts: Counter[str] = Counter()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        for person in people.numbers():
            self._say(person)

    async def start(self, port: int = 0) -> str:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._respond, self._connections), "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.close()
            await self._server.wait_closed()
        self._file.close()

    def _respond(self, incoming: Incoming) -> Plan:
        match incoming.method, incoming.path:
            case "GET", "/updates":
                now = time.time()
                return _answer([update for due, update in self._open.values() if due <= now][:UPDATES_MAX])
            case "GET", "/state":
                return _answer(self._state())
            case "GET", path if path.startswith("/file/"):
                return _answer(f"file={path.removeprefix('/file/')}")
            case "POST", "/ack":
                return self._ack(msgspec.json.decode(incoming.body, type=Ack))
            case "POST", "/post":
                return self._post(msgspec.json.decode(incoming.body, type=NewMessage))
            case "POST", "/change":
                return self._change(msgspec.json.decode(incoming.body, type=Change))
            case _:
                return Plan([document(404, b"{}")])

    def _state(self) -> dict[str, int]:
        """Return the progress. The connection of this request is not counted."""
        turns = self._people.turns
        return {
            "answered": sum(turns if self._is_done(person) else self._settled[person] for person in self._said),
            "wanted": self._people.threads * turns,
            "connections": len(self._connections) - 1,
        }

    def _say(self, person: int) -> None:
        settled, ahead = self._settled[person], self._people.ahead
        window = ahead + ahead * sum(number >= settled - ahead for number in self._silent[person])
        while (number := self._said[person]) < min(self._people.turns, settled + window):
            name = f"{person}.{number}"
            if person in self._returns or (self._people.kind(name) in GOING_BACK and not self._is_free(person)):
                return
            self._said[person] += 1
            if self._people.kind(name) in GOING_BACK:
                self._returns[person] = Return(name, self._files(person))
            seconds = random.Random(f"{self._people.seed}/pause/{name}").uniform(0, 2 * self._people.pause_seconds)
            self._due[person] = max(self._due[person], time.time()) + seconds
            file = name if self._people.kind(name) == "file" else ""
            words = self._people.words(name)
            update = Update(name, f"person-{person}", words, file=file, agent=self._people.agent(person))
            self._open[name] = (self._due[person], update)

    def _is_done(self, person: int) -> bool:
        return self._said[person] == self._people.turns and self._is_free(person)

    def _is_free(self, person: int) -> bool:
        """Return True if the person's messages are answered and the person's actions are acknowledged."""
        is_answered = all(number in self._silent[person] for number in range(self._settled[person], self._said[person]))
        return is_answered and not any(update.person == f"person-{person}" for _, update in self._open.values())

    def _files(self, person: int) -> str:
        folder = self._agents / self._people.agent(person) / "workspace" / self._people.drafts(person)
        return json.dumps({path.name: path.read_text() for path in sorted(folder.glob("*"))})

    def _do(self, update: Update, seconds: float) -> None:
        self._open[update.id] = (time.time() + seconds, update)

    def _ack(self, ack: Ack) -> Plan:
        _, update = self._open.pop(ack.id, (0.0, None))
        if update is not None and update.do == "command":
            self._obeyed(update, ack)
        elif update is not None:
            self._note("ack", id=ack.id, status=ack.status, do=update.do, target=update.target, thread=update.thread)
            kind = self._people.kind(ack.id) if update.do == "say" else "plain"
            # this message may stay unanswered, so the person must not wait for it
            if kind == "spend" or update.do in ("stop", "delete"):
                person, number = (int(part) for part in ack.id.partition("/")[0].split("."))
                # a late stop may also end later turns
                until = self._said[person] if update.do == "stop" else number + 1
                self._silent[person].update(range(number, until))
                self._say(person)
            if kind in ("steer", "stop", "edit", "delete"):
                texts = {"steer": f"words=3 steer={ack.id}", "edit": f"words=3 id={ack.id} edit={ack.id}"}
                text = texts.get(kind, "")
                seconds = random.Random(f"{self._people.seed}/deed/{ack.id}").uniform(0.0, DEED_SECONDS_MAX)
                self._do(Update(f"{ack.id}/{kind}", update.person, text, kind, ack.id), seconds)
            if self._people.mixed:
                self._say(int(update.person.rpartition("-")[2]))
        return _answer({})

    # ---- undo, retry and fork ----

    def _begin_return(self, person: int, turn: str) -> None:
        """Plan the commands of a person whose message was just answered by the turn `turn`, and send the first one."""
        one = self._returns[person]
        kind, one.turn = self._people.kind(one.name), turn
        if kind == "undo":
            one.after = self._files(person)
            self._note("wrote", id=one.name, turn=turn, before=one.before, after=one.after)
            plan = random.Random(f"{self._people.seed}/plan/{one.name}").choice(PLANS)
            one.steps = list(plan) if one.before != one.after else []  # a kill may have prevented the writes
        else:
            one.steps = [kind]
        self._command(person)

    def _command(self, person: int, how: str = "", seconds: float = 0.0) -> None:
        """Send the next command. After the last one, the person writes messages again."""
        one = self._returns[person]
        if not one.steps:
            del self._returns[person]
            self._say(person)
            return
        step = one.steps[0]
        text = f"/{step}" if step in GOING_BACK else f"/undo {one.turn if step == 'turn' else step}{how}"
        one.tries += 1
        self._do(Update(f"{one.name}/{one.tries}", f"person-{person}", text, "command", one.name), seconds)

    def _obeyed(self, update: Update, ack: Ack) -> None:
        """Choose the next command from the response to the last one. The response is empty if it was lost with the
        process.
        """
        person, answer = int(update.person.rpartition("-")[2]), ack.answer
        one = self._returns[person]
        step, how, seconds = one.steps[0], "", 0.0
        files = self._files(person) if self._people.kind(one.name) == "undo" else ""
        about = {"id": ack.id, "status": ack.status, "do": "command", "target": one.name, "said": update.text}
        self._note("ack", **about, step=step, answer=answer, files=files)
        differing = _DIFFERING.search(answer)
        if _NOT_NOW.search(answer):
            seconds = AGAIN_SECONDS
        elif differing is not None:
            own = all(name.startswith(self._people.drafts(person)) for name in differing[1].split(", "))
            how = " overwrite" if own else " keep"
        elif step == "fork" and not answer and ack.id not in self._copies and one.looks < LOOKS_MAX:
            one.looks += 1
            self._do(update, AGAIN_SECONDS)
            return
        elif not answer and (step in ("last", "turn", "back") or (step == "fork" and ack.id not in self._copies)):
            one.looks = 0
            # the outcome is unknown: fork again, or undo this turn by its id
            one.steps[0] = "fork" if step == "fork" else "turn"
        else:
            one.steps = one.steps[1:] if _UNDONE.search(answer) else []  # a person whose command was rejected gives up
            if step == "fork" and not answer:
                words = f'tools=1 tool=note args={{"text":"f{one.name}"}} words=3 id=f{one.name}'
                message = Update(f"f{one.name}", update.person, words, "tell", one.name, thread=self._copies[ack.id])
                self._do(message, 0.0)
        self._command(person, how, seconds)

    # ---- the bot's messages ----

    def _post(self, message: NewMessage) -> Plan:
        fate = self._fate(message.key)
        if fate in ("429", "500"):
            self._note("refused", key=message.key)
            return Plan([document(int(fate), b"{}", (("retry-after", "0.2"),))])
        known = None if self._keyless else self._keys.get(message.key)
        if known is None:
            known = self._keys[message.key] = f"m{len(self._standing) + 1}"
            self._standing[known] = message.text
            self._note("post", id=known, key=message.key, thread=message.thread, text=message.text, to=message.reply_to)
            turn = _TURN.search(message.key)
            self._turns[known] = turn[0] if turn is not None else ""
            if message.thread.startswith(COPY):
                self._copies[message.thread.removeprefix(COPY).removesuffix(":0")] = message.thread
            self._see(known, message.thread, message.text, message.reply_to)
            self._decide(message)
        else:
            self._note("repeat", id=known, key=message.key)
        return self._told(fate, message.key, {"id": known})

    def _change(self, change: Change) -> Plan:
        fate = self._fate(f"change:{change.id}")
        if fate in ("429", "500"):
            return Plan([document(int(fate), b"{}", (("retry-after", "0.2"),))])
        if change.id not in self._standing:
            return Plan([document(404, b"{}")])
        if change.text:
            self._standing[change.id] = change.text
            self._note("edit", id=change.id, text=change.text)
            self._see(change.id, "", change.text, "")
        else:
            del self._standing[change.id]
            self._standing[f"gone {change.id}"] = ""
            self._note("delete", id=change.id)
        return self._told(fate, f"change:{change.id}", {})

    def _fate(self, key: str) -> str:
        """Return the result of an attempt to post: `429`, `500`, `lost`, or an empty string for success."""
        self._attempts[key] += 1
        attempt = self._attempts[key]
        drawn = random.Random(f"{self._people.seed}/{key.rpartition('/')[2]}/{attempt}")
        is_hit = attempt <= TROUBLES_MAX and drawn.random() < self._trouble
        return drawn.choice(("429", "500", "lost", "lost")) if is_hit else ""

    def _told(self, fate: str, key: str, content: object) -> Plan:
        if fate == "lost":
            self._note("lost", key=key)
            return Plan([Drop()])
        return _answer(content)

    def _see(self, id: str, thread: str, text: str, reply_to: str) -> None:
        """Settle all messages of a person up to the answered one. Stopped and deleted messages may have no reply."""
        is_given_up = text.removeprefix(REPEATED).startswith(ENDED_TWICE)
        names = answers_of(text) or ([reply_to] if is_given_up or not self._people.mixed else [])
        person, _, number = names[-1].partition(".") if names else ("", "", "")
        if not person.isdigit() or int(person) not in self._settled:
            return
        if self._settled[int(person)] <= int(number):
            self._settled[int(person)] = int(number) + 1
            going = self._returns.get(int(person))
            if going is not None and going.name == names[-1]:
                self._begin_return(int(person), self._turns[id])
            self._say(int(person))

    def _decide(self, message: NewMessage) -> None:
        """Let the person press the buttons of an approval. Each approval is decided once."""
        value = next((button.value for button in message.buttons if button.value.startswith("allow:")), "")
        approval = value.removeprefix("allow:")
        if not approval or approval in self._asked:
            return
        self._asked.add(approval)
        drawn = random.Random(f"{self._people.seed}/decide/{len(self._asked)}")
        seconds = drawn.choice((0.0, 0.0, 0.3, LATE_SECONDS))
        for number, verdict in enumerate(drawn.choice(DECISIONS)):
            target = f"{verdict}:{approval}"
            self._do(Update(f"{approval}/{number}", message.thread, message.text, "press", target), seconds)

    def _note(self, kind: str, **fields: str) -> None:
        self._file.write(json.dumps({"kind": kind, "at": time.time(), **fields}).encode() + b"\n")


def _answer(content: object) -> Plan:
    return Plan([document(200, msgspec.json.encode(content))])


async def serve(server: ChatServer, port: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    sys.stdout.write(f"{await server.start(port)}\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.chaos.chat_server", description=__doc__)
    parser.add_argument("--transcript", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trouble", type=float, default=0.0, help="share of posts that meet trouble, 0 to 1")
    parser.add_argument("--first", type=int, default=0, help="the number of the first person")
    parser.add_argument("--mixed", action="store_true", help="people do more than say something")
    parser.add_argument(
        "--lines", action="store_true", help="of that, what is done to lines that are answered together"
    )
    parser.add_argument("--pause-seconds", type=float, default=0.0, help="between two messages of a person")
    parser.add_argument("--keyless", action="store_true", help="keys are ignored")
    parser.add_argument("--agents", type=int, default=0, help="how many answer; 0 is the default one alone")
    parser.add_argument("--folder", type=Path, help="where the agents' folders are")
    options = parser.parse_args()
    people = People(
        options.threads,
        options.turns,
        options.ahead,
        options.seed,
        options.first,
        options.mixed,
        options.pause_seconds,
        options.lines,
        options.agents,
    )
    server = ChatServer(options.transcript, people, options.trouble, keyless=options.keyless, agents=options.folder)
    asyncio.run(serve(server, options.port))


if __name__ == "__main__":
    main()
