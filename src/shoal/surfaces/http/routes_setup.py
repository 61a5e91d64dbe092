"""Calls that set up a Shoal that runs: a model, a chat and its owner, MCP servers. Only the owner may make them."""

from typing import Annotated, Literal

import msgspec

from shoal.actors.principals import Principal
from shoal.setup.live import Account, McpServerState, McpWanted, OfferedModels, ProviderWanted, SetupState
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes, WebContext, check_owner

routes = Routes()

Entered = Annotated[str, msgspec.Meta(max_length=4000)]
Key = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100, description="a name of letters, digits, - and _"
    ),
]
ServerName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64, description="a name of small letters, digits, - and _"
    ),
]


class ProviderEntered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was entered of a provider; an empty `key` is the one that is there already."""

    key: Entered = ""
    address: Entered = ""
    model_file: Entered = ""


class ModelChosen(ProviderEntered, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model of the provider, by its name there."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class ModelAnswered(msgspec.Struct, frozen=True):
    """The model that answers from now on, PROVIDER/MODEL, and what it said first."""

    model: str
    said: str


class ChatEntered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was entered of a platform's account, by the names of its fields; one left out stays as it is."""

    values: dict[str, Entered]


class TokenTaken(msgspec.Struct, frozen=True):
    """The platform takes what was entered."""

    taken: bool


class OwnerCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pairing code that the owner was shown in the chat."""

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On or off."""

    enabled: bool


class SetupChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether new threads are called by their first words, or by what a model finds after the first turn."""

    titles: Literal["words", "model"]


class NewMcpServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An MCP server: a `command` with its `args`, or a `url`. `env` and `headers` hold secrets."""

    name: ServerName
    command: Entered = ""
    args: tuple[Entered, ...] = ()
    url: Entered = ""
    env: dict[Key, Entered] = {}
    headers: dict[Key, Entered] = {}


@routes("GET /api/setup", ADMINS)
async def setup_state(web: WebContext, by: Principal) -> SetupState:
    """What is set up, and what can be; secrets are never shown."""
    check_owner(by)
    return web.setup.state()


@routes("PATCH /api/setup", ADMINS)
async def change_setup(web: WebContext, by: Principal, body: SetupChange) -> SetupState:
    """Say what titles new threads, from now on."""
    check_owner(by)
    await web.setup.set_titles(body.titles == "model", by.person)
    return web.setup.state()


@routes("POST /api/setup/providers/{name}/test", ADMINS)
async def test_provider(web: WebContext, by: Principal, name: str, body: ProviderEntered) -> OfferedModels:
    """Try a key or an address: which models there are. Nothing is changed; 400 with the reason."""
    check_owner(by)
    return await web.setup.offer(ProviderWanted(name, body.key, body.address, body.model_file))


@routes("PUT /api/setup/providers/{name}", ADMINS)
async def use_model(web: WebContext, by: Principal, name: str, body: ModelChosen) -> ModelAnswered:
    """Have a model answer from the next turn on, once it has said something; 400 with the reason why it does not."""
    check_owner(by)
    wanted = ProviderWanted(name, body.key, body.address, body.model_file)
    said = await web.setup.use_model(wanted, body.model, by.person)
    return ModelAnswered(web.app.agents.defaults.model, said)


@routes("GET /api/platforms", READERS)
async def platforms(web: WebContext) -> tuple[Account, ...]:
    """The accounts on platforms, and how each is."""
    return web.setup.accounts()


@routes("POST /api/setup/platforms/{platform}/test", ADMINS)
async def test_platform(web: WebContext, by: Principal, platform: str, body: ChatEntered) -> TokenTaken:
    """See whether a platform takes a token. Nothing is changed; 400 with the reason why it does not."""
    check_owner(by)
    await web.setup.try_chat(platform, body.values)
    return TokenTaken(True)


@routes("PUT /api/setup/platforms/{platform}", ADMINS)
async def connect_platform(web: WebContext, by: Principal, platform: str, body: ChatEntered) -> Account:
    """Connect an account, once the platform has taken its token; 400 with the reason why it does not."""
    check_owner(by)
    return await web.setup.connect_chat(platform, body.values, by.person)


@routes("POST /api/setup/platforms/{platform}/owner", ADMINS)
async def own_platform(web: WebContext, by: Principal, platform: str, body: OwnerCode) -> Account:
    """Make whoever was shown this pairing code the owner there; 404 when nobody was."""
    check_owner(by)
    return await web.setup.own_chat(platform, body.code, by.person)


@routes("PATCH /api/platforms/{platform}", ADMINS)
async def switch_platform(web: WebContext, by: Principal, platform: str, body: Switch) -> Account:
    """Connect an account again, or end its connection."""
    check_owner(by)
    return await web.setup.switch_chat(platform, body.enabled, by.person)


@routes("GET /api/mcp-servers", READERS)
async def mcp_servers(web: WebContext, by: Principal) -> tuple[McpServerState, ...]:
    """The configured MCP servers, how each is, and its tools; the owner sees their arguments too, without secrets."""
    return web.setup.mcp(for_owner=by.asker.trust == "owner")


@routes("POST /api/mcp-servers", ADMINS, status=201)
async def add_mcp_server(web: WebContext, by: Principal, body: NewMcpServer) -> McpServerState:
    """Add an MCP server, once it has answered; 400 with the reason why it does not, 409 for a name that is taken."""
    check_owner(by)
    wanted = McpWanted(body.command, body.args, body.url, body.env, body.headers)
    return await web.setup.put_mcp(body.name, wanted, by.person)


@routes("PATCH /api/mcp-servers/{name}", ADMINS)
async def switch_mcp_server(web: WebContext, by: Principal, name: str, body: Switch) -> McpServerState:
    """Connect an MCP server again, or end its connection."""
    check_owner(by)
    return await web.setup.switch_mcp(name, body.enabled, by.person)


@routes("DELETE /api/mcp-servers/{name}", ADMINS)
async def remove_mcp_server(web: WebContext, by: Principal, name: str) -> Removed:
    """Take an MCP server out of the configuration."""
    check_owner(by)
    await web.setup.remove_mcp(name, by.person)
    return Removed(True)
