"""Restricted tokens: for every scope and call, a token neither reveals nor changes data outside its scope."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import StreamingResponse
from starlette.types import Message
from tests.e2e.http_stand import Served, served

from shoal.features.openai_api.routes import chosen_thread, response_id, thread_of_response
from shoal.features.triggers.records import NewTrigger
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import ShoalError
from shoal.kernel.events import AssistantSaid, ToolFinished, TurnStarted
from shoal.kernel.ids import ApprovalId, CallId, ThreadId, TurnId, is_personal
from shoal.kernel.messages import Author, Caller, Prompt, ToolCall
from shoal.kernel.permissions import TOKEN_SCOPES, AccessToken, TokenScope
from shoal.kernel.records import AuditEntry, Commit, NewApproval
from shoal.net.connections import default_tls
from shoal.surfaces.http import page
from shoal.surfaces.http.endpoints import EndedWithToken, Endpoint
from shoal.surfaces.http.table import api
from shoal.threads.access_tokens import NewToken
from shoal.threads.principals import Principal

CANARY = "canary-of-the-owners"
FOREIGN = ThreadId("web:lobby:private")
OTHERS = (FOREIGN, "web:@ada:x", "openai:@ada:x", "openai:api:x", "telegram:1:2", "web:@benn:x", "terminal:local:x")
OWN = ThreadId("web:@ben:mine")
OWNER = Author("owner", trusted=True)
REFUSED = {401, 403, 404}


class Kind(NamedTuple):
    """A kind of token: its scope and, if it is bound to an agent, that agent."""

    scope: TokenScope
    agent: str = ""

    @property
    def is_confined(self) -> bool:
        """Whether the token has no access to the owner's conversations."""
        return self.scope == "chat" or bool(self.agent)


KINDS = [
    Kind("chat"),
    Kind("chat", "other"),
    Kind("read", "other"),
    Kind("approve", "other"),
    *map(Kind, ("read", "approve")),
]
CALLS = [endpoint for endpoint in api() if not endpoint.is_open]


async def bearer(shoal: Served, kind: Kind, name: str = "ben", person: str = "web:ben") -> httpx2.AsyncClient:
    _, secret = await shoal.tokens.create(NewToken(name, kind.scope, person, kind.agent), "web:owner")
    return httpx2.AsyncClient(
        verify=default_tls(), base_url=shoal.address, headers={"Authorization": f"Bearer {secret}"}, timeout=60
    )


async def lived_in(shoal: Served) -> None:
    for name in ("main", "other"):
        (shoal.home.agent(name) / "workspace").mkdir(parents=True)
        (shoal.home.agent(name) / "agent.toml").write_text(f'system_prompt = "{CANARY}"' if name == "main" else "")
    prompt = Prompt(FOREIGN, "k", CANARY, OWNER, shoal.clock.now(), agent="main")
    await shoal.store.inbox.accept(prompt, 5)
    turn, call = await shoal.open(prompt), CallId("c")
    digest = shoal.outlets.artifacts.keep(CANARY.encode())
    result = ToolFinished(call, "bash", CANARY, artifact=digest, artifact_bytes=len(CANARY))
    await shoal.add(FOREIGN, turn, AssistantSaid(CANARY, (ToolCall(call, "bash", "{}"),), "tool_calls"), result)
    lease = await shoal.store.journal.lease(FOREIGN)
    assert lease is not None
    until = shoal.clock.now() + timedelta(hours=1)
    asked = NewApproval(ApprovalId("A1"), call, "bash", (CANARY,), "d", CANARY, "web:owner", until)
    await shoal.store.journal.commit(lease, Commit(turn, approvals=(asked,)))
    await shoal.triggers.triggers.add(NewTrigger("periodic", "0 * * * *", CANARY, OWNER, "", FOREIGN), until)
    await shoal.store.audit.record("system", [AuditEntry("check", CANARY)])
    scratch = shoal.home.thread(FOREIGN) / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "file.txt").write_text(CANARY)


@pytest.fixture
async def shoal(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "home") as stand:
        await lived_in(stand)
        yield stand


async def answered(client: httpx2.AsyncClient, thread: str) -> str:
    seen = ""
    async with client.stream("GET", f"/api/threads/{thread}/events", headers={"Accept": "text/event-stream"}) as live:
        async for piece in live.aiter_text():
            seen += piece
            if "turn_finished" in seen:
                break
    return seen


def filled(endpoint: Endpoint, thread: str = FOREIGN) -> str:
    path = endpoint.path.replace("{thread}", thread.replace("%", "%25")).replace("{path:path}", "scratch/file.txt")
    path = path.replace("{user:path}", "1").replace("{artifact}", "c").replace("{snapshot}", "s").replace("{id}", "A1")
    path = path.replace("{name}", "main").replace("{model}", "main").replace("{platform}", "web")
    path = path.replace("{turn}", "T1").replace("/api/search", "/api/search?q=canary")
    return path.replace("{channel}", "lobby") + ("?name=x.txt" if path.endswith("/attachments") else "")


def body_of(endpoint: Endpoint) -> object:
    if endpoint.path == "/api/threads/{thread}/command":
        return {"text": "/stop"}
    if endpoint.path == "/v1/responses":
        return {"model": "shoal", "input": "hi", "conversation": FOREIGN}
    if endpoint.path == "/v1/chat/completions":
        return {"model": "shoal", "messages": [{"role": "user", "content": "hi"}], "user": FOREIGN}
    return {"text": "hi"}


def test_every_call_declares_its_token_scopes() -> None:
    for endpoint in api():
        assert bool(endpoint.scopes) is not endpoint.is_open, endpoint.path
        assert set(endpoint.scopes) <= set(TOKEN_SCOPES), endpoint.path
        assert endpoint.is_open or "admin" in endpoint.scopes, endpoint.path
    assert all(endpoint.is_open for endpoint in page.routes)


def test_read_scopes_change_only_preferences_and_decisions() -> None:
    changing = [endpoint for endpoint in CALLS if endpoint.method != "GET"]
    harmless = {
        "/api/me/preferences",
        "/api/me/timezone",
        "/api/push",
        "/api/permissions/check",
    }  # these change only the caller's own data, or nothing
    assert {endpoint.path for endpoint in changing if "read" in endpoint.scopes} == harmless
    assert {endpoint.path for endpoint in changing if "approve" in endpoint.scopes} == {
        *harmless,
        "/api/approvals/{id}",
    }


def test_the_calls_of_a_chat_token_are_listed() -> None:
    """Before you add a call to this list, check that it is limited to the caller's own threads."""
    without_thread = {
        (endpoint.method, endpoint.path)
        for endpoint in CALLS
        if "chat" in endpoint.scopes and "{thread}" not in endpoint.path
    }
    assert without_thread == {
        ("PUT", "/api/me/preferences"),
        ("PUT", "/api/me/timezone"),
        ("GET", "/api/push"),
        ("PUT", "/api/push"),
        ("DELETE", "/api/push"),
        ("GET", "/openapi.json"),
        ("GET", "/api/threads"),
        ("GET", "/api/changes"),
        ("GET", "/api/commands"),
        ("GET", "/api/me"),
        ("GET", "/api/models"),
        ("GET", "/api/search"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/{model}"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/responses"),
    }


def check_refusal(kind: Kind, endpoint: Endpoint, answer: httpx2.Response) -> None:
    if kind.scope not in endpoint.scopes:
        assert answer.status_code == 403
    if not kind.is_confined:
        return
    assert CANARY not in answer.text
    if "{thread}" in endpoint.path:
        assert answer.status_code in REFUSED
    elif not endpoint.narrows:
        assert answer.status_code == 403


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(filter(None, kind)))
async def test_no_call_reveals_or_changes_data_outside_the_token(shoal: Served, kind: Kind) -> None:
    shoal.orchestrator.on_prompt = shoal.echo
    endless = "/api/events" if not kind.is_confined else ""  # an endless stream, which these tokens may read
    async with await bearer(shoal, kind) as client:
        for endpoint in (endpoint for endpoint in CALLS if endpoint.path != endless):
            body = None if endpoint.method == "GET" else body_of(endpoint)
            check_refusal(kind, endpoint, await client.request(endpoint.method, filled(endpoint), json=body))
        assert (await client.get("/api/threads")).status_code == 200
    for message in shoal.orchestrator.received:
        assert kind.scope == "chat"
        assert message.thread.startswith("openai:@ben:")
    asked = await shoal.store.approvals.get(ApprovalId("A1"))
    assert asked is not None
    assert asked.state == "pending"
    assert len(await shoal.triggers.triggers.all()) == 1
    assert [token.name for token in await shoal.tokens.all()] == ["ben"]


@pytest.mark.parametrize(
    "endpoint", [endpoint for endpoint in CALLS if "{thread}" in endpoint.path and "chat" in endpoint.scopes]
)
async def test_a_foreign_thread_is_answered_like_one_that_does_not_exist(shoal: Served, endpoint: Endpoint) -> None:
    body = None if endpoint.method == "GET" else body_of(endpoint)
    async with await bearer(shoal, Kind("chat")) as client:
        for thread in OTHERS:
            answer = await client.request(endpoint.method, filled(endpoint, thread), json=body)
            assert answer.status_code == 404, thread
            assert answer.json()["message"] == (
                f"Thread {thread} does not exist. `shoal threads list` shows all threads."
            )
    assert shoal.orchestrator.received == []


async def test_the_home_token_and_an_admin_token_may_call_everything(shoal: Served) -> None:
    reading = [endpoint for endpoint in CALLS if endpoint.method == "GET" and endpoint.path != "/api/events"]
    async with await bearer(shoal, Kind("admin"), "root", "") as admin:
        for client, endpoint in itertools.product((shoal.client, admin), reading):
            assert (await client.get(filled(endpoint))).status_code not in (401, 403), endpoint.path


async def test_a_chat_token_talks_in_its_own_threads(shoal: Served) -> None:
    shoal.orchestrator.on_prompt = shoal.echo
    async with await bearer(shoal, Kind("chat")) as client:
        sent = await client.post(f"/api/threads/{OWN}/messages", json={"text": "hi"})
        assert sent.status_code == 202
        assert "turn_finished" in await answered(client, OWN)
        listed = (await client.get("/api/threads")).json()
        assert [row["thread"] for row in listed] == [OWN]
        assert (await client.get(f"/api/threads/{OWN}/events")).json()[1]["data"]["author"]["id"] == "web:ben"
        assert (await client.post(f"/api/threads/{OWN}/clear")).status_code == 200
    prompt = shoal.orchestrator.received[0]
    assert isinstance(prompt, Prompt)
    assert prompt.author == Author("web:ben", "ben", trusted=False)
    assert prompt.direct


async def test_an_upload_is_marked_with_its_author(shoal: Served) -> None:
    """The mark is set even if no message follows, or if the message is rejected. Later readers of the file must
    know its source.
    """
    async with await bearer(shoal, Kind("chat")) as ben:
        assert (await ben.post(f"/api/threads/{OWN}/attachments?name=a.txt", content=b"obey")).status_code == 201
    for name, mine in (("b.txt", "true"), ("c.txt", "false")):
        sent = await shoal.client.post(f"/api/threads/{OWN}/attachments?name={name}&mine={mine}", content=b"hi")
        assert sent.status_code == 201
    folder = shoal.home.attachments(OWN)
    source_of = await shoal.tainted_files.sources([folder])
    sources = {path.name.partition("-")[2]: source_of(path) for path in folder.iterdir()}
    assert sources == {"a.txt": "a file from ben", "b.txt": "", "c.txt": "the file c.txt"}


async def test_two_people_see_only_their_own_threads(shoal: Served) -> None:
    shoal.orchestrator.on_prompt = shoal.echo
    for name in ("ben", "eve"):
        async with await bearer(shoal, Kind("chat"), name, f"web:{name}") as client:
            who = (await client.get("/api/me")).json()
            thread = f"{who['thread_prefix']}t"
            assert (await client.post(f"/api/threads/{thread}/messages", json={"text": "hi"})).status_code == 202
            assert {thread["thread"] for thread in (await client.get("/api/threads")).json()} == {f"web:@{name}:t"}
    everything = {thread["thread"] for thread in (await shoal.client.get("/api/threads")).json()}
    assert everything == {FOREIGN, "web:@ben:t", "web:@eve:t"}


async def test_only_the_requester_sees_a_subagents_thread(shoal: Served) -> None:
    prompt = Prompt(OWN, "k1", "hi", Author("web:ben", trusted=False), shoal.clock.now())
    await shoal.store.inbox.accept(prompt, 5)
    turn = await shoal.open(prompt)
    child = ThreadId("agent:0123456789abcdef:01")
    caller = Caller(((OWN, turn),), CallId("c"), "tell", prompt.author, tainted_by="")
    begun = Prompt(child, "k2", "do it", prompt.author, shoal.clock.now(), caller=caller, origin="agent")
    assert (await shoal.store.children.begin(begun, 5)).status == "accepted"
    async with await bearer(shoal, Kind("chat")) as ben, await bearer(shoal, Kind("chat"), "eve", "web:eve") as eve:
        assert (await ben.get(f"/api/threads/{child}")).status_code == 200
        assert {thread["thread"] for thread in (await ben.get("/api/threads")).json()} == {OWN, child}
        assert (await eve.get(f"/api/threads/{child}")).status_code == 404
        assert (await ben.get("/api/threads/agent:0123456789abcdef:02")).status_code == 404


async def test_an_agents_token_is_answered_only_by_that_agent(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat", "other")) as client:
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["other"]
        assert (await client.get("/v1/models/main")).status_code == 404
        for agent, status in (("main", 403), ("other", 202), ("", 202)):
            body = {"text": "hi", "agent": agent}
            assert (await client.post(f"/api/threads/{OWN}/messages", json=body)).status_code == status
        shoal.orchestrator.on_prompt = shoal.echo
        for model, status in (("main", 404), ("shoal", 200), ("other", 200)):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == status
    prompts = [message for message in shoal.orchestrator.received if isinstance(message, Prompt)]
    assert {prompt.agent for prompt in prompts} == {"other"}


async def test_a_thread_that_changes_agent_is_no_longer_visible_to_the_token(shoal: Served) -> None:
    async def begin(agent: str) -> None:
        key = shoal.clock.new_id()
        prompt = Prompt(OWN, key, "hi", OWNER, shoal.clock.now(), agent=agent, message_id=key)
        await shoal.store.inbox.accept(prompt, 5)
        lease = await shoal.store.journal.lease(OWN)
        assert lease is not None
        turn = TurnId(shoal.clock.new_id())
        await shoal.store.journal.open_turn(lease, prompt, Commit(turn, (TurnStarted(agent, "fake"),)))
        await shoal.finish(OWN, turn, "done")

    async with await bearer(shoal, Kind("chat", "other")) as client:
        await begin("other")
        assert (await client.get(f"/api/threads/{OWN}")).status_code == 200
        await begin("main")
        assert (await client.get(f"/api/threads/{OWN}")).status_code == 404
        assert (await client.get("/api/threads")).json() == []


async def test_an_approver_decides_in_their_own_name(shoal: Served) -> None:
    async with await bearer(shoal, Kind("approve"), "phone", "owner") as client:
        assert [approval["id"] for approval in (await client.get("/api/approvals")).json()] == ["A1"]
        decided = await client.post("/api/approvals/A1", json={"decision": "allow"})
        assert decided.json() == {"id": "A1", "state": "allow"}
    rows = await shoal.store.audit.tail(20)
    settled = next(row.entry for row in rows if row.entry.kind == "approval")
    assert (settled.user, settled.token) == ("web:owner", "phone")
    call = next(row.entry for row in rows if row.entry.kind == "call")
    assert (call.action, call.user, call.token) == ("POST /api/approvals/A1", "web:owner", "phone")


async def test_a_confined_approver_has_no_access_to_other_agents_approvals(shoal: Served) -> None:
    async with await bearer(shoal, Kind("approve", "other")) as client:
        assert (await client.get("/api/approvals")).json() == []
        assert (await client.get("/api/approvals/A1")).status_code == 404
        assert (await client.post("/api/approvals/A1", json={"decision": "allow"})).status_code == 404
    async with await bearer(shoal, Kind("approve", "main"), "two") as client:
        assert [approval["id"] for approval in (await client.get("/api/approvals")).json()] == ["A1"]


async def test_a_chat_tokens_commands_are_about_its_thread(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat")) as client:
        names = [command["name"] for command in (await client.get("/api/commands")).json()]
        assert names == ["new", "stop", "steer"]
        for text in (
            "/approve A1",
            "/agent list",
            "/thread list",
            "/status",
            "/remind list",
            "/settings show",
            "/help",
        ):
            answer = await client.post(f"/api/threads/{OWN}/command", json={"text": text})
            assert answer.status_code == 403, text


# ---- /v1 ----

principals = st.builds(
    lambda name, agent: Principal(
        AccessToken(name, "d", "chat", f"web:{name}", "web:owner", SystemClock().now(), agent),
        Author(f"web:{name}", trusted=False),
    ),
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    st.sampled_from(("", "main")),
)
names = st.one_of(
    st.text(max_size=300),
    st.tuples(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20)).map(":".join),
    st.sampled_from((*OTHERS, "web:@ben:x", "openai:@ben:x", "web:@", ":", "@ben", "web:@BEN:x")),
)


@given(by=principals, name=names)
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_a_name_never_resolves_to_another_persons_thread(by: Principal, name: str) -> None:
    for metadata, user in (({"thread": name}, None), (None, name)):
        try:
            thread = chosen_thread(by, metadata, user)
        except ShoalError:  # invalid thread id
            continue
        assert not name or by.owns(ThreadId(thread))
        assert not name or is_personal(ThreadId(thread))


@given(by=principals, other=principals)
@settings(max_examples=200)
def test_nobody_continues_another_persons_response(by: Principal, other: Principal) -> None:
    thread = ThreadId(f"openai:{other.channel}:x")
    try:
        assert thread_of_response(by, response_id("id", thread)) == thread
        assert by.person == other.person
    except ShoalError:
        assert by.person != other.person


async def test_identical_messages_of_two_people_stay_separate(shoal: Served) -> None:
    shoal.orchestrator.on_prompt = shoal.echo
    begun = [{"role": "user", "content": "hi"}]
    said = {"role": "assistant", "content": "You said: hi"}
    further = {"model": "shoal", "messages": [*begun, said, {"role": "user", "content": "more"}]}
    threads: list[list[str]] = []
    async with await bearer(shoal, Kind("chat")) as ben, await bearer(shoal, Kind("chat"), "eve", "web:eve") as eve:
        for body in ({"model": "shoal", "messages": begun}, further):
            for client in (ben, shoal.client, eve):
                answer = await client.post("/v1/chat/completions", json=body)
                threads.append(answer.headers["x-shoal-thread"].replace("%40", "@").split(":"))
    assert [channel for _, channel, _ in threads] == ["@ben", "api", "@eve"] * 2
    assert threads[:3] == threads[3:]


async def test_an_agents_token_cannot_continue_another_agents_thread(shoal: Served) -> None:
    shoal.orchestrator.on_prompt = shoal.echo  # runs each turn as the agent main
    async with await bearer(shoal, Kind("chat")) as free, await bearer(shoal, Kind("chat", "other"), "two") as bound:
        for client, status in ((free, 200), (bound, 404)):
            body = {"model": "shoal", "messages": [{"role": "user", "content": "hi"}], "user": "notes"}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == status


# ---- revoked and expired tokens ----


async def changed(lines: AsyncIterator[str]) -> list[str]:
    async for line in lines:
        if line.startswith("data: "):
            return msgspec.json.decode(line.removeprefix("data: "), type=dict[str, list[str]])["changed"]
    raise EOFError


async def test_a_revoked_token_ends_streams_cookies_and_calls(shoal: Served) -> None:
    shoal.orchestrator.on_prompt = shoal.echo
    token, secret = await shoal.tokens.create(NewToken("ben", "chat"), "web:owner")
    async with await bearer(shoal, Kind("read"), "reader") as reader:
        page = shoal.stranger
        entered = await page.get("/", params={"token": secret})
        assert (entered.status_code, entered.headers["location"][:6]) == (303, "/?key=")
        page.headers["X-Shoal"] = entered.headers["location"].removeprefix("/?key=")
        assert secret not in entered.headers["set-cookie"]
        assert (await page.get("/api/me")).json()["person"] == "web:ben"
        sent = await page.post(f"/api/threads/{OWN}/messages", json={"text": "hi"}, headers={"Origin": shoal.address})
        assert sent.status_code == 202
        streams = {"Accept": "text/event-stream"}
        async with (
            page.stream("GET", f"/api/threads/{OWN}/events", headers=streams) as own,
            page.stream("GET", "/api/changes", headers=streams) as changes,
            reader.stream("GET", "/api/events", headers=streams) as others,
        ):
            await shoal.tokens.revoke(token.name, "web:owner")
            await shoal.tokens.revoke("reader", "web:owner")
            async with asyncio.timeout(60):
                assert "turn_started" in "".join([piece async for piece in own.aiter_text()])
                assert "changed" in "".join([piece async for piece in changes.aiter_text()])
                assert "retry" in "".join([piece async for piece in others.aiter_text()])
        for client in (page, reader):
            assert (await client.get("/api/threads")).status_code == 401
        assert (await page.get("/")).status_code == 401
    again, _ = await shoal.tokens.create(NewToken("ben", "chat"), "web:owner")
    assert again.digest != token.digest
    assert (await page.get("/api/me")).status_code == 401  # the cookie belonged to the previous token


async def test_a_chat_token_follows_only_its_own_threads(shoal: Served) -> None:
    headers = {"Accept": "text/event-stream"}
    async with (
        asyncio.timeout(60),
        await bearer(shoal, Kind("chat")) as client,
        client.stream("GET", "/api/changes", headers=headers) as own,
        shoal.client.stream("GET", "/api/changes", headers=headers) as owners,
    ):
        mine, all_of_them = own.aiter_lines(), owners.aiter_lines()
        assert await changed(mine) == ["threads"]
        assert await changed(all_of_them) == ["threads", "approvals"]
        following = asyncio.create_task(changed(mine))
        for title in ("Tea", "Coffee"):  # the title appears in both lists
            await shoal.store.threads.change(FOREIGN, title=title)
            assert await changed(all_of_them) == ["threads", "approvals"]
        assert not following.done()  # the server compared its own list in the meantime
        await client.post(f"/api/threads/{OWN}/messages", json={"text": "hi"})
        prompt = shoal.orchestrator.received[-1]
        assert isinstance(prompt, Prompt)
        await shoal.open(prompt)
        assert await following == ["threads"]


async def test_an_awaited_reply_ends_with_its_token(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat")) as client:
        body = {"model": "shoal", "messages": [{"role": "user", "content": "hi"}]}
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await shoal.orchestrator.arrived.wait()
        await shoal.tokens.revoke("ben", "web:owner")
        async with asyncio.timeout(60):
            answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")


async def test_an_upload_in_progress_is_discarded_when_its_token_ends(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat")) as client:

        async def content() -> AsyncIterator[bytes]:
            yield b"half"
            await shoal.tokens.revoke("ben", "web:owner")
            yield b" and half"

        answer = await client.post(f"/api/threads/{OWN}/attachments", params={"name": "a.txt"}, content=content())
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")
    assert [*shoal.home.attachments(OWN).glob("*")] == []


async def test_an_unread_download_ends_with_its_token() -> None:
    sent: list[Message] = []

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    async def send(message: Message) -> None:
        if sent and message["type"] == "http.response.body":
            await asyncio.Event().wait()
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def allowed() -> bool:
        return False

    async with asyncio.timeout(60):
        scope = {"type": "http", "method": "GET", "path": "/"}
        await EndedWithToken(StreamingResponse(pieces()), allowed)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]


async def test_an_unknown_token_gets_instructions(shoal: Served) -> None:
    for given_token in ("shoal_", "shoal_" + "x" * 43, "shoal_" + "é" * 43, "x"):
        headers = {b"Authorization": f"Bearer {given_token}".encode()}
        answer = await shoal.stranger.get("/api/me", headers=headers)
        assert answer.status_code == 401
        assert "`shoal token create`" in answer.json()["message"]


async def test_guessing_is_slowed_without_locking_out_valid_tokens(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat")) as client:
        wrong = {"Authorization": f"Bearer shoal_{'x' * 43}"}
        statuses = [(await shoal.stranger.get("/api/me", headers=wrong)).status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert (await client.get("/api/me")).status_code == 200


async def test_a_person_who_loses_access_cannot_use_their_token(shoal: Served) -> None:
    code = await shoal.pairing.ask("telegram", Author("99", "Zoe", trusted=False))
    await shoal.pairing.confirm(code, ["telegram"], "web:owner")
    async with await bearer(shoal, Kind("chat"), "zoe", "telegram:99") as client:
        me = (await client.get("/api/me")).json()
        assert (me["author"], me["name"], me["thread_prefix"]) == ("telegram:99", "zoe", "web:@telegram%3A99:")
        sent = await client.post("/api/threads/web:@telegram%253A99:x/messages", json={"text": "hi"})
        assert sent.status_code == 202
        prompt = shoal.orchestrator.received[-1]
        assert prompt.author.trusted
        await shoal.pairing.remove("telegram", "99", "web:owner")
        await client.post("/api/threads/web:@telegram%253A99:x/messages", json={"text": "again"})
        assert not shoal.orchestrator.received[-1].author.trusted  # `*` admits them but does not make them trusted


async def test_a_persons_message_rate_is_limited(shoal: Served) -> None:
    async with await bearer(shoal, Kind("chat")) as client:
        answers = [await client.post(f"/api/threads/{OWN}/abort") for _ in range(25)]
    assert {answer.status_code for answer in answers} == {202, 429}


async def test_a_token_secret_appears_only_in_the_response_that_creates_the_token(shoal: Served) -> None:
    created = await shoal.client.post("/api/tokens", json={"name": "ben", "scope": "chat", "expires": "1d"})
    assert created.status_code == 201
    secret = created.json()["secret"]
    again = await shoal.client.post("/api/tokens", json={"name": "ben", "scope": "chat"})
    assert again.status_code == 409
    for path in ("/api/tokens", "/api/audit", "/api/me"):
        text = (await shoal.client.get(path)).text
        assert secret not in text
        assert AccessToken.__name__ not in text
    (listed,) = (await shoal.client.get("/api/tokens")).json()
    assert json.dumps(listed).count("digest") == 0
    assert (await shoal.client.delete("/api/tokens/ben")).json() == {"revoked": True}
    assert (await shoal.client.delete("/api/tokens/ben")).status_code == 404
