"""Calls that set up a Shoal that runs: a model, a chat and its owner, MCP servers. Only the owner may make them."""

from typing import Annotated

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.setup.live import (
    Account,
    Entered,
    LiveSetup,
    McpServerState,
    NewMcpServer,
    OfferedModels,
    ProviderEntered,
    SetupState,
    Titles,
)
from shoal.surfaces.http.endpoints import ADMINS, READERS, Removed, Routes
from shoal.threads.principals import Principal

routes = Routes()


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


class ModelPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model (PROVIDER/MODEL) costs, in US dollars a million tokens."""

    model: Annotated[str, msgspec.Meta(min_length=3, max_length=300)]
    input: Annotated[float, msgspec.Meta(ge=0, le=100_000)]
    output: Annotated[float, msgspec.Meta(ge=0, le=100_000)]


class SetupChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to change. `titles`: new threads are called by their first words, by what a model finds after the
    first turn, or by the latter where it is cheap (`auto`)."""

    titles: Titles | None = None
    price: ModelPrice | None = None


@routes("GET /api/setup", ADMINS, owner_only=True)
async def setup_state(setup: LiveSetup) -> SetupState:
    """What is set up, and what can be; secrets are never shown."""
    return setup.state()


@routes("PATCH /api/setup", ADMINS, owner_only=True)
async def change_setup(setup: LiveSetup, by: Principal, body: SetupChange) -> SetupState:
    """Change what titles new threads, or the price of a model, from now on."""
    if body.titles is not None:
        await setup.set_titles(body.titles, by.person)
    if body.price is not None:
        await setup.set_price(body.price.model, body.price.input, body.price.output, by.person)
    return setup.state()


@routes("POST /api/setup/providers/{name}/test", ADMINS, owner_only=True)
async def test_provider(setup: LiveSetup, name: str, body: ProviderEntered) -> OfferedModels:
    """Try a key or an address: which models there are. Nothing is changed; 400 with the reason."""
    return await setup.offer(name, body)


@routes("PUT /api/setup/providers/{name}", ADMINS, owner_only=True)
async def use_model(
    agents: AgentRegistry, setup: LiveSetup, by: Principal, name: str, body: ModelChosen
) -> ModelAnswered:
    """Have a model answer from the next turn on, once it has said something; 400 with the reason why it does not."""
    said = await setup.use_model(name, body, body.model, by.person)
    return ModelAnswered(agents.defaults.model, said)


@routes("GET /api/platforms", READERS)
async def platforms(setup: LiveSetup) -> tuple[Account, ...]:
    """The accounts on platforms, and how each is."""
    return setup.accounts()


@routes("POST /api/setup/platforms/{platform}/test", ADMINS, owner_only=True)
async def test_platform(setup: LiveSetup, platform: str, body: ChatEntered) -> TokenTaken:
    """See whether a platform takes a token. Nothing is changed; 400 with the reason why it does not."""
    await setup.try_chat(platform, body.values)
    return TokenTaken(True)


@routes("PUT /api/setup/platforms/{platform}", ADMINS, owner_only=True)
async def connect_platform(setup: LiveSetup, by: Principal, platform: str, body: ChatEntered) -> Account:
    """Connect an account, once the platform has taken its token; 400 with the reason why it does not."""
    return await setup.connect_chat(platform, body.values, by.person)


@routes("POST /api/setup/platforms/{platform}/owner", ADMINS, owner_only=True)
async def own_platform(setup: LiveSetup, by: Principal, platform: str, body: OwnerCode) -> Account:
    """Make whoever was shown this pairing code the owner there; 404 when nobody was."""
    return await setup.own_chat(platform, body.code, by.person)


@routes("PATCH /api/platforms/{platform}", ADMINS, owner_only=True)
async def switch_platform(setup: LiveSetup, by: Principal, platform: str, body: Switch) -> Account:
    """Connect an account again, or end its connection."""
    return await setup.switch_chat(platform, body.enabled, by.person)


@routes("GET /api/mcp-servers", READERS)
async def mcp_servers(setup: LiveSetup, by: Principal) -> tuple[McpServerState, ...]:
    """The configured MCP servers, how each is, and its tools; the owner sees their arguments too, without secrets."""
    return setup.mcp(for_owner=by.asker.trust == "owner")


@routes("POST /api/mcp-servers", ADMINS, status=201, owner_only=True)
async def add_mcp_server(setup: LiveSetup, by: Principal, body: NewMcpServer) -> McpServerState:
    """Add an MCP server, once it has answered; 400 with the reason why it does not, 409 for a name that is taken."""
    return await setup.put_mcp(body, by.person)


@routes("PATCH /api/mcp-servers/{name}", ADMINS, owner_only=True)
async def switch_mcp_server(setup: LiveSetup, by: Principal, name: str, body: Switch) -> McpServerState:
    """Connect an MCP server again, or end its connection."""
    return await setup.switch_mcp(name, body.enabled, by.person)


@routes("DELETE /api/mcp-servers/{name}", ADMINS, owner_only=True)
async def remove_mcp_server(setup: LiveSetup, by: Principal, name: str) -> Removed:
    """Take an MCP server out of the configuration."""
    await setup.remove_mcp(name, by.person)
    return Removed(True)
