"""Rules for people who use everything that a chat allows. They read only the record of the run.

The platforms, the model and the tools write the record. Each rule is a pure function that yields one sentence per
violation. The checks of the final database (no work is left, the audit chains are intact) do not use the product's
code.
"""

import hashlib
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psycopg

from shoal.kernel.crash_log import ENDED_TWICE, STARTS_MAX
from shoal.kernel.posts import PREVIEW, REPEATED, WRITING
from tests.chaos.chat_server import People, answers_of
from tests.chaos.node import TURN_TOKENS

Fact: TypeAlias = Mapping[str, str]
Rows: TypeAlias = Sequence[tuple[object, ...]]

SLACK_SECONDS = 1.0
"""Time for which the effects of stopped work may still appear."""
STOP_SECONDS_MAX = 30.0
"""Time limit for a stop to end its turn, along with any steers."""
CALM_SECONDS_MAX = 20.0
"""Time limit for an answer that no harm affected."""
HEARD_SECONDS_MAX = 5.0
"""Time limit for a subagent to end after its answer."""
RETRIED = ("Trying again.", "This request was already completed.")
NO_TURNS: Mapping[str, Sequence[str]] = {}
_FACT = re.compile(r"Fact \d+ is kept")
_MARK = re.compile(r"leave the mark (\S+)")
_NOTICE = re.compile(
    "is available again|Your message is saved|⏹ Stopped|_↓ The answer is below|^(✅|⛔|⌛|⏹|⚠️)|^(```\n)?leave the mark "
    "|^I stopped: the budget|The budget is running low|^This thread continues a copy of our conversation"
    "|^I could not copy our conversation"
    "|^I am waiting for a decision on the request above|^I have already answered this"
)
_UNDONE = re.compile(r"^Restored \d+ file|^These changes have already been undone")
_LEFT = re.compile(r"- `(?P<path>[^`]+)` was not restored")
_NOT_UNDONE = re.compile(r"still running|Keep or overwrite|^Nothing to restore")
_NOT_FOUND = re.compile(
    r"changed (no )?files that can still be|could not read or store|(?:is|are) no longer stored|disk refused it"
)


class Platform(NamedTuple):
    """The transcript of a platform, ordered by time, and its people."""

    name: str
    facts: Sequence[Fact]
    people: People

    def of(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact["kind"] == kind]

    def names(self) -> list[str]:
        return [f"{person}.{number}" for person in self.people.numbers() for number in range(self.people.turns)]

    def acked(self, do: str) -> dict[str, Fact]:
        """Return the acknowledged actions of a type by their id."""
        return {fact["id"]: fact for fact in self.of("ack") if fact["do"] == do}

    def standing(self) -> dict[str, Fact]:
        """Return the bot's messages in their final state, by id, in the order of posting."""
        messages: dict[str, Fact] = {}
        for fact in self.facts:
            match fact["kind"]:
                case "post":
                    messages[fact["id"]] = fact
                case "edit":
                    messages[fact["id"]] = {**messages[fact["id"]], "text": fact["text"]}
                case "delete":
                    del messages[fact["id"]]
                case _:
                    pass
        return messages

    def retries(self, *answers: str) -> Counter[str]:
        """Return how many retry commands of each person got one of these responses.

        An empty response was lost with a process, which may have executed the command.
        """
        deeds = [fact for fact in self.acked("command").values() if fact["step"] == "retry"]
        return Counter(fact["target"].partition(".")[0] for fact in deeds if fact["answer"] in answers)


class Record(NamedTuple):
    """The record of a run by the platforms, the model and the tools.

    - `harms`: the start, the end and the kind of each harm.
    - `kills`: the number of harms other than clock changes.
    - `memories`: the contents of the memory files.
    - `turns`: the messages that each turn answered, by turn id.
    """

    platforms: Sequence[Platform]
    model: Sequence[Mapping[str, object]]
    tools: Sequence[Fact]
    harms: Sequence[tuple[float, float, str]] = ()
    kills: int = 0
    memories: Sequence[str] = ()
    turns: Mapping[str, Sequence[str]] = NO_TURNS


Rule: TypeAlias = Callable[[Record], Iterator[str]]


def everything_is_accepted(record: Record) -> Iterator[str]:
    for platform in record.platforms:
        for name in sorted(set(platform.names()) - set(platform.acked("say"))):
            yield f"message {name} was never accepted"


def each_message_is_answered_once(record: Record) -> Iterator[str]:
    """Every message is answered once.

    Marked repeats are allowed if a platform without keys lost a response, or if a process was killed.
    """
    for platform in record.platforms:
        copies: dict[str, list[Fact]] = defaultdict(list)
        for fact in platform.standing().values():
            for name in _answered(record, platform, fact):
                copies[name].append(fact)
        stopped, anew = _stopped(platform), platform.retries("", *RETRIED)
        lost = Counter(fact["key"].partition(":")[0] for fact in platform.of("lost"))
        notices = [fact for fact in platform.standing().values() if _was_given_up(record, platform, fact)]
        of_itself = Counter(  # notices about turns of reminders and processes, whose messages have no name
            fact["thread"] for fact in notices if not {*_answered(record, platform, fact)} & {*platform.acked("say")}
        )
        for name in [*platform.acked("say"), *platform.acked("tell"), *_others(record, platform)]:
            answers = copies.get(name, [])
            plain = [fact for fact in answers if not fact["text"].startswith(REPEATED)]
            person = name.lstrip("tpf").partition(".")[0]
            retried = anew[person]
            if not answers and name[0] in "tp" and of_itself[f"person-{person}"]:
                of_itself[f"person-{person}"] -= 1
            elif not answers and name not in stopped and platform.people.kind(name.lstrip("tpf")) != "spend":
                yield f"{name} was accepted and never answered"
            if len(plain) > 1 + retried:
                yield f"{name} was answered {len(plain)} times: {[fact['key'] for fact in plain]}"
            unknown = sum(lost[fact["key"].partition(":")[0]] for fact in answers[:1]) + record.kills + retried
            if len(answers) - 1 > unknown:
                yield f"{name} stands {len(answers)} times, although only {unknown} posts had an unknown outcome"


def _others(record: Record, platform: Platform) -> Iterator[str]:
    """Yield the reminders and ends of processes that must be reported once, because a call started them."""
    prefixes = {"remind": "t", "process": "p"}
    for name in platform.acked("say"):
        prefix = prefixes.get(platform.people.kind(name))
        if prefix and _began(record, name):
            yield f"{prefix}{name}"


def a_retry_answers_once_more(record: Record) -> Iterator[str]:
    """A retry gets a new reply, in a new turn, to the last answered message.

    If a kill lost the response to the command, Shoal may have executed the command.
    """
    for platform in record.platforms:
        turns: dict[str, set[str]] = defaultdict(set)
        for fact in platform.standing().values():
            for name in _answered(record, platform, fact):
                turns[name].add(fact["key"].removeprefix(PREVIEW).partition(":")[0])
        more = Counter[str]()
        for name, found in turns.items():
            more[name.lstrip("tpf").partition(".")[0]] += len(found) - 1
        deeds = [fact for fact in platform.acked("command").values() if fact["step"] == "retry"]
        for person, wanted in platform.retries("", *RETRIED).items():
            told = platform.retries(*RETRIED)[person]
            if not told <= more[person] <= wanted:
                yield f"person {person} had {told} to {wanted} messages answered anew, and got {more[person]} answers"
        for fact in deeds:
            if fact["answer"] not in ("", *RETRIED) and "still running" not in fact["answer"]:
                yield f"{fact['id']} was to be answered anew and was told {fact['answer']!r}"


def an_undo_restores_all_of_a_turn(record: Record) -> Iterator[str]:
    """An undo restores all files to the state before the turn. Undoing the undo restores the state after it.

    If a kill lost the response to the command, Shoal may have executed the command completely, or may complete it
    later.
    """
    for platform in record.platforms:
        wrote = {fact["id"]: fact for fact in platform.of("wrote")}
        said = platform.acked("say")
        stand: dict[str, set[str]] = {}
        for fact in platform.facts:
            if fact["kind"] == "wrote":
                person = fact["id"].partition(".")[0]
                if stand.setdefault(person, {fact["before"]}) and fact["before"] not in stand[person]:
                    yield f"before {fact['id']} the files were {fact['before']}, not {sorted(stand[person])}"
                stand[person] = {fact["after"]}
            if fact["kind"] != "ack" or fact["do"] != "command" or fact["target"] not in wrote:
                continue
            name, answer, files, at = fact["target"], fact["answer"], fact["files"], float(fact["at"])
            person, turn = name.partition(".")[0], wrote[name]
            aim = turn["after" if fact["step"] == "back" else "before"]
            what = f"{fact['id']} ({fact['said']}: {answer!r})"
            full = any(
                harm == "fill disk" and began < at and over > float(said[name]["at"])
                for began, over, harm in record.harms
            )
            if not answer:
                stand[person] |= {aim}
                continue
            if _UNDONE.search(answer):
                stand[person] = {aim}
            elif not _NOT_UNDONE.search(answer) and not (full and _NOT_FOUND.search(answer)):
                yield f"{what} was refused"
            left = {path.rpartition("/")[2] for path in _LEFT.findall(answer)}
            if full or left or (len(stand[person]) > 1 and files not in stand[person]):
                stand[person] = {files}  # some files were not stored, belong to another person, or are not restored yet
            elif files not in stand[person]:
                yield f"{what} left {files}, not {' or '.join(sorted(stand[person]))}"


def a_copy_knows_what_was_said_and_keeps_what_it_hears(record: Record) -> Iterator[str]:
    """A message in a fork is answered there, with knowledge of the earlier conversation, and appears in no other
    thread.

    A kill after the thread was opened and before the conversation was copied leaves a thread without that knowledge.
    """
    first: dict[str, Sequence[str]] = {}
    for line in record.model:
        name, named = str(line["id"]), line.get("named", ())
        assert isinstance(named, list | tuple)
        first.setdefault(name, named)
        own = name if name.startswith("f") else ""
        for other in named:
            if other.startswith("f") and other != own:
                yield f"{name} was told of {other}, which was said in a copy"
    for platform in record.platforms:
        copies = {fact["id"]: fact["thread"] for fact in platform.acked("tell").values()}
        posted = [(name, fact) for fact in platform.standing().values() for name in answers_of(fact["text"])]
        for name, fact in posted:
            if name in copies and fact["thread"] != copies[name]:
                yield f"{name} was answered in {fact['thread']}, not in {copies[name]}"
            if name not in copies and fact["thread"] in copies.values():
                yield f"{name} was answered in the copy {fact['thread']}"
        lacking: list[str] = []
        for name in copies:
            person, _, number = name.removeprefix("f").partition(".")
            known = {int(one.partition(".")[2]) for one in first.get(name, ()) if one.partition(".")[0] == person}
            if any(one > int(number) for one in known):
                yield f"the copy of {name} knows what was said later: {sorted(known)}"
            if int(number) not in known and name in first:
                lacking.append(name)
        if len(lacking) > record.kills:
            yield f"{len(lacking)} copies do not know what was said before, after {record.kills} kills: {lacking}"


def _began(record: Record, name: str) -> bool:
    """Return True if the model saw that the call of a message started a reminder or a process. A kill may have
    prevented that.
    """
    results = (str(line.get("result", "")) for line in record.model if line["id"] == name)
    return any(text.startswith(("Reminder ", "Started ")) for text in results)


def _was_given_up(record: Record, platform: Platform, notice: Fact) -> bool:
    """Return True if a message is a correct notice that its turn was given up.

    Enough kills must have happened between the acceptance of the turn's messages and the notice.
    """
    if not notice["text"].removeprefix(REPEATED).startswith(ENDED_TWICE):
        return False
    said, turn = {**platform.acked("say"), **platform.acked("tell")}, notice["key"].partition(":")[0]
    began = max((float(said[name]["at"]) for name in record.turns.get(turn, ()) if name in said), default=0.0)
    same = (fact for fact in platform.facts if (fact.get("id"), fact.get("text")) == (notice["id"], notice["text"]))
    ended = float(next(same)["at"])  # an edit may have turned the message into the notice
    kills = [what for at, over, what in record.harms if at < ended and over > began]
    return sum(what.startswith("kill ") for what in kills) >= STARTS_MAX


def _answered(record: Record, platform: Platform, fact: Fact) -> Sequence[str]:
    """Return the messages that a message of the bot answers. A notice answers the messages of the turn that was
    given up.
    """
    if _was_given_up(record, platform, fact):
        return record.turns.get(fact["key"].partition(":")[0], ())
    return answers_of(fact["text"])


def _given_up(record: Record, platform: Platform) -> set[str]:
    notices = [fact for fact in platform.standing().values() if _was_given_up(record, platform, fact)]
    return {name for fact in notices for name in _answered(record, platform, fact)}


def _stopped(platform: Platform) -> set[str]:
    """Return the messages that need no reply: deleted messages, and messages that a stop may have ended with their
    reminders and processes.
    """
    unanswered = {fact["target"] for fact in platform.acked("delete").values()}
    for fact in platform.acked("stop").values():
        person = fact["target"].partition(".")[0]
        before = [said for said in platform.acked("say").values() if float(said["at"]) <= float(fact["at"])]
        names = [said["id"] for said in before if said["id"].partition(".")[0] == person]
        unanswered.update(names, (f"{prefix}{name}" for name in names for prefix in "tp"))
    return unanswered


def each_turn_answers_what_it_took(record: Record) -> Iterator[str]:
    """Each message belongs to one turn. The reply names all messages of the turn in order, except deleted ones."""
    for platform in record.platforms:
        said, deleted = platform.acked("say"), {fact["target"] for fact in platform.acked("delete").values()}
        taken = Counter(name for names in record.turns.values() for name in names if name in said)
        anew = platform.retries("", *RETRIED)
        yield from (
            f"{name} is in {count} turns" for name, count in taken.items() if count > 1 + anew[name.partition(".")[0]]
        )
        for fact in platform.standing().values():
            names, turn = answers_of(fact["text"]), fact["key"].partition(":")[0]
            wanted = [name for name in record.turns.get(turn, names) if name in names or name not in deleted]
            if said.keys() & names and names != wanted:
                yield f"the turn {turn} took {record.turns[turn]} and answered {names}"


def few_are_stopped(record: Record) -> Iterator[str]:
    """A stop ends one turn. It may end two if a process was killed before it acknowledged the stop."""
    for platform in record.platforms:
        answered = {name for fact in platform.standing().values() for name in _answered(record, platform, fact)}
        stops = Counter(fact["target"].partition(".")[0] for fact in platform.acked("stop").values())
        deleted = {fact["target"] for fact in platform.acked("delete").values()}
        spent = {name for name in platform.names() if platform.people.kind(name) == "spend"}
        silent = Counter(name.partition(".")[0] for name in {*platform.acked("say")} - answered - deleted - spent)
        for person, count in silent.items():
            if count > stops[person] * (2 if record.kills else 1):
                yield f"{count} messages of person {person} were not answered, after {stops[person]} stops"


def answers_stand_in_order(record: Record) -> Iterator[str]:
    """The replies in a thread have the order in which the messages were accepted.

    On a platform without keys, a frozen process may send its post after another process has posted the marked repeat
    and later replies.
    """
    for platform in record.platforms:
        accepted = {name: place for place, name in enumerate(platform.acked("say"))}
        threads: dict[str, list[list[str]]] = defaultdict(list)
        repeats: dict[str, list[list[str]]] = defaultdict(list)
        for fact in platform.standing().values():
            names = [name for name in answers_of(fact["text"]) if name in accepted]
            is_repeat = fact["text"].startswith(REPEATED)
            if names and (is_repeat or names not in repeats[fact["thread"]] or not record.kills):
                threads[fact["thread"]].append(names)
            repeats[fact["thread"]] += [names] * is_repeat
        for thread, answers in threads.items():
            places = [[accepted[name] for name in names] for names in answers]
            if places != sorted(sorted(answer) for answer in places):
                yield f"out of order in {platform.name} {thread}: {answers}"


def only_what_is_known_stands(record: Record) -> Iterator[str]:
    """Each remaining message is a reply, an approval request or a notice. A preview may remain if its id was lost."""
    for platform in record.platforms:
        lost = {fact["key"] for fact in platform.of("lost")}
        previews = [fact for fact in platform.standing().values() if fact["text"].endswith(WRITING)]
        unexplained = [fact for fact in previews if fact["key"] not in lost]
        if len(unexplained) > record.kills:
            yield f"{len(unexplained)} previews stand unfinished in {platform.name}, after {record.kills} kills"
        known = set(platform.names())
        for fact in platform.standing().values():
            text = fact["text"]
            own = {re.sub(r"^[tpf]", "", name) for name in answers_of(text)}
            if (
                not (own and own <= known)
                and not text.endswith(WRITING)
                and not _was_given_up(record, platform, fact)
                and not _NOTICE.search(text.removeprefix(REPEATED))
            ):
                yield f"nobody asked for this message in {platform.name}: {text[:200]!r} ({fact['key']})"


def each_key_is_posted_once(record: Record) -> Iterator[str]:
    """On a platform with keys, a key is used for only one message. On other platforms, unmarked text is posted
    only once.
    """
    for platform in record.platforms:
        for key, count in Counter(fact["key"] for fact in platform.of("post")).items():
            texts = [fact["text"] for fact in platform.of("post") if fact["key"] == key]
            unmarked = [text for text in texts if not text.startswith(REPEATED) and not text.endswith(WRITING)]
            if len(unmarked) > 1:
                yield f"{key} was posted {count} times, {len(unmarked)} of them unmarked"


def each_call_runs_once(record: Record) -> Iterator[str]:
    for call, count in Counter(line["call"] for line in record.tools).items():
        if count > 1:
            yield f"tool call {call} ran {count} times"


def only_what_was_allowed_ran(record: Record) -> Iterator[str]:
    """A guarded call runs only after a person allowed it, and never after a denial. An approval is decided once."""
    ran = {line["text"] for line in record.tools if line["tool"] == "guarded"}
    for platform in record.platforms:
        told: dict[str, list[str]] = defaultdict(list)
        pressed: dict[str, list[str]] = defaultdict(list)
        for fact in platform.acked("press").values():
            verdict, _, approval = fact["target"].partition(":")
            told[approval].append(fact["status"])
            pressed[approval].append(verdict)
        texts = {fact["key"]: fact["text"] for fact in platform.of("post")}
        marks = {approval: _MARK.search(texts.get(f"approval:{approval}:0", "")) for approval in told}
        names = {approval: mark.group(1) if mark else "" for approval, mark in marks.items()}
        for approval, statuses in told.items():
            counted = [status for status in statuses if status in ("Allowed.", "Denied.")]
            if len(counted) > 1:
                yield f"the question of {names[approval]} was decided {len(counted)} times: {statuses}"
        for name in platform.names():
            asked = [approval for approval in told if names[approval] == name]
            if name in ran and not any("allow" in pressed[approval] for approval in asked):
                yield f"{name} ran, and nobody allowed it"
            if name in ran and asked and all("Denied." in told[approval] for approval in asked):
                yield f"{name} ran although it was denied"


def nothing_runs_after_a_stop(record: Record) -> Iterator[str]:
    for platform in record.platforms:
        answered = {name for fact in platform.facts for name in answers_of(fact.get("text", ""))}
        for stop in platform.acked("stop").values():
            name, at = stop["target"], float(stop["at"])
            asked = [
                line for line in record.model if line["id"] == name and float(str(line["at"])) < at - SLACK_SECONDS
            ]
            if stop["status"] != "delivered" or name in answered or not asked:
                continue  # the stop may have ended another turn
            for line in record.tools:
                if line["text"] == name and float(line["at"]) > at + SLACK_SECONDS:
                    yield f"{name} was stopped at {at:.3f} and ran {line['tool']} at {line['at']}"


def each_steer_is_heard_once(record: Record) -> Iterator[str]:
    heard = _heard(record, "steers")
    for platform in record.platforms:
        stops = [(_person(stop), float(stop["at"])) for stop in platform.acked("stop").values()]
        given_up = _given_up(record, platform)
        for fact in platform.acked("steer").values():
            count, at = heard[fact["target"]], float(fact["at"])
            near = any(who == _person(fact) and abs(stop - at) < STOP_SECONDS_MAX for who, stop in stops)
            if fact["status"] == "delivered" and not count and not near and fact["target"] not in given_up:
                yield f"the steer of {fact['target']} was delivered and never heard"
            if count > 1:
                yield f"the steer of {fact['target']} was heard {count} times"


def each_end_of_a_subagent_is_heard_once(record: Record) -> Iterator[str]:
    """The model reads the result of each subagent once, in its next call."""
    heard = _heard(record, "ends")
    ended: dict[str, float] = {}
    last: dict[str, float] = {}
    for line in record.model:
        name, at = str(line["id"]), float(str(line["at"]))
        if name.startswith("c"):
            ended[name] = at
        else:
            person = name.lstrip("tp").partition(".")[0]
            last[person] = max(last.get(person, 0.0), at)
    for platform in record.platforms:
        for name in platform.acked("say"):
            child, person = f"c{name}", name.partition(".")[0]
            if heard[child] > 1:
                yield f"the end of {child} was heard {heard[child]} times"
            is_due = child in ended and last.get(person, 0.0) > ended[child] + HEARD_SECONDS_MAX
            if is_due and platform.people.kind(name) == "spawn" and not heard[child] and not record.kills:
                yield f"the end of {child} was never heard"


def _person(fact: Fact) -> str:
    return fact["target"].partition(".")[0]


def each_file_arrives_once(record: Record) -> Iterator[str]:
    """Each file is named once with its message. Its content is read once, unless the disk was full."""
    named, read = _heard(record, "attached"), _heard(record, "files")
    asked: dict[str, float] = {}
    for line in record.model:
        asked.setdefault(str(line["id"]), float(str(line["at"])))
    first = {name: names[0] for names in record.turns.values() for name in names}
    asked |= {name: asked[begins] for name, begins in first.items() if begins in asked}
    for platform in record.platforms:
        for name, fact in platform.acked("say").items():
            if platform.people.kind(name) != "file" or name not in asked:
                continue
            since = float(fact["at"])
            full = any(
                what == "fill disk" and began < asked[name] and over > since for began, over, what in record.harms
            )
            if named[name] != 1 or read[name] > 1:
                yield f"the file of {name} came {named[name]} times, {read[name]} of them with its content"
            elif not read[name] and not full:
                yield f"the file of {name} came without its content"


def _heard(record: Record, field: str) -> Counter[str]:
    """Return, for each mark, the highest number of times that one request contains it."""
    heard: Counter[str] = Counter()
    for line in record.model:
        marks = line.get(field, ())
        assert isinstance(marks, list | tuple)
        for name, count in Counter(str(mark) for mark in marks).items():
            heard[name] = max(heard[name], count)
    return heard


def the_budget_of_a_turn_holds(record: Record) -> Iterator[str]:
    """The calls of a turn stay within its budget, except for the last call. A turn that reaches the budget reports
    it once.
    """
    spent: dict[str, dict[str, int]] = defaultdict(dict)
    for line in record.model:
        if line.get("how") == "answered":
            spent[str(line["id"])][str(line["round"])] = int(str(line["tokens"]))
    for name, rounds in spent.items():
        *before, _ = rounds.values()
        if sum(before) > TURN_TOKENS:
            yield f"{name} took {sum(rounds.values())} tokens in {len(rounds)} calls, more than {TURN_TOKENS}"
    for platform in record.platforms:
        stopped = _stopped(platform) | _given_up(record, platform)
        notices = Counter(fact.get("to", "") for fact in platform.standing().values() if "the budget" in fact["text"])
        for name in platform.acked("say"):
            if platform.people.kind(name) != "spend" or name in stopped:
                continue
            if not notices[name]:
                yield f"{name} met its budget, and nobody was told"
            if notices[name] > 1 + record.kills:
                yield f"{name} was told of its budget {notices[name]} times"


def each_memory_is_kept_once(record: Record) -> Iterator[str]:
    """A fact is stored once in the memory of a channel, however often people ask to remember it."""
    for text in record.memories:
        for line, count in Counter(_FACT.findall(text)).items():
            if count > 1:
                yield f"{line!r} stands {count} times in a memory"


def nobody_waits_long_without_cause(record: Record) -> Iterator[str]:
    """If no harm happens in the meantime, a reply arrives within CALM_SECONDS_MAX."""
    for seconds, cause, name in waits(record):
        if cause == "calm" and seconds > CALM_SECONDS_MAX:
            yield f"{name} waited {seconds:.1f} s for no known cause"


RULES: tuple[Rule, ...] = (
    everything_is_accepted, each_message_is_answered_once, each_turn_answers_what_it_took, few_are_stopped,
    answers_stand_in_order, only_what_is_known_stands, each_key_is_posted_once, each_call_runs_once,
    only_what_was_allowed_ran, nothing_runs_after_a_stop, each_steer_is_heard_once,
    each_end_of_a_subagent_is_heard_once,
    a_retry_answers_once_more, an_undo_restores_all_of_a_turn, a_copy_knows_what_was_said_and_keeps_what_it_hears,
    each_file_arrives_once, the_budget_of_a_turn_holds, each_memory_is_kept_once, nobody_waits_long_without_cause,
)  # fmt: skip


def broken(record: Record) -> list[str]:
    """Return one sentence per violation."""
    return [sentence for rule in RULES for sentence in rule(record)]


def waits(record: Record) -> list[tuple[float, str, str]]:
    """Return the wait of each message for its reply in seconds, with the cause and the name of the message, sorted.

    The cause is the first harm that overlaps the wait. Without harm, it is a pending approval, or otherwise "calm".
    A calm wait starts when the previous message of the thread was answered.
    """
    durations: list[tuple[float, str, str]] = []
    for platform in record.platforms:
        accepted = {name: float(fact["at"]) for name, fact in platform.acked("say").items()}
        seen: dict[str, tuple[float, float]] = {}
        free: dict[str, float] = {}
        for fact in platform.facts:
            text, at = fact.get("text", ""), float(fact["at"])
            names = answers_of(text)
            last = names[-1] if names else "" if text.endswith(WRITING) else fact.get("to", "")
            person = last.lstrip("tp").partition(".")[0]
            for name in names:
                if name in accepted and name not in seen:
                    seen[name] = at, free.get(person, 0.0)
            free[person] = at
        for name, (at, before) in seen.items():
            met = (what for began, over, what in record.harms if began < at and over > accepted[name])
            cause = next(met, "a question" if platform.people.kind(name) == "guarded" else "calm")
            since = max(accepted[name], before) if cause == "calm" else accepted[name]
            durations.append((at - since, cause, name))
    return sorted(durations)


# ---- checks of the final database ----

LEFT_OVER = {
    "threads with an open turn": "select thread, open_turn from threads where open_turn <> ''",
    "messages no turn took": "select platform, key, state from inbox where state = 'pending'",
    "posts not sent": """
        select id, state, attempts, error from outbox where state <> 'sent'
        and not (id like 'fork:%' and state = 'failed' and error like 'Somebody spoke in this thread %')
    """,  # allowed: a kill delayed a copy until its person had written; `Record.kills` limits the number
    "undos under way": "select id, thread from checkpoints where undoes <> '' and ended_at is null",
    "questions left open": "select id, thread from approvals where state = 'pending'",
    "events with gaps": "select thread, count(*), max(seq) from events group by thread having count(*) <> max(seq)",
    "occurrences told twice": """
        select thread, json, count(*) from (
            select thread, data as json from events where type = 'user_message' and data like '%"origin":"trigger"%'
            and thread not in (select thread from events where type = 'branched')
        ) as told group by thread, json having count(*) > 1""",
}
_SAID = """
    select turn, data from events where type = 'user_message' and not exists (
        select 1 from events as copied where copied.type = 'forked' and copied.thread = events.thread
        and copied.seq > events.seq
    ) order by thread, seq"""
_AUDIT = "select chain, number, at, entry, previous, hash from audit order by chain, number"
_CHAINS = "select chain, number, head from chains"


def select(database: str | Path, query: str) -> Rows:
    """Query a PostgreSQL database by its URL or an SQLite database by its file."""
    if isinstance(database, Path):
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    with psycopg.connect(database) as server:
        server.execute("set search_path to shoal")
        return server.execute(query.encode()).fetchall()


def turns(database: str | Path) -> dict[str, list[str]]:
    """Return the messages that each turn answered, in order."""
    names_by_turn: dict[str, list[str]] = defaultdict(list)
    for turn, data in select(database, _SAID):
        said = json.loads(str(data))
        names_by_turn[str(turn)] += [*said.get("joined", ()), said.get("message_id", "")]
    return names_by_turn


def left_over(database: str | Path) -> list[str]:
    """Return a description of each row that must not remain at the end."""
    rows = [f"{what}: {row}" for what, query in LEFT_OVER.items() for row in select(database, query)]
    return [*rows, *broken_chains(select(database, _AUDIT), select(database, _CHAINS))]


def broken_chains(rows: Rows, chains: Rows) -> Iterator[str]:
    """Yield one sentence per audit chain entry with a wrong hash or number, and per chain with a wrong head."""
    heads: dict[object, tuple[object, object]] = {}
    for chain, number, at, entry, previous, digest in rows:
        last, head = heads.get(chain, (0, "0" * 64))
        content = json.dumps(json.loads(str(entry)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        wanted = hashlib.sha256(f"{head}\n{chain}\n{number}\n{at}\n{content}".encode()).hexdigest()
        if previous != head or number != int(str(last)) + 1 or digest != wanted:
            yield f"the audit chain {chain} breaks at {number}"
        heads[chain] = (number, digest)
    for chain, number, head in chains:
        if heads.get(chain, (0, "")) != (number, head):
            yield f"the audit chain {chain} does not end where it should"


def facts(path: Path) -> list[dict[str, str]]:
    """Return the complete lines of a log. A process may still be writing the last line."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else ()
    return [json.loads(line) for line in lines]
