"""Setup of a running Shoal over HTTP: Shoal tries each input and applies it at once. Invalid input changes nothing."""

import asyncio
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from tests.e2e.http_stand import TOKEN

from shoal.agents.registry import AgentRegistry
from shoal.app import NO_OVERRIDES, Overrides, open_app
from shoal.config import load_config
from shoal.connections import Connections
from shoal.features.mcp.servers import McpServers
from shoal.features.mcp.setup import shown_server
from shoal.kernel.home import Home
from shoal.kernel.ports import Models
from shoal.net.connections import default_tls
from shoal.services import Services
from shoal.setup.choices import platforms
from shoal.store.store import Store
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.model import FakeModel
from shoal.testing.model.fake import FakeSettings
from shoal.testing.platforms.telegram import TOKEN as BOT
from shoal.testing.platforms.telegram import FakeTelegram
from shoal.threads.access_tokens import AccessTokens, NewToken
from shoal.tools.registry import Registry
from shoal.turn.compaction import ThreadTitles

OTHER_BOT = "999999:AAFakeTokenForTestsOnly"
ADA = 7
MCP_SERVER = Path(__file__).parents[1] / "contracts" / "mcp_odd_server.py"


class Stand(msgspec.Struct):
    """A running Shoal without a model or chat, and fakes of the services that it can be connected to."""

    app: Services
    home: Home
    client: httpx2.AsyncClient
    model: str
    telegram: FakeTelegram

    async def put(self, path: str, body: object, status: int = 200) -> str:
        answer = await self.client.put(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.text

    async def post(self, path: str, body: object, status: int = 200) -> str:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.text

    def written(self) -> tuple[str, list[str]]:
        folder = self.home.secrets
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        return self.home.config_file.read_text(), names


@asynccontextmanager
async def running(root: Path, told: str = "", overrides: Overrides = NO_OVERRIDES) -> AsyncGenerator[Stand]:
    model = FakeModel(script=lambda _: "Ahoy.", settings=FakeSettings(api_key="right", models=("fake-1", "fake-2")))
    telegram = FakeTelegram()
    telegram.add_chat(ADA)
    async with AsyncExitStack() as stack:
        await telegram.start()
        stack.push_async_callback(telegram.stop)
        address = await model.start("127.0.0.1", 0)
        stack.push_async_callback(model.stop)
        home = Home(root)
        make_home(home)
        addresses = f'[platforms.telegram]\nenabled = false\napi_base = "{telegram.server.address}"\n'
        home.config_file.write_text(f'[sandbox]\nkind = "host"\n{addresses}{told}')
        app = await stack.enter_async_context(open_app(load_config(root, {"OLLAMA_HOST": "127.0.0.1:1"}), overrides))
        served = await stack.enter_async_context(serve(app, WebOptions(token=TOKEN, port=0)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        client = await stack.enter_async_context(
            httpx2.AsyncClient(verify=default_tls(), base_url=served, headers=headers, timeout=60)
        )
        yield Stand(app, home, client, f"{address}/v1", telegram)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncGenerator[Stand]:
    async with running(tmp_path / "home") as started:
        yield started


def server(stand: Stand, **more: str) -> dict[str, str]:
    return {"address": stand.model, "key": "right", **more}


# ---- a model ----


async def test_a_model_is_tried_and_used_without_a_restart(stand: Stand) -> None:
    before = await stand.client.get("/api/setup")
    assert (before.json()["model"], before.json()["is_demo"]) == ("demo", True)
    said = await stand.post("/api/setup/providers/server/test", server(stand))
    assert msgspec.json.decode(said) == {"models": ["fake-1", "fake-2"], "usual": "fake-1"}
    assert stand.written()[1] == [], "a trial writes nothing"
    said = await stand.put("/api/setup/providers/server", server(stand, model="fake-2"))
    assert msgspec.json.decode(said) == {"model": "mine/fake-2", "said": "Ahoy.", "note": ""}
    text, secrets = stand.written()
    assert secrets == ["providers.mine.api_key"]
    file = stand.home.secrets / secrets[0]
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("right\n", 0o600)
    assert 'name = "mine/fake-2"' in text
    assert stand.app[AgentRegistry].spec("main").model == "mine/fake-2"
    route = stand.app[Models].route("mine/fake-2")
    assert (route.provider.name, route.model) == ("mine", "fake-2")
    shown = (await stand.client.get("/api/setup")).json()
    mine = next(model for model in shown["models"] if model["name"] == "server")
    assert (mine["has_key"], mine["address"], shown["is_demo"]) == (True, stand.model, False)


async def test_another_model_reuses_the_key(stand: Stand) -> None:
    await stand.put("/api/setup/providers/server", server(stand, model="fake-1"))
    await stand.put("/api/setup/providers/server", {"model": "fake-2"})
    assert stand.app[AgentRegistry].defaults.model == "mine/fake-2"


async def test_the_stored_key_is_sent_to_no_other_address(stand: Stand) -> None:
    await stand.put("/api/setup/providers/server", server(stand, model="fake-1"))
    said = await stand.post("/api/setup/providers/server/test", {"address": "http://127.0.0.1:9/v1"}, 400)
    assert "enter the key again" in said


@pytest.mark.parametrize(
    ("name", "entered", "told"),
    [
        ("server", {"key": "wrong-key"}, "rejected the API key"),
        ("server", {"model": "fake-3"}, "does not offer the model 'fake-3'"),
        ("server", {"address": "http://127.0.0.1:9/v1"}, "cannot be reached"),
        ("server", {"address": "ftp://there"}, "must begin with http:// or https://"),
        ("anthropic", {"key": BOT}, "That is a Telegram bot token, not an Anthropic key."),
        ("anthropic", {"key": ""}, "The key is missing."),
        ("nobody", {}, "Setup has no provider named 'nobody'"),
    ],
)
async def test_a_model_that_does_not_answer_changes_nothing(
    stand: Stand, name: str, entered: dict[str, str], told: str
) -> None:
    before = stand.written()
    said = await stand.put(f"/api/setup/providers/{name}", server(stand, **{"model": "fake-1", **entered}), 400)
    assert told in said
    assert "wrong-key" not in said
    assert (stand.written(), stand.app[AgentRegistry].defaults.model) == (before, "demo")


async def test_an_overriding_variable_is_named(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_MODEL__NAME", "demo")
    before = stand.written()
    said = await stand.put("/api/setup/providers/server", server(stand, model="fake-1"), 400)
    assert "SHOAL_MODEL__NAME overrides model.name" in said
    assert stand.written() == before


# ---- a chat ----


async def test_a_bot_is_connected_and_its_owner_found_without_a_restart(stand: Stand) -> None:
    entered = {"values": {"token": BOT}}
    await stand.post("/api/setup/platforms/telegram/test", entered)
    assert stand.written()[1] == []
    assert '"state":"connected"' in await stand.put("/api/setup/platforms/telegram", entered)
    await stand.telegram.says(ADA, "hello")
    code = (await stand.telegram.sees(ADA, "shoal pair")).text.partition("shoal pair ")[2][:8]
    await stand.post("/api/setup/platforms/telegram/owner", {"code": "AAAAAAAA"}, 404)
    assert '"owner":"7"' in await stand.post("/api/setup/platforms/telegram/owner", {"code": code})
    assert 'owner = "7"' in stand.written()[0]
    assert (await stand.client.get("/api/access")).json() == {"paired": [], "waiting": []}
    await stand.telegram.says(ADA, "/whoami")
    assert "owner" in (await stand.telegram.sees(ADA, "owner")).text
    rows = await stand.app[Store].audit.tail(9, chain_name="setup")
    assert [row.entry.action for row in rows] == ["connect telegram", "owner of telegram"]


async def test_a_bot_is_switched_off_and_on(stand: Stand) -> None:
    await stand.put("/api/setup/platforms/telegram", {"values": {"token": BOT}})
    off = await stand.client.patch("/api/platforms/telegram", json={"enabled": False})
    assert off.json()["state"] == "off"
    assert "telegram" not in stand.app[Connections].adapters
    on = await stand.client.patch("/api/platforms/telegram", json={"enabled": True})
    assert on.json()["state"] == "connected"
    assert (await stand.client.patch("/api/platforms/irc", json={"enabled": True})).status_code == 404


@pytest.mark.parametrize(
    ("platform", "token", "told"),
    [
        ("telegram", OTHER_BOT, "Telegram rejected the token for 'main'."),
        ("telegram", "xoxb-1-2", "That is a Slack bot token, not a Telegram bot token."),
        ("telegram", "", "Your bot's token is missing."),
        ("irc", BOT, "Setup has no platform named 'irc'"),
    ],
)
async def test_a_refused_token_changes_nothing(stand: Stand, platform: str, token: str, told: str) -> None:
    before = stand.written()
    said = await stand.put(f"/api/setup/platforms/{platform}", {"values": {"token": token}}, 400)
    assert told in said
    assert not token or token not in said
    assert (stand.written(), "telegram" in stand.app[Connections].adapters) == (before, False)


async def test_another_bots_token_does_not_replace_the_current_one(stand: Stand) -> None:
    await stand.put("/api/setup/platforms/telegram", {"values": {"token": BOT}})
    before = stand.written()
    said = await stand.put("/api/setup/platforms/telegram", {"values": {"token": OTHER_BOT}}, 400)
    assert "belongs to a different bot" in said
    assert stand.written() == before


async def test_an_unreachable_platform_is_reported(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as stand:
        await stand.telegram.stop()
        said = await stand.put("/api/setup/platforms/telegram", {"values": {"token": BOT}}, 400)
        assert "telegram" in said.lower()
        assert BOT not in said


PAGER = """
import asyncio
from shoal.kernel.ids import make_thread_id
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import PlatformError
from shoal.kernel.posts import ChatLimits
from shoal.kernel.secret import NO_SECRET, Secret
from shoal.kernel.settings_platforms import AccountSettings
from shoal.models.demo import DemoProvider
from shoal.platforms.account import ChatAccount
from shoal.platforms.record import Platform, SetupQuestion

class PagerSettings(AccountSettings, frozen=True, kw_only=True):
    host: str
    channels_max: int = 3
    password: Secret = NO_SECRET

class PagerAdapter(ChatAccount[PagerSettings]):
    limits = ChatLimits(text_chars_max=400)
    async def _connect(self, inbox):
        if self._settings.password.reveal() != "sesame":
            raise PlatformError("The pager refused the password.", permanent=True)
        self.connected.set()
        await asyncio.sleep(3600)
    async def close(self): ...
    async def post(self, post): return post.key
    async def open_thread(self, channel, text, key="", *, maybe_posted=False):
        return make_thread_id(self.platform, channel, "0")

PLATFORM = Platform(title="Pager", settings=PagerSettings, adapter="pager:PagerAdapter", questions=(
    SetupQuestion("host", "Host of the pager"), SetupQuestion("password", "Its password", "a password")))

class Tides(DemoProvider):
    name = "tides"
    def __init__(self): super().__init__(SystemClock())
"""


async def test_package_platforms_are_set_up_like_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "pager-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: pager\nVersion: 1\n")
    entries = "[shoal.platforms]\npager = pager:PLATFORM\n[shoal.providers]\ntides = pager:Tides\n"
    (record / "entry_points.txt").write_text(entries)
    (tmp_path / "pager.py").write_text(PAGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    platforms.cache_clear()
    try:
        async with running(tmp_path / "home") as stand:
            state = (await stand.client.get("/api/setup")).json()
            assert [chat["title"] for chat in state["chats"]][-1] == "Pager"
            assert state["models"][-1]["title"] == "tides, from an installed package"
            wrong = {"values": {"host": "pager.example", "password": "wrong"}}
            assert "refused the password" in await stand.put("/api/setup/platforms/pager", wrong, 400)
            right = {"values": {"host": "pager.example", "password": "sesame", "channels_max": "5"}}
            said = msgspec.json.decode(await stand.put("/api/setup/platforms/pager", right), type=dict[str, str])
            assert (said["title"], said["state"]) == ("Pager", "connected")
            assert "channels_max = 5" in stand.written()[0]
            assert stand.written()[1] == ["platforms.pager.password"]
            offered = await stand.post("/api/setup/providers/tides/test", {})
            assert msgspec.json.decode(offered) == {"models": ["demo"], "usual": "demo"}
            await stand.put("/api/setup/providers/tides", {"model": "demo"})
            assert stand.app[AgentRegistry].defaults.model == "tides/demo"
    finally:
        platforms.cache_clear()


async def test_an_owner_can_be_set_without_a_code(stand: Stand) -> None:
    await stand.put("/api/setup/platforms/telegram", {"values": {"token": BOT}})
    await stand.post("/api/setup/platforms/telegram/owner", {}, 400)
    await stand.post("/api/setup/platforms/telegram/owner", {"user": str(ADA)})
    await stand.telegram.says(ADA, "hello")
    assert "shoal pair" not in (await stand.telegram.sees(ADA, "I am the demo model")).text


async def test_causes_of_provider_failures_are_distinguished(stand: Stand) -> None:
    for entered, error in (
        (server(stand, key="wrong"), "key_refused"),
        ({"address": "http://127.0.0.1:9/v1"}, "unreachable"),
        ({"address": "nowhere"}, "invalid_input"),
    ):
        said = await stand.post("/api/setup/providers/server/test", entered, 400)
        assert msgspec.json.decode(said, type=dict[str, str])["error"] == error


async def test_a_model_that_does_not_answer_can_be_saved_anyway(stand: Stand) -> None:
    wanted = {"address": "http://127.0.0.1:9/v1", "model": "later"}
    await stand.put("/api/setup/providers/server", wanted, 400)
    await stand.put("/api/setup/providers/server", {**wanted, "keep": True})
    assert stand.app[AgentRegistry].defaults.model == "mine/later"
    assert "cannot be reached" in await stand.post("/api/setup/model/test", None, 400)


async def test_an_account_is_tried_as_it_is_configured(stand: Stand) -> None:
    await stand.post("/api/setup/platforms/telegram/test", {}, 400)
    await stand.put("/api/setup/platforms/telegram", {"values": {"token": BOT}})
    await stand.post("/api/setup/platforms/telegram/test", {})
    assert "belongs to a different bot" in await stand.put(
        "/api/setup/platforms/telegram", {"values": {"token": OTHER_BOT}}, 400
    )
    said = await stand.put("/api/setup/platforms/telegram", {"values": {"token": OTHER_BOT}, "another_bot": True}, 400)
    assert "rejected the token" in said


# ---- MCP servers ----


async def test_an_mcp_server_is_added_switched_off_and_removed(stand: Stand) -> None:
    wanted = {"name": "odd", "command": sys.executable, "args": [str(MCP_SERVER)], "env": {"A_KEY": "hidden-value"}}
    await stand.post("/api/mcp-servers", wanted, 201)
    await stand.app[McpServers].wait_ready()
    (shown,) = (await stand.client.get("/api/mcp-servers")).json()
    assert (shown["why"], shown["status"], "mcp_odd_echo" in shown["tools"]) == ("", "up", True)
    assert "hidden-value" not in stand.written()[0]
    assert stand.written()[1] == ["mcp.odd.env.A_KEY"]
    await stand.post("/api/mcp-servers", wanted, 409)
    off = await stand.client.patch("/api/mcp-servers/odd", json={"enabled": False})
    assert (off.json()["status"], stand.app[Registry].get("mcp_odd_echo")) == ("off", None)
    assert (await stand.client.delete("/api/mcp-servers/odd")).json() == {"removed": True}
    assert "mcp" not in stand.written()[0].replace("# ", "").partition("[sandbox]")[2]
    assert (await stand.client.get("/api/mcp-servers")).json() == []


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"command": sys.executable, "args": [str(MCP_SERVER), "fail"]}, "Shoal could not connect to the server."),
        ({"command": "no-such-program"}, "Shoal could not connect to the server."),
        ({}, "Specify either a command or a URL"),
        ({"command": "a", "url": "http://127.0.0.1:9"}, "Specify either a command or a URL"),
    ],
)
async def test_an_mcp_server_that_does_not_answer_is_not_added(
    stand: Stand, wanted: dict[str, object], told: str
) -> None:
    before = stand.written()
    assert told in await stand.post("/api/mcp-servers", {"name": "odd", **wanted}, 400)
    assert stand.written() == before


# ---- permissions ----


async def test_only_the_owner_sets_up(tmp_path: Path) -> None:
    async with running(tmp_path / "home", '[web]\nallow = ["ben"]\n') as stand:
        await another_admin_is_refused(stand)


async def another_admin_is_refused(stand: Stand) -> None:
    token = await stand.client.post("/api/tokens", json={"name": "ben", "scope": "admin", "person": "web:ben"})
    assert token.status_code == 201, token.text
    theirs = {"Authorization": f"Bearer {token.json()['secret']}"}
    for method, path, body in (
        ("GET", "/api/setup", None),
        ("POST", "/api/setup/providers/server/test", {}),
        ("PUT", "/api/setup/providers/server", {"model": "fake-1"}),
        ("PUT", "/api/setup/platforms/telegram", {"values": {}}),
        ("POST", "/api/setup/platforms/telegram/owner", {"code": "AAAAAAAA"}),
        ("PATCH", "/api/platforms/telegram", {"enabled": True}),
        ("POST", "/api/mcp-servers", {"name": "x", "command": "true"}),
        ("DELETE", "/api/mcp-servers/x", None),
    ):
        answer = await stand.client.request(method, path, json=body, headers=theirs)
        assert (answer.status_code, answer.json()["error"]) == (403, "owner"), path


async def test_a_model_titles_threads_once_enabled(stand: Stand) -> None:
    await stand.put("/api/setup/providers/server", server(stand, model="fake-1"))
    assert (await stand.client.get("/api/setup")).json()["titles"] == "auto"
    assert (await stand.client.patch("/api/setup", json={"titles": "model"})).json()["titles"] == "model"
    assert 'titles = "model"' in stand.written()[0]
    await stand.post("/api/threads/web:lobby:one/messages", {"text": "What is the tide?"}, 202)
    async with asyncio.timeout(60):
        while (await stand.client.get("/api/threads/web:lobby:one")).json()["title"] != "Ahoy":
            pass
    await stand.client.patch("/api/setup", json={"titles": "words"})
    assert stand.app[ThreadTitles].is_on is False


async def test_the_demo_model_writes_no_titles(stand: Stand) -> None:
    await stand.post("/api/threads/web:lobby:one/messages", {"text": "What is the tide?"}, 202)
    async with asyncio.timeout(60):
        while "web:lobby:one" not in stand.app[ThreadTitles].finished:
            await stand.client.get("/api/threads/web:lobby:one")
    assert (await stand.client.get("/api/threads/web:lobby:one")).json()["title"] == "What is the tide?"


async def test_mcp_server_arguments_are_owner_only_and_masked(stand: Stand) -> None:
    arguments = [str(MCP_SERVER), "--api-key", "short1", "--token=abc", "-v", "ghx9ab8cd7ef6gh5ij4kl3", "plain"]
    wanted = {"name": "odd", "command": sys.executable, "args": arguments, "env": {"A_KEY": "sesame-open"}}
    await stand.post("/api/mcp-servers", wanted, 201)
    (shown,) = (await stand.client.get("/api/mcp-servers")).json()
    assert shown["where"] == sys.executable
    assert shown["args"] == [str(MCP_SERVER), "--api-key", "•••", "--token=•••", "-v", "•••", "plain"]
    assert shown["secrets"] == ["A_KEY"]
    _, token = await stand.app[AccessTokens].create(NewToken("ben", "read"), "web:owner")
    seen = await stand.client.get("/api/mcp-servers", headers={"Authorization": f"Bearer {token}"})
    assert (seen.json()[0]["args"], seen.json()[0]["secrets"]) == ([], [])
    assert str(MCP_SERVER) not in seen.text


@pytest.mark.parametrize(
    ("url", "where", "rest"),
    [
        ("https://u:p@example.org:8443/mcp?key=1", "https://example.org:8443", ("/mcp?•••",)),
        ("https://example.org/s/a1b2c3d4e5f6g7h8i9j0k1/mcp", "https://example.org", ("/s/•••/mcp",)),
        ("https://example.org/", "https://example.org", ()),
    ],
)
def test_other_people_see_only_the_host_of_an_address(url: str, where: str, rest: tuple[str, ...]) -> None:
    assert shown_server(url, "", ()) == (where, rest)


async def test_a_backup_place_is_saved_once_a_backup_was_made_there(stand: Stand, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    moved = await stand.client.put("/api/backups", json={"to": str(target), "every_hours": 6})
    assert moved.status_code == 200
    shown = (await stand.client.get("/api/backups")).json()
    assert shown == moved.json()
    assert (shown["has_place"], shown["scheduled"], shown["to"], shown["every_hours"]) == (True, True, str(target), 6)
    assert len(shown["backups"]) == 1
    assert "every_hours = 6" in stand.written()[0]
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file" / "below"), "0" * 300, "a\0b", "s3://", "data/kept"):
        refused = await stand.client.put("/api/backups", json={"to": place})
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_input"), place
        shown = (await stand.client.get("/api/backups")).json()
        assert (shown["to"], shown["problem"]) == (str(target), "")


async def test_a_price_applies_from_the_next_call(stand: Stand) -> None:
    refused = await stand.client.patch("/api/setup", json={"price": {"model": "nobody/x", "input": 1, "output": 2}})
    assert (refused.status_code, "does not name a configured provider" in refused.text) == (400, True)
    await stand.put("/api/setup/providers/server", server(stand, model="fake-1"))
    price = {"model": "mine/fake-1", "input": 1, "output": 2}
    assert (await stand.client.patch("/api/setup", json={"price": price})).status_code == 200
    (shown,) = [model for model in (await stand.client.get("/api/models")).json() if model["name"] == "mine/fake-1"]
    assert (shown["input_usd"], shown["output_usd"]) == (1, 2)
