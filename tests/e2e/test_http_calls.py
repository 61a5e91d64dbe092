"""Every call of the HTTP API against a real server, with valid and invalid input."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.e2e.http_stand import Served, served

from shoal.kernel.errors import StoreFull, StoreReadOnly
from shoal.kernel.events import ApprovalRequested, AssistantSaid, Event, ToolFinished
from shoal.kernel.ids import ApprovalId, CallId, ThreadId
from shoal.kernel.messages import Author, Prompt, Retry, Usage
from shoal.kernel.ports import channel_names
from shoal.kernel.records import AuditEntry, Commit, NewApproval, NewPost, Spend, Step
from shoal.testing.chat import FakeChat

THREAD = ThreadId("web:lobby:one")
MESSAGES = f"/api/threads/{THREAD}/messages"


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as stand:
        yield stand


async def waiting_prompt(shoal: Served, text: str = "hello", thread: str = THREAD) -> Prompt:
    answer = await shoal.client.post(f"/api/threads/{thread}/messages", json={"text": text})
    assert answer.status_code == 202
    prompt = shoal.orchestrator.received[-1]
    assert isinstance(prompt, Prompt)
    return prompt


async def ask(shoal: Served, seconds: float = 3600) -> ApprovalId:
    prompt = await waiting_prompt(shoal)
    turn = await shoal.open(prompt)
    approval, call = ApprovalId(shoal.clock.new_id()), CallId("c1")
    expires_at = shoal.clock.now() + timedelta(seconds=seconds)
    asked = NewApproval(approval, call, "bash", ("tool:bash:ls",), "digest", "ls", "owner", expires_at)
    event = ApprovalRequested(approval, call, "bash", ("tool:bash:ls",), "ls", expires_at)
    lease = await shoal.store.journal.lease(THREAD)
    assert lease is not None
    await shoal.store.journal.commit(lease, Commit(turn, (event,), approvals=(asked,)))
    return approval


async def test_health_needs_no_token(shoal: Served) -> None:
    assert (await shoal.stranger.get("/healthz")).json() == {"status": "ok"}
    assert (await shoal.stranger.get("/readyz")).json() == {"ready": True, "store": "ok", "engine": "ok"}


async def test_the_server_is_not_ready_while_draining(shoal: Served) -> None:
    shoal.runtime.state = "draining"
    answer = await shoal.stranger.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "store": "ok", "engine": "draining"}


async def test_no_message_is_accepted_while_draining(shoal: Served) -> None:
    shoal.runtime.state = "draining"
    calls = {MESSAGES: {"text": "hi"}, "/api/channels/web/lobby/messages": {"text": "hi"}}
    for path, body in calls.items():
        refused = await shoal.client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]) == (503, "stopping")
    assert not shoal.orchestrator.received
    assert (await shoal.client.post(f"/api/threads/{THREAD}/abort")).status_code == 202


async def test_the_server_is_not_ready_if_the_store_cannot_write(shoal: Served) -> None:
    await shoal.store.close()
    answer = await shoal.stranger.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["store"].startswith("The database is unreachable or locked by another program.")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StoreFull("x"), "Free some space"),
        (StoreReadOnly("x"), "is read-only"),
        (TimeoutError(), "has not responded"),
    ],
)
async def test_a_store_problem_is_reported_in_one_sentence(
    shoal: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(shoal.store.settings, "put", fails)
    assert said in (await shoal.stranger.get("/readyz")).json()["store"]


async def test_a_message_is_accepted_once(shoal: Served) -> None:
    body = {"text": "hello", "message_id": "m1"}
    first, second = [await shoal.client.post(MESSAGES, json=body) for _ in range(2)]
    assert (first.status_code, first.json()) == (202, {"accepted": True, "message_id": "m1", "duplicate": False})
    assert (second.status_code, second.json()) == (202, {"accepted": True, "message_id": "m1", "duplicate": True})
    info = (await shoal.client.get(f"/api/threads/{THREAD}")).json()
    assert info["queued"] == 1


async def test_the_same_message_id_in_another_thread_is_another_message(shoal: Served) -> None:
    body = {"text": "hello", "message_id": "m1"}
    answers = [await shoal.client.post(f"/api/threads/web:lobby:{name}/messages", json=body) for name in "ab"]
    assert [answer.json()["duplicate"] for answer in answers] == [False, False]


async def test_a_missing_id_is_generated(shoal: Served) -> None:
    ids = [(await shoal.client.post(MESSAGES, json={"text": "hi"})).json()["message_id"] for _ in range(2)]
    assert len(set(ids)) == 2
    assert all(len(id) == 26 for id in ids)


async def test_a_full_mailbox_is_busy(shoal: Served) -> None:
    statuses = [(await shoal.client.post(MESSAGES, json={"text": "hi"})).status_code for _ in range(6)]
    assert statuses == [202] * 5 + [429]
    last = await shoal.client.post(MESSAGES, json={"text": "hi"})
    assert last.json()["error"] == "busy"
    assert "Retry-After" in last.headers


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"text": ""}', "invalid_input"),
        (b'{"text": "  \\n "}', "invalid_input"),
        (b"{}", "invalid_input"),
        (b'{"text": 7}', "invalid_input"),
        (b'{"text": "a", "unknown": 1}', "invalid_input"),
        (b'{"text": "a\\u0000b"}', "invalid_input"),
        (b'{"text": "a", "message_id": "%s"}' % (b"x" * 201), "invalid_input"),
        (b'{"text": "a", "agent": "nobody"}', "invalid_input"),
        (b'{"text": "a", "attachments": [{"file": "../../token"}]}', "invalid_input"),
        (b'{"text": "a", "attachments": [{"data": "not base64!"}]}', "invalid_input"),
        (b'{"text": "a"', "invalid_input"),
        (b"\xff\xfe", "invalid_input"),
        (b'{"text": "\xff"}', "invalid_input"),
        (b"", "invalid_input"),
        (b"[]", "invalid_input"),
    ],
)
async def test_a_malformed_message_is_rejected_and_not_stored(shoal: Served, body: bytes, code: str) -> None:
    answer = await shoal.client.post(MESSAGES, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"] == code
    assert answer.json()["message"].endswith((".", "lists them."))
    assert (await shoal.client.get("/api/threads")).json() == []


async def test_the_error_for_a_malformed_body_names_the_field(shoal: Served) -> None:
    answer = await shoal.client.post(MESSAGES, json={"text": 7})
    assert "`text` must be text" in answer.json()["message"]


@pytest.mark.parametrize("thread", ["one", "web:lobby", "web::x", "web:lobby:a*b", "web:lobby:..", "a:b:c:d"])
async def test_an_invalid_thread_id_is_rejected(shoal: Served, thread: str) -> None:
    answer = await shoal.client.post(f"/api/threads/{thread}/messages", json={"text": "hi"})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_id")


async def test_unsafe_characters_in_a_thread_id_are_encoded(shoal: Served) -> None:
    answer = await shoal.client.post("/api/threads/web:lobby:a%252Fb/messages", json={"text": "hi"})
    assert answer.status_code == 202
    assert [info["thread"] for info in (await shoal.client.get("/api/threads")).json()] == ["web:lobby:a%2Fb"]


async def test_a_turn_that_waits_for_its_model_is_retried_on_request(shoal: Served) -> None:
    address = f"/api/threads/{THREAD}/retry"
    refused = await shoal.client.post(address)
    assert (refused.status_code, refused.json()["message"]) == (409, "No turn in this thread is waiting for its model.")
    await shoal.open(await waiting_prompt(shoal))
    assert (await shoal.client.post(address)).json() == {"delivered": True}
    assert (await shoal.client.post(address, json={"model": "demo/other", "turn": "t1"})).status_code == 202
    asked = [message for message in shoal.orchestrator.received if isinstance(message, Retry)]
    assert [(retry.turn, retry.model) for retry in asked[1:]] == [("", ""), ("t1", "demo/other")]
    assert (await shoal.client.post(address, json={"modle": "x"})).status_code == 400


async def test_steer_and_abort_report_whether_a_turn_was_running(shoal: Served) -> None:
    steer = {"text": "stop that"}
    assert (await shoal.client.post(f"/api/threads/{THREAD}/steer", json=steer)).json() == {"delivered": False}
    assert (await shoal.client.post(f"/api/threads/{THREAD}/abort")).json() == {"delivered": False}
    await shoal.open(await waiting_prompt(shoal))
    taken = [
        await shoal.client.post(f"/api/threads/{THREAD}/steer", json=steer),
        await shoal.client.post(f"/api/threads/{THREAD}/abort"),
        await shoal.client.post(f"/api/threads/{THREAD}/abort", json={"all_queued": True}),
    ]
    assert [(answer.status_code, answer.json()) for answer in taken] == [(202, {"delivered": True})] * 3


async def test_a_message_to_a_channel_opens_a_thread(shoal: Served) -> None:
    answer = await shoal.client.post("/api/channels/web/lobby/messages", json={"text": "good morning"})
    assert answer.status_code == 202
    assert answer.json()["thread"].startswith("web:lobby:")
    missing = await shoal.client.post("/api/channels/pigeon/roof/messages", json={"text": "coo"})
    assert (missing.status_code, missing.json()["error"]) == (400, "invalid_input")


async def test_a_thread_shows_running_and_queued_work(shoal: Served) -> None:
    first = await waiting_prompt(shoal, "first words")
    turn = await shoal.open(first)
    await waiting_prompt(shoal, "second")
    info = (await shoal.client.get(f"/api/threads/{THREAD}")).json()
    assert (info["open_turn"], info["queued"], info["last_seq"], info["title"]) == (turn, 1, 2, "first words")
    assert info["created_at"].endswith("Z")
    assert (await shoal.client.get("/api/threads")).json() == [info]


async def test_an_unknown_thread_is_not_found(shoal: Served) -> None:
    for path in ("", "/steps"):
        answer = await shoal.client.get(f"/api/threads/web:lobby:nobody{path}")
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert (await shoal.client.post("/api/threads/web:lobby:nobody/clear")).status_code == 404


async def test_events_are_paged(shoal: Served) -> None:
    for text in ("one", "two"):
        await shoal.answer(await waiting_prompt(shoal, text), text)
    whole = (await shoal.client.get(f"/api/threads/{THREAD}/events")).json()
    assert [event["seq"] for event in whole] == list(range(1, 9))
    assert list(whole[0]) == ["seq", "thread", "turn", "type", "at", "data"]
    assert [event["type"] for event in whole[:4]] == [
        "turn_started", "user_message", "assistant_message", "turn_finished",
    ]  # fmt: skip
    page = (await shoal.client.get(f"/api/threads/{THREAD}/events?after=2&limit=3")).json()
    assert page == whole[2:5]
    assert (await shoal.client.get(f"/api/threads/{THREAD}/events?after=2&before=5")).json() == whole[2:4]


async def test_a_long_journal_is_streamed_in_pieces(shoal: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await shoal.open(await waiting_prompt(shoal))
    await shoal.add(THREAD, turn, *[AssistantSaid("still at it")] * 495)
    journal, asked = shoal.store.journal, list[int]()
    read = journal.events

    async def events(thread: ThreadId, after: int = 0, limit: int = 10_000, *, before: int = 0) -> list[Event]:
        asked.append(limit)
        return await read(thread, after, limit, before=before)

    monkeypatch.setattr(journal, "events", events)
    for limit in (200, 201, 400, 497, 5000):
        page = (await shoal.client.get(f"/api/threads/{THREAD}/events?limit={limit}")).json()
        assert [event["seq"] for event in page] == list(range(1, min(limit, 497) + 1))
    assert max(asked) <= 200


async def test_a_thread_without_events_has_an_empty_journal(shoal: Served) -> None:
    assert (await shoal.client.get("/api/threads/web:lobby:none/events")).json() == []


@pytest.mark.parametrize("query", ["after=x", "after=-1", "limit=0", "limit=5001", "nonsense=1", "after=1&after=2"])
async def test_an_invalid_query_is_rejected(shoal: Served, query: str) -> None:
    answer = await shoal.client.get(f"/api/threads/{THREAD}/events?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_input")


async def test_clearing_is_journaled(shoal: Served) -> None:
    await shoal.answer(await waiting_prompt(shoal), "hi")
    assert (await shoal.client.post(f"/api/threads/{THREAD}/clear")).json() == {"cleared": True}
    events = (await shoal.client.get(f"/api/threads/{THREAD}/events")).json()
    assert (events[-1]["type"], events[-1]["data"]) == ("cleared", {"by": "owner"})


async def test_steps_show_what_took_time(shoal: Served) -> None:
    turn = await shoal.open(await waiting_prompt(shoal))
    lease = await shoal.store.journal.lease(THREAD)
    assert lease is not None
    step = Step(1, "model", shoal.clock.now(), 250)
    await shoal.store.journal.commit(lease, Commit(turn, steps=(step,)))
    steps = (await shoal.client.get(f"/api/threads/{THREAD}/steps")).json()
    assert [(row["turn"], row["description"], row["duration_ms"]) for row in steps] == [(turn, "model", 250)]


async def test_an_approval_is_decided_once(shoal: Served) -> None:
    approval = await ask(shoal)
    listed = (await shoal.client.get("/api/approvals")).json()
    assert [(row["id"], row["shown"], row["state"]) for row in listed] == [(approval, "ls", "pending")]
    path = f"/api/approvals/{approval}"
    allowed = await shoal.client.post(path, json={"decision": "allow"})
    assert (allowed.status_code, allowed.json()) == (200, {"id": approval, "state": "allow"})
    again = await shoal.client.post(path, json={"decision": "deny"})
    assert (again.status_code, again.json()["error"]) == (409, "conflict")
    assert (await shoal.client.get("/api/approvals")).json() == []
    settled = (await shoal.client.get("/api/approvals?pending=false")).json()
    assert [row["decided_by"] for row in settled] == ["owner"]
    assert (await shoal.client.get(path)).json() == settled[0]


async def test_an_expired_approval_is_gone(shoal: Served) -> None:
    approval = await ask(shoal, seconds=-1)
    answer = await shoal.client.post(f"/api/approvals/{approval}", json={"decision": "allow"})
    assert (answer.status_code, answer.json()["error"]) == (410, "gone")


async def test_an_unknown_approval_is_not_found(shoal: Served) -> None:
    assert (await shoal.client.get("/api/approvals/none")).status_code == 404
    assert (await shoal.client.post("/api/approvals/none", json={"decision": "deny"})).status_code == 404
    wrong = await shoal.client.post("/api/approvals/none", json={"decision": "maybe"})
    assert wrong.status_code == 400


async def test_a_trigger_is_added_and_removed(shoal: Served) -> None:
    body = {"kind": "periodic", "schedule": "0 9 * * *", "text": "good morning", "thread": THREAD}
    answer = await shoal.client.post("/api/triggers", json=body)
    assert answer.status_code == 201
    assert (answer.json()["state"], answer.json()["created_by"]) == ("active", "owner")
    assert (await shoal.client.get("/api/triggers")).json() == [answer.json()]
    path = f"/api/triggers/{answer.json()['id']}"
    assert (await shoal.client.delete(path)).json() == {"removed": True}
    assert (await shoal.client.delete(path)).status_code == 404
    assert (await shoal.client.get("/api/triggers")).json() == []


@pytest.mark.parametrize(
    "change",
    [{"thread": ""}, {"platform": "web", "channel": "lobby"}, {"schedule": "never"}, {"kind": "daily"}, {"text": ""}],
)
async def test_an_invalid_trigger_is_rejected(shoal: Served, change: dict[str, str]) -> None:
    body = {"kind": "periodic", "schedule": "0 9 * * *", "text": "hi", "thread": THREAD, **change}
    answer = await shoal.client.post("/api/triggers", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_input")


async def test_agents_are_listed(shoal: Served) -> None:
    listed = (await shoal.client.get("/api/agents")).json()
    assert [(agent["name"], agent["model"]) for agent in listed] == [("main", "demo")]
    assert (await shoal.client.get("/api/agents/main")).json() == listed[0]
    assert (await shoal.client.get("/api/agents/nobody")).status_code == 404


async def test_an_agent_with_a_broken_file_is_listed_with_the_problem(shoal: Served) -> None:
    folder = shoal.home.agent("broken")
    folder.mkdir(parents=True)
    (folder / "agent.toml").write_text("model = 7")
    listed = (await shoal.client.get("/api/agents")).json()
    assert [agent["name"] for agent in listed] == ["broken", "main"]
    assert "agent.toml" in listed[0]["error"]
    assert listed[1]["error"] == ""


async def test_usage_and_audit_are_listed(shoal: Served) -> None:
    turn = await shoal.open(await waiting_prompt(shoal))
    lease = await shoal.store.journal.lease(THREAD)
    assert lease is not None
    from tests.e2e.http_stand import USAGE

    spend = Spend("s1", "main", "owner", "fake", USAGE, None)
    entry = AuditEntry("check", "tool:bash:ls", "allow")
    await shoal.store.journal.commit(lease, Commit(turn, audit=(entry,), spend=spend))
    usage = (await shoal.client.get("/api/usage")).json()
    assert [(row["model"], row["calls"], row["usd"]) for row in usage] == [("fake", 1, None)]
    assert (usage[0]["usage"]["input_tokens"], usage[0]["usage"]["reasoning_tokens"]) == (12, 0)
    audit = (await shoal.client.get("/api/audit?limit=10")).json()
    assert [(row["chain"], row["number"], row["entry"]["action"]) for row in audit] == [(THREAD, 1, "tool:bash:ls")]


async def test_metrics_count_events_and_queues(shoal: Served) -> None:
    await shoal.answer(await waiting_prompt(shoal), "hi")
    turn = await shoal.open(await waiting_prompt(shoal))
    await shoal.add(THREAD, turn, ToolFinished(CallId("c"), "bash", "no", is_error=True))
    await waiting_prompt(shoal)
    await shoal.store.outbox.put(NewPost("p1", THREAD, "text"))
    answer = await shoal.client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    for line in (
        'shoal_turns_total{outcome="done"} 1',
        'shoal_tool_calls_total{result="error"} 1',
        "shoal_model_calls_total 1",
        'shoal_tokens_total{kind="input"} 12',
        "shoal_outbox_depth 1",
        "shoal_prompts_queued 1",
        "shoal_turns_running 1",
    ):
        assert line in lines


async def test_unknown_paths_and_wrong_methods_return_json_errors(shoal: Served) -> None:
    missing = await shoal.client.get("/api/nothing")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    wrong = await shoal.client.put("/api/triggers", json={})
    assert (wrong.status_code, wrong.json()["error"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (await shoal.client.get("/api/threads/")).status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
async def test_a_body_is_read_as_json_for_any_content_type(shoal: Served, headers: dict[str, str]) -> None:
    taken = await shoal.client.post(MESSAGES, content=b'{"text": "hi"}', headers=headers)
    assert (taken.status_code, taken.json()["accepted"]) == (202, True)
    refused = await shoal.client.post(MESSAGES, content=b"text=hi", headers=headers)
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_input")


async def test_two_simultaneous_posts_are_one_message(shoal: Served) -> None:
    body = {"text": "hello", "message_id": "same"}
    answers = await asyncio.gather(*(shoal.client.post(MESSAGES, json=body) for _ in range(8)))
    assert sorted(answer.json()["duplicate"] for answer in answers) == [False] + [True] * 7


# ---- the overview ----


async def test_the_overview_takes_one_call(shoal: Served) -> None:
    prompt = await waiting_prompt(shoal, "paint the boat")
    turn = await shoal.open(prompt)
    await shoal.finish(THREAD, turn, "No credit is left.", "failed")
    waiting = await ask(shoal)
    body = {"kind": "periodic", "schedule": "0 9 * * *", "text": "tide table", "thread": THREAD}
    coming = (await shoal.client.post("/api/triggers", json=body)).json()
    overview = (await shoal.client.get("/api/overview")).json()
    (done,) = overview["turns"]
    assert (done["asked"], done["reply"], done["outcome"]) == ("paint the boat", "No credit is left.", "failed")
    assert [approval["id"] for approval in overview["waiting"]] == [waiting]
    assert [(occurrence["id"], occurrence["text"]) for occurrence in overview["coming"]] == [
        (coming["id"], "tide table")
    ]
    assert (await shoal.client.get("/api/overview?hours=1000")).status_code == 400


async def test_the_overview_includes_archived_threads(shoal: Served) -> None:
    turn = await shoal.open(await waiting_prompt(shoal, "paint the boat"))
    await shoal.finish(THREAD, turn, "Painted.")
    assert (await shoal.client.patch(f"/api/threads/{THREAD}", json={"archived": True})).status_code == 200
    overview = (await shoal.client.get("/api/overview")).json()
    assert [turn["reply"] for turn in overview["turns"]] == ["Painted."]


async def test_usage_by_thread_has_titles(shoal: Served) -> None:
    turn = await shoal.open(await waiting_prompt(shoal, "paint the boat"))
    await shoal.store.ledger.record(THREAD, turn, Spend(f"{turn}:1", "main", "owner", "demo", Usage(100, 20), 0.5))
    (row,) = (await shoal.client.get("/api/usage/threads?days=7")).json()
    assert (row["thread"], row["title"], row["tokens"]) == (THREAD, "paint the boat", 120)


async def test_the_calendar_lists_occurrences_of_the_next_days(shoal: Served) -> None:
    for schedule in ("0 9 * * *", "* * * * *", "0 9 29 2 *"):
        body = {"kind": "periodic", "schedule": schedule, "text": "x", "thread": THREAD}
        assert (await shoal.client.post("/api/triggers", json=body)).json()["words"].startswith("every")
    rare, often = sorted((await shoal.client.get("/api/triggers/calendar?days=2")).json(), key=lambda one: one["more"])
    assert (len(rare["at"]), rare["words"]) == (2, "every day at 9:00")
    # 4 for each calendar day, 2 or 3 of them
    assert (len(often["at"]) in (8, 9, 10, 11, 12), often["more"]) == (True, True)
    assert (await shoal.client.get("/api/triggers/calendar?timezone=Mars/Olympus")).status_code == 400
    assert (await shoal.client.get("/api/triggers/calendar?days=400")).status_code == 400


async def test_the_audit_log_is_checked_through_the_api(shoal: Served) -> None:
    await shoal.store.audit.record("owner", [AuditEntry("check", "one"), AuditEntry("check", "two")])
    assert (await shoal.client.get("/api/audit/verify")).json() == {"chains": 1, "entries": 2, "broken": []}
    with sqlite3.connect(shoal.home.database_file) as database:
        database.execute("delete from audit where number = 1")
    broken = (await shoal.client.get("/api/audit/verify")).json()["broken"]
    assert broken == ["owner: entry 1 is missing."]


async def test_preferences_are_stored_per_person(shoal: Served) -> None:
    assert (await shoal.client.get("/api/me")).json()["preferences"] == {"theme": "system", "grouping": "day"}
    chosen = {"theme": "dark", "grouping": "agent"}
    assert (await shoal.client.put("/api/me/preferences", json=chosen)).json() == chosen
    assert (await shoal.client.get("/api/me")).json()["preferences"] == chosen
    secret = (await shoal.client.post("/api/tokens", json={"name": "ben", "scope": "chat"})).json()["secret"]
    bens = {"Authorization": f"Bearer {secret}"}
    assert (await shoal.stranger.get("/api/me", headers=bens)).json()["preferences"]["theme"] == "system"
    assert (await shoal.client.put("/api/me/preferences", json={"theme": "pink"})).status_code == 400


async def test_all_turns_of_the_day_are_counted_and_failures_listed(shoal: Served) -> None:
    """The overview lists only a few turns, so failures must stay visible after many later turns."""
    failed = await waiting_prompt(shoal, "the first one")
    await shoal.finish(THREAD, await shoal.open(failed), "No credit is left.", "failed")
    for number in range(70):
        thread = ThreadId(f"web:lobby:n{number}")
        turn = await shoal.open(await waiting_prompt(shoal, f"job {number}", thread))
        await shoal.finish(thread, turn, "[SILENT]" if number < 5 else "Done.")
    overview = (await shoal.client.get("/api/overview")).json()
    counted = {hour["outcome"]: hour["turns"] for hour in overview["hours"]}
    assert (counted["done"], counted["failed"]) == (65, 1)
    assert [turn["asked"] for turn in overview["faults"]] == ["the first one"]
    assert len(overview["turns"]) == 60


async def test_groups_seen_by_bots_are_listed_by_name(shoal: Served) -> None:
    shoal.adapters["telegram"] = FakeChat()
    for channel, name in (("-1", "harbour"), ("-2", "Anchorage")):
        await shoal.store.settings.put(channel_names("telegram"), channel, name)
    prompt = Prompt(ThreadId("telegram:-1:t1"), "1", "hello", Author("7", "Ada", trusted=True), shoal.clock.now())
    await shoal.store.inbox.accept(prompt, 5)
    await shoal.finish(prompt.thread, await shoal.open(prompt), "Hi.")
    chats = (await shoal.client.get("/api/chats")).json()
    assert [(chat["name"], chat["thread"], chat["people"], bool(chat["updated_at"])) for chat in chats] == [
        ("harbour", "telegram:-1:t1", ["Ada"], True),
        ("Anchorage", "telegram:-2:0", [], False),
    ]


async def test_chats_are_listed_once_with_their_people(shoal: Served) -> None:
    ada = Author("4711", "Ada", trusted=True)
    for number in range(3):
        for place in ("telegram:4711", "web:lobby"):
            thread = ThreadId(f"{place}:t{number}")
            prompt = Prompt(thread, thread, "hello", ada, shoal.clock.now())
            await shoal.store.inbox.accept(prompt, 5)
            await shoal.finish(thread, await shoal.open(prompt), "Hi.")
    chats = {(chat["platform"], chat["channel"]): chat for chat in (await shoal.client.get("/api/chats")).json()}
    assert set(chats) == {("telegram", "4711"), ("web", "lobby")}
    assert chats["telegram", "4711"]["people"] == ["Ada"]
    assert chats["telegram", "4711"]["thread"] == "telegram:4711:t2"
