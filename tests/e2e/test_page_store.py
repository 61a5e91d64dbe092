"""The page's pure modules, run in the browser: folding events, parsing the event stream, and the send queue."""

import asyncio
import random
from datetime import UTC, datetime

import msgspec
import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.page_api import PageApi
from tests.e2e.page_kit import THREAD, opened
from tests.e2e.test_page_layout import tell_everything

from shoal.kernel.events import (
    ASK_INSTEAD,
    ASK_OR_LOOK,
    AssistantSaid,
    Branched,
    Event,
    TextStreamed,
    ToolFinished,
    TurnFinished,
    TurnStarted,
    UserSaid,
    current,
    encode_event,
)
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author

NOW = datetime(2026, 1, 5, tzinfo=UTC)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("page")]


def journal(api: PageApi) -> list[object]:
    return [msgspec.json.decode(encode_event(event)) for event in api.journals[THREAD]]


async def evaluate(page: Page, module: str, code: str, argument: object = None) -> object:
    """Call `code`, a JavaScript function of (module, argument), in the page. Maps are returned as lists of pairs."""
    script = f"""async (argument) => {{
      const module = await import("/console/{module}.js");
      const plain = (key, value) => (value instanceof Map ? [...value] : value instanceof Set ? [...value] : value);
      return JSON.stringify(await ({code})(module, argument), plain) ?? "null";
    }}"""
    return msgspec.json.decode(await page.evaluate(script, argument))


async def test_folding_one_by_one_equals_folding_all(browser: Browser, api: PageApi) -> None:
    tell_everything(api)
    async with opened(browser, api.address, place="audit") as page:
        same = await evaluate(
            page, "store",
            """({ emptyThread, fold, foldEarlier }, events) => {
              const plain = ({ items, turns, calls, openTurn, lastSeq }) =>
                JSON.stringify([items, [...turns], [...calls], openTurn, lastSeq]);
              const all = plain(fold(emptyThread("t"), events));
              const steps = events.reduce((state, event) => fold(state, [event]), emptyThread("t"));
              const twice = fold(fold(emptyThread("t"), events), events);
              const late = foldEarlier(fold(emptyThread("t"), events.slice(5)), events.slice(0, 8));
              return [plain(steps) === all, plain(twice) === all, plain(late) === all];
            }""",
            journal(api),
        )  # fmt: skip
        assert same == [True, True, True]


async def test_states_are_immutable(browser: Browser, api: PageApi) -> None:
    tell_everything(api)
    async with opened(browser, api.address, place="audit") as page:
        unchanged = await evaluate(
            page, "store",
            """({ emptyThread, fold }, events) => {
              const freeze = (value) => {
                if (value && typeof value === "object" && !Object.isFrozen(value)) {
                  Object.freeze(value);
                  for (const part of value instanceof Map ? value.values() : Object.values(value)) freeze(part);
                }
                return value;
              };
              const before = [];
              let state = emptyThread("t");
              for (const event of events) {
                before.push([state, JSON.stringify(state.items), state.calls.size, state.turns.size]);
                state = fold(freeze(state), [freeze(event)]);
              }
              return before.every(([old, items, calls, turns]) =>
                JSON.stringify(old.items) === items && old.calls.size === calls && old.turns.size === turns);
            }""",
            journal(api),
        )  # fmt: skip
        assert unchanged is True


async def test_a_thread_read_from_the_middle_is_shown(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, ToolFinished(CallId("lost"), "bash", "the result of a call before"))
    api.append(THREAD, AssistantSaid("So it is."))
    api.append(THREAD, TurnFinished("done", "So it is.", 1))
    async with opened(browser, api.address, place="audit") as page:
        kinds = await evaluate(
            page, "store",
            """({ emptyThread, fold }, events) =>
              fold(emptyThread("t"), events).items.map((item) => [item.kind, item.state])""",
            journal(api),
        )  # fmt: skip
        assert kinds == [["tool", "done"], ["assistant", None], ["end", None]]


@pytest.mark.parametrize(
    ("outcome", "texts", "reply", "shown"),
    [
        ("done", ["Hello"], "Hello", ["Hello"]),
        ("done", ["Hel", "lo"], "Hello", ["Hel", "lo"]),
        ("done", [], "I have nothing to add.", ["I have nothing to add."]),
        ("done", ["First"], "Something else", ["First", "Something else"]),
        ("failed", ["First"], "The model is down.", ["First"]),
    ],
)
async def test_a_reply_is_shown_once(
    browser: Browser, api: PageApi, outcome: str, texts: list[str], reply: str, shown: list[str]
) -> None:
    api.append(THREAD, UserSaid("x", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    for text in texts:
        api.append(THREAD, AssistantSaid(text))
    api.append(THREAD, TurnFinished("failed" if outcome == "failed" else "done", reply, 1))
    async with opened(browser, api.address, place="audit") as page:
        rows = await evaluate(
            page, "store",
            """({ emptyThread, fold }, events) => {
              const { items } = fold(emptyThread("t"), events);
              return items.filter((item) => item.kind === "assistant").map((item) => item.text);
            }""",
            journal(api),
        )  # fmt: skip
        assert rows == shown


@pytest.mark.parametrize(("offset", "is_partial"), [(0, False), (12, True)])
async def test_an_answer_whose_beginning_was_missed_says_so(
    browser: Browser, api: PageApi, offset: int, *, is_partial: bool
) -> None:
    tell_everything(api)
    piece = {"type": "text_delta", "turn": "t1", "data": {"text": "Ahoy", "step": 0, "offset": offset}}
    async with opened(browser, api.address, place="audit") as page:
        rows = await evaluate(
            page, "store",
            """({ emptyThread, fold, foldLive, reconnected }, [events, piece]) =>
              foldLive(reconnected(fold(emptyThread("t"), events)), piece).live.partial""",
            [journal(api), piece],
        )  # fmt: skip
    assert rows is is_partial


async def test_a_stream_is_parsed_for_any_split(browser: Browser, api: PageApi) -> None:
    stream = (
        ': hello\r\nretry: 5\n\nid: 7\ndata: {"a":\ndata: 1}\n\ndata:x\r\n\r\nevent: lost\ndata: {}\n\ndata: unfinished'
    )
    async with opened(browser, api.address, place="audit") as page:
        results = await evaluate(
            page, "sse",
            """({ eventParser }, stream) => Array.from({ length: stream.length }, (_, size) => {
              const taken = [];
              const push = eventParser((message) => taken.push(message));
              for (let at = 0; at < stream.length; at += size + 1) push(stream.slice(at, at + size + 1));
              return taken;
            })""",
            stream,
        )  # fmt: skip
        messages = [
            {"id": "7", "event": "", "data": '{"a":\n1}'},
            {"id": "", "event": "", "data": "x"},
            {"id": "", "event": "lost", "data": "{}"},
        ]
        assert results == [messages] * len(stream)


async def test_the_pieces_of_a_growing_text_add_up_to_it(browser: Browser, api: PageApi) -> None:
    text = "# a\n\nb\n\n- c\n\n- d\n\n    e\n\nf\n\n```py\ng\n\nh\n~~~\n\n```\n\ni\n\n1. j\n\n2. k\n\nl"
    async with opened(browser, api.address, place="audit") as page:
        pieces = await evaluate(
            page, "pieces",
            """({ pieces }, text) => Array.from({ length: text.length }, (_, end) => pieces(text.slice(0, end + 1)))""",
            text,
        )  # fmt: skip
        assert isinstance(pieces, list)
        for end, parts in enumerate(pieces):
            assert "".join(parts) == text[: end + 1]
        assert pieces[-1] == [
            "# a\n\n",
            "b\n\n- c\n\n- d\n\n    e\n\n",
            "f\n\n",
            "```py\ng\n\nh\n~~~\n\n```\n\n",
            "i\n\n1. j\n\n2. k\n\n",
            "l",
        ]
        settled: list[str] = []
        for parts in pieces:  # a piece is final once another one follows
            assert parts[: len(settled)] == settled
            settled = parts[:-1]


async def test_a_threads_messages_are_sent_in_order(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="audit") as page:
        order = await evaluate(
            page, "outgoing",
            """({ afterFailure, change, newMessage, nextToSend }) => {
              const make = (text) => ({ ...newMessage("t", text, "message", []), id: text });
              const all = [make("a"), make("b")];
              const sending = change(all, "a", { state: "sending" });
              const refused = change(all, "a", afterFailure({ status: 400, message: "no" }));
              const failed = change(all, "a", afterFailure({ status: 503, message: "later" }));
              return [all, sending, refused, failed].map((messages) => nextToSend(messages, "t")?.id || null);
            }""",
        )  # fmt: skip
        assert order == ["a", None, "b", "a"]


async def test_times_and_numbers_are_readable(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="audit") as page:
        texts = await evaluate(
            page, "format",
            """({ age, ago, count, dollars, duration, summary }) => [
              [0, 42, 1400, 59_600, 61_000, 3_600_000].map(duration),
              [0, 999, 1000, 12_345, 999_999].map(count),
              [null, 0, 0.001, 1.5].map(dollars),
              [0, 59, 61, 7200, 200_000].map((seconds) => age(new Date(1e12).toISOString(), 1e12 + seconds * 1000)),
              ago(new Date(1e12 + 3_600_000).toISOString(), 1e12),
              ['{"command": "ls"}', '{"a": 1, "b": "x"}', "not json", "[1, 2]", ""].map(summary),
            ]""",
        )  # fmt: skip
        assert texts == [
            ["0 ms", "42 ms", "1.4 s", "1 min", "1 min 1 s", "1 h 0 min"],
            ["0", "999", "1.0k", "12k", "1.0M"],
            ["–", "$0.00", "$0.0010", "$1.50"],
            ["now", "now", "1m", "2h", "2d"],
            "in 1h",
            ["ls", "a: 1, b: x", "not json", "0: 1, 1: 2", ""],
        ]


async def test_views_are_notified_at_most_once_per_frame(browser: Browser, api: PageApi) -> None:
    async with opened(browser, api.address, place="audit") as page:
        notified = await evaluate(
            page, "session",
            """async ({ Session }) => {
              const session = new Session();
              let told = 0;
              let frames = 0;
              let last = "";
              session.subscribe(({ said }) => ((told += 1), (last = said)));
              const count = () => ((frames += 1), requestAnimationFrame(count));
              requestAnimationFrame(count);
              const task = () => new Promise((done) => {
                const channel = new MessageChannel();
                channel.port1.onmessage = done;
                channel.port2.postMessage(0);
              });
              for (let piece = 0; piece < 3000; piece += 1) {
                session.set({ said: String(piece) });
                await task();
              }
              while (last !== "2999") await task();
              return [told <= frames + 2, told < 1500];
            }""",
        )  # fmt: skip
        assert notified == [True, True]


async def test_a_growing_answer_does_not_redraw_earlier_rows(browser: Browser, api: PageApi) -> None:
    api.append(THREAD, UserSaid("Tell me", Author("owner", trusted=True)))
    api.append(THREAD, AssistantSaid("An earlier **answer**."))
    api.append(THREAD, TurnStarted("main", "demo"))
    async with opened(browser, api.address) as page:
        await page.wait_for_selector(".row.assistant .prose strong")
        await page.evaluate(
            """() => {
              window.touched = 0;
              const everything = { childList: true, subtree: true, characterData: true, attributes: true };
              const watcher = new MutationObserver(() => (window.touched += 1));
              const rows = document.querySelectorAll(".row.user, .row.assistant");
              for (const row of rows) watcher.observe(row, everything);
            }"""
        )
        await api.watched(THREAD)
        for number in range(500):
            api.live(THREAD, TextStreamed(f"w{number} " + ("\n\n" if number % 50 == 49 else "")))
            await asyncio.sleep(0)  # sends each piece separately
        await expect(page.locator(".live")).to_contain_text("w499")
        assert await page.evaluate("window.touched") == 0


def branching_journal(seed: int) -> list[Event]:
    """Return turns of three events each. Before every second turn, a branch starts at the beginning or at the end
    of a random earlier turn.
    """
    dice, events, rests, thread = random.Random(seed), list[Event](), [0], ThreadId(THREAD)
    ada = Author("ada", trusted=True)
    for number in range(12):
        if number % 2:
            events.append(Event(len(events) + 1, thread, TurnId(""), NOW, Branched(dice.choice(rests))))
        for data in (TurnStarted("main", "m"), UserSaid(f"w{number}", ada), TurnFinished("done")):
            events.append(Event(len(events) + 1, thread, TurnId(f"T{number}"), NOW, data))
        rests.append(len(events))
    return events


@pytest.mark.parametrize("seed", range(5))
async def test_a_branch_is_shown_as_the_model_sees_it(browser: Browser, api: PageApi, seed: int) -> None:
    events = branching_journal(seed)
    async with opened(browser, api.address, place="audit") as page:
        records = [msgspec.json.decode(encode_event(event)) for event in events]
        path, alike, siblings = msgspec.convert(
            await evaluate(
                page,
                "store",
                """async ({ emptyThread, fold }, events) => {
                  const { pathOf } = await import("/console/branches.js");
                  const all = fold(emptyThread("t"), events);
                  const steps = events.reduce((state, event) => fold(state, [event]), emptyThread("t"));
                  const plain = ({ items, siblings, lastSeq }) => JSON.stringify([items, [...siblings], lastSeq]);
                  return [pathOf(events).map((event) => event.seq), plain(all) === plain(steps), [...all.siblings]];
                }""",
                records,
            ),
            tuple[list[int], bool, list[tuple[str, dict[str, object]]]],
        )
        assert path == [event.seq for event in current(events)]
        assert alike
        for turn, beside in siblings:  # selecting a turn's branch shows that turn
            tips = msgspec.convert(beside["tips"], list[int])
            at = msgspec.convert(beside["at"], int)
            there = [*events[: tips[at]], Event(tips[at] + 1, ThreadId(THREAD), TurnId(""), NOW, Branched(tips[at]))]
            assert turn in {event.turn for event in current(there)}


async def test_a_markdown_line_is_summarized_without_markup(browser: Browser, api: PageApi) -> None:
    cases = {
        "The **tide** is `low` at _noon_, see [it](https://example.org/a).": "The tide is low at noon, see it.",
        "# Boats\n- [x] *Knot*\n- Dunlin | 1.1 m": "Boats Knot Dunlin 1.1 m",
        "snake_case_name and 3 * 4 stay": "snake_case_name and 3 * 4 stay",
        "Low at noon.[^1]\n\n[^1]: By the chart.": "Low at noon. By the chart.",
        "![plot](scratch/plot.png) shows it": "plot shows it",
    }
    async with opened(browser, api.address) as page:
        assert await evaluate(page, "format", "(format, texts) => texts.map(format.plain)", [*cases]) == [
            *cases.values()
        ]


async def test_an_hour_is_not_shown_as_sixty_minutes(browser: Browser, api: PageApi) -> None:
    seconds = [20, 60, 1800, 3569, 3590, 80_000]
    code = "(format, seconds) => seconds.map((one) => format.ago(new Date(one * 1000).toISOString(), 0))"
    async with opened(browser, api.address) as page:
        texts = await evaluate(page, "format", code, seconds)
        assert texts == ["now", "in 1m", "in 30m", "in 59m", "in 1h", "in 22h"]


async def test_a_skill_is_switched_off_and_on_again_by_its_own_line(browser: Browser, api: PageApi) -> None:
    source = "---\nname: tide\ndescription: The tide.\n---\n\ndisable-model-invocation: is explained here\n"
    code = "(skills, source) => [skills.switched(source), skills.switched(skills.switched(source))]"
    async with opened(browser, api.address) as page:
        off = source.replace("---\n", "---\ndisable-model-invocation: true\n", 1)
        assert await evaluate(page, "views/skills", code, source) == [off, source]


@pytest.mark.parametrize("told", [ASK_INSTEAD, ASK_OR_LOOK])
async def test_a_refused_call_shows_the_message_for_people(browser: Browser, api: PageApi, told: str) -> None:
    api.append(THREAD, UserSaid("Push", Author("owner", trusted=True)))
    api.append(THREAD, TurnStarted("main", "demo"))
    refused = ToolFinished(CallId("c1"), "bash", f"A person denied this call.{told}", is_error=True)
    finished = ToolFinished(CallId("c2"), "bash", f"It ended so:{told}")
    for event in (refused, finished):
        api.append(THREAD, event)
    async with opened(browser, api.address) as page:
        lines = page.locator(".tool-line")
        for number, shown in enumerate((refused.for_people, finished.for_people)):
            await lines.nth(number).click()
            await expect(page.locator(".tool-panel pre").nth(number)).to_have_text(shown)
