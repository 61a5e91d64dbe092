"""Calls that set up a Shoal that runs: a model, a chat and its owner, MCP servers. Only the owner may make them."""

from typing import Annotated

import msgspec

from shoal.setup.chats import Account, ChatEntered, ChatSetup
from shoal.setup.live import LiveSetup, SetupState, Titles
from shoal.setup.models import ModelAnswered, ModelChosen, ModelSetup, OfferedModels, ProviderTried
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes
from shoal.threads.principals import Principal

routes = Routes()


class TokenTaken(msgspec.Struct, frozen=True):
    """The platform takes what was entered."""

    taken: bool


class OwnerNamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code that the owner was shown in the chat, or the owner's user id there."""

    code: Annotated[str, msgspec.Meta(max_length=64)] = ""
    user: Annotated[str, msgspec.Meta(max_length=300)] = ""


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
async def change_setup(setup: LiveSetup, models: ModelSetup, by: Principal, body: SetupChange) -> SetupState:
    """Change what titles new threads, or the price of a model, from now on."""
    if body.titles is not None:
        await setup.set_titles(body.titles, by.person)
    if body.price is not None:
        await models.set_price(body.price.model, body.price.input, body.price.output, by.person)
    return setup.state()


@routes("POST /api/setup/model/test", ADMINS, owner_only=True)
async def test_model(models: ModelSetup) -> ModelAnswered:
    """Have the present model say something; 400 with the reason why it does not."""
    return await models.test()


@routes("POST /api/setup/providers/{name}/test", ADMINS, owner_only=True)
async def test_provider(models: ModelSetup, name: str, body: ProviderTried) -> OfferedModels:
    """Try a key or an address: which models there are. Nothing is changed; 400 with the reason, `key_refused` or
    `unreachable` where it is one of these."""
    return await models.offer(name, body)


@routes("PUT /api/setup/providers/{name}", ADMINS, owner_only=True)
async def use_model(models: ModelSetup, by: Principal, name: str, body: ModelChosen) -> ModelAnswered:
    """Have a model answer from the next turn on, once it has said something; 400 with the reason why it does not.
    With `keep` it is not asked first."""
    return await models.use(name, body, by.person)


@routes("GET /api/platforms", READERS)
async def platforms(chats: ChatSetup) -> tuple[Account, ...]:
    """The accounts on platforms, and how each is."""
    return chats.accounts()


@routes("POST /api/setup/platforms/{platform}/test", ADMINS, owner_only=True)
async def test_platform(chats: ChatSetup, platform: str, body: ChatEntered) -> TokenTaken:
    """See whether a platform takes a token, or without values the one that is there. Nothing is changed; 400 with the
    reason why it does not."""
    await chats.test(platform, body)
    return TokenTaken(True)


@routes("PUT /api/setup/platforms/{platform}", ADMINS, owner_only=True)
async def connect_platform(chats: ChatSetup, by: Principal, platform: str, body: ChatEntered) -> Account:
    """Connect an account, once the platform has taken its token; 400 with the reason why it does not."""
    return await chats.connect(platform, body, by.person)


@routes("POST /api/setup/platforms/{platform}/owner", ADMINS, owner_only=True)
async def own_platform(chats: ChatSetup, by: Principal, platform: str, body: OwnerNamed) -> Account:
    """Make a user, or whoever was shown this code, the owner there; 404 for a code that nobody was shown."""
    return await chats.own(platform, by.person, code=body.code, user=body.user)


@routes("PATCH /api/platforms/{platform}", ADMINS, owner_only=True)
async def switch_platform(chats: ChatSetup, by: Principal, platform: str, body: Switch) -> Account:
    """Connect an account again, or end its connection."""
    return await chats.switch(platform, body.enabled, by.person)
