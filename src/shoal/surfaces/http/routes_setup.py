"""Calls that configure a running server: a model, a chat and the owner's account in that chat."""

from typing import Annotated

import msgspec

from shoal.setup.chats import Account, ChatEntered, ChatSetup
from shoal.setup.live import LiveSetup, SetupState, Titles
from shoal.setup.models import ModelAnswered, ModelChosen, ModelSetup, OfferedModels, ProviderTried
from shoal.surfaces.http.endpoints import ADMINS, READERS, Routes
from shoal.threads.principals import Principal

routes = Routes()


class TokenTaken(msgspec.Struct, frozen=True):
    """The platform accepts the token."""

    taken: bool


class OwnerNamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The owner's user id on the platform, or the code that the owner received in the chat."""

    code: Annotated[str, msgspec.Meta(max_length=64)] = ""
    user: Annotated[str, msgspec.Meta(max_length=300)] = ""


class Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to connect or disconnect the account."""

    enabled: bool


class ModelPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a model (PROVIDER/MODEL), in US dollars per million tokens."""

    model: Annotated[str, msgspec.Meta(min_length=3, max_length=300)]
    input: Annotated[float, msgspec.Meta(ge=0, le=100_000)]
    output: Annotated[float, msgspec.Meta(ge=0, le=100_000)]


class SetupChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to the setup.

    titles: source of the titles of new threads: their first words, a model after the first turn, or a model only if
    it is cheap (`auto`).
    price: price of a model.
    """

    titles: Titles | None = None
    price: ModelPrice | None = None


@routes("GET /api/setup", ADMINS, owner_only=True)
async def setup_state(setup: LiveSetup) -> SetupState:
    """Return the current setup and the options. The response never contains secrets."""
    return setup.state()


@routes("PATCH /api/setup", ADMINS, owner_only=True)
async def change_setup(setup: LiveSetup, models: ModelSetup, by: Principal, body: SetupChange) -> SetupState:
    """Change how new threads are titled, or set the price of a model."""
    if body.titles is not None:
        await setup.set_titles(body.titles, by.person)
    if body.price is not None:
        await models.set_price(body.price.model, body.price.input, body.price.output, by.person)
    return setup.state()


@routes("POST /api/setup/model/test", ADMINS, owner_only=True)
async def test_model(models: ModelSetup) -> ModelAnswered:
    """Test the current model with a short request. 400 with the reason if the test fails."""
    return await models.test()


@routes("POST /api/setup/providers/{name}/test", ADMINS, owner_only=True)
async def test_provider(models: ModelSetup, name: str, body: ProviderTried) -> OfferedModels:
    """Test a key or an address by listing the provider's models. This changes nothing. 400 with the reason if the
    test fails. The error code can then be `key_refused` or `unreachable`.
    """
    return await models.offer(name, body)


@routes("PUT /api/setup/providers/{name}", ADMINS, owner_only=True)
async def use_model(models: ModelSetup, by: Principal, name: str, body: ModelChosen) -> ModelAnswered:
    """Test a model with a short request, and use it from the next turn on. 400 with the reason if the test fails.
    `keep` skips the test.
    """
    return await models.use(name, body, by.person)


@routes("GET /api/platforms", READERS)
async def platforms(chats: ChatSetup) -> tuple[Account, ...]:
    """List the platform accounts and their state."""
    return chats.accounts()


@routes("POST /api/setup/platforms/{platform}/test", ADMINS, owner_only=True)
async def test_platform(chats: ChatSetup, platform: str, body: ChatEntered) -> TokenTaken:
    """Test whether a platform accepts a token. Without values, test the configured token. This changes nothing.
    400 with the reason if the test fails.
    """
    await chats.test(platform, body)
    return TokenTaken(True)


@routes("PUT /api/setup/platforms/{platform}", ADMINS, owner_only=True)
async def connect_platform(chats: ChatSetup, by: Principal, platform: str, body: ChatEntered) -> Account:
    """Connect an account after the platform has accepted its token. 400 with the reason if the platform rejects it."""
    return await chats.connect(platform, body, by.person)


@routes("POST /api/setup/platforms/{platform}/owner", ADMINS, owner_only=True)
async def own_platform(chats: ChatSetup, by: Principal, platform: str, body: OwnerNamed) -> Account:
    """Make a person the owner on this platform. `user` is their user id, or `code` is the code that they received.
    404 if the code is unknown.
    """
    return await chats.own(platform, by.person, code=body.code, user=body.user)


@routes("PATCH /api/platforms/{platform}", ADMINS, owner_only=True)
async def switch_platform(chats: ChatSetup, by: Principal, platform: str, body: Switch) -> Account:
    """Connect or disconnect an account."""
    return await chats.switch(platform, body.enabled, by.person)
