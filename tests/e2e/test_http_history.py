"""Searching, pinning, exporting and deleting threads over HTTP, and who may do so."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.kernel.events import AssistantSaid, Event, ToolFinished
from shoal.kernel.ids import CallId, ThreadId, TurnId
from shoal.kernel.messages import Author, Prompt, ToolCall, Usage
from shoal.kernel.records import Spend
from shoal.surfaces.export import WRITERS, MarkdownWriter
from shoal.surfaces.http.routes_history import excerpt_of
from shoal.threads.access_tokens import NewToken

THREAD = ThreadId("web:lobby:one")
THEIRS = ThreadId("web:@ada:one")
HERE = f"/api/threads/{THREAD}"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def talk(shoal: Served, text: str, thread: ThreadId = THREAD, reply: str = "You said so.") -> TurnId:
    author = Author("owner", trusted=True)
    prompt = Prompt(thread, shoal.clock.new_id(), text, author, shoal.clock.now())
    await shoal.store.inbox.accept(prompt, 5)
    turn = await shoal.open(prompt)
    call = ToolCall(CallId("c1"), "bash", '{"command": "echo ```"}')
    await shoal.add(thread, turn, AssistantSaid("", (call,), "tool_calls"))
    await shoal.add(thread, turn, ToolFinished(CallId("c1"), "bash", "```\n<b>out</b>"), AssistantSaid(reply))
    await shoal.finish(thread, turn, reply)
    return turn


async def hers(shoal: Served) -> dict[str, str]:
    _, secret = await shoal.tokens.create(NewToken("hers", "chat", "web:ada", ""), "web:owner")
    return {"Authorization": f"Bearer {secret}"}


async def test_a_thread_is_renamed_pinned_and_archived(shoal: Served) -> None:
    await talk(shoal, "hello there")
    answer = await shoal.client.patch(HERE, json={"title": " Tea  time ", "pinned": True})
    assert (answer.json()["title"], answer.json()["pinned"], answer.json()["archived"]) == ("Tea time", True, False)
    await shoal.client.patch(HERE, json={"archived": True})
    assert (await shoal.client.get("/api/threads")).json() == []
    (thread,) = (await shoal.client.get("/api/threads?archived=true")).json()
    assert thread["thread"] == THREAD
    for body, status in (({"title": "  "}, 400), ({"titel": "x"}, 400), ({"agent": "nobody"}, 400)):
        assert (await shoal.client.patch(HERE, json=body)).status_code == status
    assert (await shoal.client.patch("/api/threads/web:lobby:none", json={"pinned": True})).status_code == 404


async def test_pinned_threads_are_listed_at_any_age(shoal: Served) -> None:
    await talk(shoal, "old")
    await talk(shoal, "new", ThreadId("web:lobby:two"))
    await shoal.client.patch(HERE, json={"pinned": True})
    listed = (await shoal.client.get("/api/threads?limit=1")).json()
    assert [row["title"] for row in listed] == ["new", "old"]


async def test_only_an_admin_deletes_a_thread(shoal: Served) -> None:
    await talk(shoal, "mine", THEIRS)
    await talk(shoal, "treasure")
    header = await hers(shoal)
    assert (await shoal.stranger.delete(f"/api/threads/{THEIRS}", headers=header)).status_code == 403
    changed = await shoal.stranger.patch(f"/api/threads/{THEIRS}", headers=header, json={"archived": True})
    assert changed.json()["archived"] is True
    assert (await shoal.stranger.patch(HERE, headers=header, json={"pinned": True})).status_code == 404
    deleted = (await shoal.client.delete(HERE)).json()
    assert (deleted["threads"], deleted["events"]) == (1, 6)
    assert (await shoal.client.get(HERE)).status_code == (await shoal.client.delete(HERE)).status_code == 404
    (entry,) = (await shoal.client.get(f"/api/audit?chain={THREAD}")).json()
    assert deleted["digest"] in entry["entry"]["detail"]


async def test_a_running_thread_is_not_deleted(shoal: Served) -> None:
    await shoal.client.post(f"{HERE}/messages", json={"text": "hello"})
    answer = await shoal.client.delete(HERE)
    assert (answer.status_code, answer.json()["error"]) == (409, "conflict")


async def test_messages_are_found_with_their_position(shoal: Served) -> None:
    await talk(shoal, f"{'word ' * 40}the treasure is here {'word ' * 40}")
    await talk(shoal, "another treasure", THEIRS)
    results = (await shoal.client.get("/api/search", params={"q": "treas"})).json()
    assert [(hit["thread"], hit["by"]) for hit in results] == [(THEIRS, "person"), (THREAD, "person")]
    assert results[1]["excerpt"].startswith("…word")
    assert "the treasure is here" in results[1]["excerpt"]
    assert results[1]["seq"] == 2
    within = await shoal.client.get("/api/search", params={"q": "treasure", "thread": THREAD})
    assert [hit["thread"] for hit in within.json()] == [THREAD]


async def test_a_search_shows_only_ones_own_threads(shoal: Served) -> None:
    await talk(shoal, "the owner's treasure")
    await talk(shoal, "ada's treasure", THEIRS)
    header = await hers(shoal)
    answer = await shoal.stranger.get("/api/search", params={"q": "treasure"}, headers=header)
    assert [row["thread"] for row in answer.json()] == [THEIRS]
    spied = await shoal.stranger.get("/api/search", params={"q": "treasure", "thread": THREAD}, headers=header)
    assert spied.json() == []


def test_an_excerpt_shows_the_match_and_its_cuts() -> None:
    assert excerpt_of("short and whole", ["whole"]) == "short and whole"
    assert excerpt_of("x" * 300, ["nothing"]) == "x" * 160 + "…"
    assert "needle" in excerpt_of("hay " * 100 + "needle " + "hay " * 100, ["needle"])


@pytest.mark.parametrize(("form", "kind"), [("markdown", "text/markdown"), ("html", "text/html"), ("json", "json")])
async def test_a_conversation_is_exported(shoal: Served, form: str, kind: str) -> None:
    await talk(shoal, "a <b>bold</b> question", reply="An **answer**.")
    await shoal.client.patch(HERE, json={"title": 'Tea "time"/now'})
    answer = await shoal.client.get(f"{HERE}/export", params={"format": form})
    assert kind in answer.headers["content-type"]
    assert "Tea%20time%20now." in answer.headers["content-disposition"]
    if form == "json":
        assert [event["seq"] for event in json.loads(answer.text)["events"]] == [1, 2, 3, 4, 5, 6]
    elif form == "html":
        assert "<strong>answer</strong>" in answer.text
        assert "<b>" not in answer.text
        assert "&lt;b&gt;out&lt;/b&gt;" in answer.text
    else:
        assert "````\n```\n<b>out</b>\n````" in answer.text
        assert answer.text.index("## owner") < answer.text.index("**bash**") < answer.text.index("## main")


async def test_exports_are_written_in_pages_off_the_loop_one_at_a_time(
    shoal: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    at_work = threading.Lock()

    class Watched(MarkdownWriter):
        def event(self, event: Event) -> str:
            assert threading.current_thread() is not threading.main_thread()
            assert at_work.acquire(blocking=False)
            written.append(self.title)
            at_work.release()
            return super().event(event)

    monkeypatch.setitem(WRITERS, "markdown", Watched)
    for _ in range(10):
        await talk(shoal, "a question")
    answers = await asyncio.gather(*[shoal.client.get(f"{HERE}/export") for _ in range(4)])
    assert {answer.text for answer in answers} == {answers[0].text}
    assert answers[0].text.count("## owner") == 10
    assert len(written) == 4 * 60


async def test_a_turns_cost_is_the_sum_of_its_calls(shoal: Served) -> None:
    turn = await talk(shoal, "hello")
    for step, usd in ((1, 0.25), (2, 0.5)):
        await shoal.store.ledger.record(THREAD, turn, Spend(f"{turn}:{step}", "main", "", "m", Usage(10, 2), usd))
    cost = (await shoal.client.get(f"{HERE}/turns/{turn}/cost")).json()
    assert cost == {
        "calls": 2, "input_tokens": 20, "output_tokens": 4, "cached_tokens": 0, "usd": 0.75, "models": ["m"]
    }  # fmt: skip
    other = await shoal.client.get(f"/api/threads/web:lobby:two/turns/{turn}/cost")
    assert other.json()["calls"] == 0
