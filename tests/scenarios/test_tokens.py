"""People with their own tokens: their identity, costs and search results."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from tests.scenarios.test_search import seeker

from shoal.agents.registry import AgentRegistry
from shoal.kernel.events import ToolFinished, UserSaid
from shoal.kernel.ids import ThreadId
from shoal.kernel.messages import Usage
from shoal.kernel.permissions import TokenScope
from shoal.net.connections import default_tls
from shoal.services import Services
from shoal.store.store import Store
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario
from shoal.threads.access_tokens import AccessTokens, NewToken

BEN = ThreadId("web:@ben:one")
OWNER = ThreadId("web:lobby:one")


@asynccontextmanager
async def served(app: Services) -> AsyncGenerator[str]:
    async with serve(app, WebOptions(token="a-token-that-is-long-enough-to-be-unguessable", port=0)) as address:
        yield address


@asynccontextmanager
async def client(
    app: Services, address: str, name: str, scope: TokenScope, person: str = ""
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Yield a client with a new token. A token with scope admin and without a person belongs to the owner."""
    _, secret = await app[AccessTokens].create(NewToken(name, scope, person), "web:owner")
    async with httpx2.AsyncClient(
        verify=default_tls(), base_url=address, headers={"Authorization": f"Bearer {secret}"}, timeout=20
    ) as found:
        yield found


async def asks(who: httpx2.AsyncClient, text: str, **fields: object) -> str:
    body = {"model": "shoal", "messages": [{"role": "user", "content": text}], **fields}
    answer = await who.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_page_and_api_usage_is_charged_to_each_person(tmp_path: Path) -> None:
    settings = {"budget": {"tokens_per_user_day": 1_000_000}, "model": {"max_output_tokens": 100}}
    model = FakeModel(script=lambda seen: Reply("hi", usage=Usage(7_000, 1)))
    async with scenario(tmp_path, model, settings=settings) as world, served(world.app) as address:
        async with client(world.app, address, "ben", "chat") as ben, client(world.app, address, "me", "admin") as owner:
            for thread, who in ((BEN, ben), (OWNER, owner)):
                assert await asks(who, "hi", metadata={"thread": thread}) == "hi"
            assert await asks(ben, "hi", user="notes") == "hi"
        spent = {one.scope: one.tokens for one in await world.app[Store].budget.standings()}
        assert spent["user:web:ben"] == 14_002
        assert spent["user:web:owner"] == 7_001


async def test_a_linked_person_is_one_person_everywhere(tmp_path: Path) -> None:
    access = {"people": {"ada": {"identities": ["fake:ada", "web:ada"], "roles": ["captain"]}}}
    settings = {"budget": {"tokens_per_user_day": 1_000_000}, "access": access, "model": {"max_output_tokens": 100}}
    model = FakeModel(script=lambda seen: Reply("hi", usage=Usage(7_000, 1)))
    async with scenario(tmp_path, model, settings=settings) as world, served(world.app) as address:
        await world.ada.says("hi")
        await world.ada.sees("hi")
        async with client(world.app, address, "phone", "chat", "ada") as ada:
            assert (await ada.get("/api/me")).json()["name"] == "ada"
            assert await asks(ada, "hi") == "hi"
        spent = {one.scope: one.tokens for one in await world.app[Store].budget.standings()}
        assert spent["user:fake:ada"] == 14_002


async def test_an_approval_is_requested_and_decided_by_permitted_people_only(tmp_path: Path) -> None:
    model = FakeModel(Reply(calls=(Call("bash", '{"command": "touch made"}'),)), "done")
    settings = {"permissions": {"default_profile": "standard"}}
    async with scenario(tmp_path, model, settings=settings) as world, served(world.app) as address:
        async with (
            client(world.app, address, "ben", "chat") as ben,
            client(world.app, address, "eve", "approve") as eve,
            client(world.app, address, "phone", "approve", "owner") as phone,
        ):
            assert (await ben.post(f"/api/threads/{BEN}/messages", json={"text": "go"})).status_code == 202
            await world.happens(BEN, "approval_requested")
            (asked,) = (await phone.get("/api/approvals")).json()
            assert asked["asked_by"] == "web:ben"
            decide, allow = f"/api/approvals/{asked['id']}", {"decision": "allow"}
            assert (await ben.post(decide, json=allow)).status_code == 403
            command = {"text": f"/approve {asked['id']}"}
            assert (await ben.post(f"/api/threads/{BEN}/command", json=command)).status_code == 403
            assert (await ben.post(f"/api/threads/{BEN}/messages", json={"text": f"allow {asked['id']}"})).is_success
            assert (await eve.post(decide, json=allow)).json()["error"] == "forbidden"
            assert (await phone.post(decide, json=allow)).json()["state"] == "allow"
            await world.happens(BEN, "turn_finished")
        entries = [
            row.entry for row in await world.app[Store].audit.tail(1000, chain_name=BEN) if row.entry.kind == "approval"
        ]
        assert [(one.decision, one.user, one.token) for one in entries] == [
            ("refused", "web:eve", "eve"),
            ("allow", "web:owner", "phone"),
        ]


async def test_a_persons_trust_follows_the_configuration(tmp_path: Path) -> None:
    settings = {"web": {"allow": ["ada"]}}
    model = FakeModel(script=lambda seen: "hi")
    async with scenario(tmp_path, model, settings=settings) as world, served(world.app) as address:
        for name, trusted in (("ada", True), ("ben", False)):
            async with client(world.app, address, name, "chat") as somebody:
                thread = ThreadId(f"web:@{name}:one")
                await asks(somebody, "hi", metadata={"thread": thread})
            said = [one.data for one in await world.app[Store].journal.events(thread)]
            author = next(data.author for data in said if isinstance(data, UserSaid))
            assert (author.id, author.name, author.trusted) == (f"web:{name}", name, trusted)


async def test_no_token_lets_an_agent_find_other_peoples_conversations(tmp_path: Path) -> None:
    async with scenario(tmp_path, seeker("search_history")) as world, served(world.app) as address:
        async with client(world.app, address, "me", "admin") as owner:
            await asks(owner, "the treasure is under the pier", metadata={"thread": OWNER})
            await asks(owner, "look", metadata={"thread": "web:lobby:two"})
        for name, person in (("ben", ""), ("mine", "owner")):
            async with client(world.app, address, name, "chat", person) as somebody:
                await asks(somebody, "look", user="one")
        results = {
            thread: next(one.data.text for one in events if isinstance(one.data, ToolFinished))
            for thread in ("web:lobby:two", "openai:@ben:one", "openai:@owner:one")
            for events in [await world.app[Store].journal.events(ThreadId(thread))]
        }
        assert "under the pier" in results["web:lobby:two"]
        assert {thread for thread, text in results.items() if "under the pier" in text} == {"web:lobby:two"}


@pytest.mark.parametrize(
    ("scope", "thread", "profile"), [("chat", "openai:@owner:one", "mine"), ("admin", OWNER, "open")]
)
async def test_an_owners_chat_token_cannot_manage_agents(
    tmp_path: Path, scope: TokenScope, thread: str, profile: str
) -> None:
    settings = {"permissions": {"default_profile": "mine", "profiles": {"mine": {"allow": ["tool:.*"]}}}}
    model = FakeModel(Reply(calls=(Call("set_permissions", '{"profile": "open"}'),)), "done")
    async with scenario(tmp_path, model, settings=settings) as world, served(world.app) as address:
        async with client(world.app, address, "mine", scope, "owner") as mine:
            await asks(mine, "widen yourself", metadata={"thread": thread})
            for text in ("/agent create other", "/settings model other"):
                answer = await mine.post(f"/api/threads/{thread}/command", json={"text": text})
                assert (answer.status_code == 403) is (scope == "chat")
        assert world.app[AgentRegistry].spec("main").profile == profile
        assert ("other" in world.app[AgentRegistry].names()) is (scope == "admin")
