"""Setup of models: list a provider's models, test one, and make it the default."""

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shoal.agents.registry import AgentRegistry
from shoal.config.defaults import DEMO, KNOWN_PROVIDERS
from shoal.installation import how_to_add
from shoal.kernel.errors import InvalidInput
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.ports import Models
from shoal.kernel.section import URL
from shoal.kernel.settings import Price
from shoal.maintenance import missing_model
from shoal.models.catalog import Catalog
from shoal.notices import Notices
from shoal.permissions.redact import Redactor
from shoal.running import Runtime
from shoal.services import Services
from shoal.setup import trying
from shoal.setup.changes import Changes, Entered, SettingName
from shoal.setup.choices import (
    SERVER,
    key_kind,
    lacking_package,
    looks_secret,
    mistaken,
    provider_names,
    provider_titles,
    table_of,
)
from shoal.setup.prices import PRICE_TODO, lacks_price, unpriced_note
from shoal.setup.writing import value_of
from shoal.text.toml_edit import Value

SERVER_ADDRESS = "http://127.0.0.1:8080/v1"


class ModelChoice(msgspec.Struct, frozen=True):
    """A provider that can be set up.

    - `wants`: the inputs that the provider needs.
    - `is_set`: true if the provider is configured.
    - `has_key`: true if a key is stored. The key is never shown.
    - `address`: the current or default address.
    - `usual_model`: the default model.
    - `key_kind`: the kind of key that the provider requires.
    - `install`: the command that installs the provider's package, or empty if none is needed.
    """

    name: str
    title: str
    wants: tuple[Literal["key", "address", "model_file"], ...]
    is_set: bool
    has_key: bool
    address: str
    usual_model: str
    key_kind: str = ""
    install: str = ""


class ProviderEntered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Input for a provider.

    - `key`: empty to keep the current key.
    - `price`: in US dollars per million tokens, for all tokens or by kind. Null keeps the current price.
    - `settings`: more keys of the provider's table, in the format of environment variables.
    """

    key: Entered = ""
    address: Entered = ""
    model_file: Entered = ""
    price: Price | None = None
    settings: dict[SettingName, Entered] = {}


class ProviderTried(ProviderEntered, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Input for a provider to test. With a `model`, a provider that does not list its models is also accepted."""

    model: Annotated[str, msgspec.Meta(max_length=300)] = ""


class ModelChosen(ProviderEntered, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model to use, by the provider's name for it. With `keep`, the model is set without a test."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    keep: bool = False


class OfferedModels(msgspec.Struct, frozen=True):
    """The models of a provider. `usual` is the default model."""

    models: tuple[str, ...]
    usual: str


class ModelAnswered(msgspec.Struct, frozen=True):
    """The new model and its first answer.

    - `model`: the model as PROVIDER/MODEL.
    - `said`: the answer, or empty without a test.
    - `note`: what the person must do before messages to the model can succeed, or empty.
    """

    model: str
    said: str
    note: str = ""


class ModelSetup:
    """Tests models and sets the default one."""

    def __init__(self, services: Services) -> None:
        self._changes = services[Changes]
        self._config = services[LiveConfig]
        self._models = services[Models]
        self._agents = services[AgentRegistry]
        self._notices = services[Notices]
        self._redactor = services[Redactor]
        self._runtime = services[Runtime]

    @classmethod
    def of(cls, services: Services) -> "ModelSetup":
        return cls(services)

    def choices(self) -> tuple[ModelChoice, ...]:
        return tuple(self._choice(name, title) for name, title in provider_titles().items())

    def _choice(self, name: str, title: str) -> ModelChoice:
        known = KNOWN_PROVIDERS.get(name)
        row = self._config.current.providers.get(table_of(name))
        wants: tuple[Literal["key", "address", "model_file"], ...] = ()
        if name == SERVER:
            wants = ("address", "key")
        elif known is not None:
            wants = ("model_file",) if name == "local" else ("key",) if known.key_kind else ("address",)
        address = row.base_url if row is not None else known.base_url if known is not None else ""
        return ModelChoice(
            name,
            title,
            wants,
            row is not None,
            row is not None and bool(row.api_key),
            address,
            known.model if known is not None else "",
            key_kind(name),
            how_to_add(name) if lacking_package(name) else "",
        )

    async def test(self) -> ModelAnswered:
        """Test the current model. Raises InvalidInput with the reason if the model does not respond."""
        model = self._agents.defaults.model
        with self._changes.in_a_sentence():
            answer = await trying.answer_of(self._config.current, model)
        return self._answered(model, answer)

    async def offer(self, name: str, entered: ProviderTried) -> OfferedModels:
        """List a provider's models, which also tests its key. Changes nothing.

        Raises KeyRefused, Unreachable, or another InvalidInput with the reason.
        """
        values, secrets = self._provider(name, entered)
        with self._changes.in_a_sentence():
            if name in KNOWN_PROVIDERS or name == SERVER:
                models = await trying.offered(self._changes.loaded({**values, **secrets}), table_of(name))
            else:
                models = await trying.offered_by_package(self._config.current, name)
        usual = KNOWN_PROVIDERS[name].model if name in KNOWN_PROVIDERS else ""
        if not models and not usual and not entered.model:
            todo = "Load a model there (Ollama: `ollama pull NAME`), then try again."
            raise InvalidInput(f"{table_of(name)} has no model yet. {todo}")
        return OfferedModels(tuple(models), usual if usual in models or not models else models[0])

    async def use(self, name: str, entered: ModelChosen, by: str) -> ModelAnswered:
        """Test a model and use it from the next turn. With `entered.keep`, the model is not tested.

        Raises InvalidInput with the reason. Nothing is changed in that case.
        """
        table = table_of(name)
        chosen = DEMO if name == DEMO else f"{table}/{entered.model.removeprefix(f'{table}/')}"
        async with self._changes.changing(f"model {chosen}", by):
            values, secrets = ({}, {}) if name == DEMO else self._provider(name, entered)
            values["model.name"] = chosen
            answer = ""
            if not entered.keep:
                answer = await trying.answer_of(self._changes.loaded({**values, **secrets}), chosen)
            config = await self._changes.write(values, secrets)
            before = missing_model(self._models, self._agents.defaults.model)
            self._config.current = msgspec.structs.replace(
                self._config.current, providers=config.providers, model=config.model
            )
            await self._replace(table)
            self._agents.answer_with(chosen)
            self._notices.notes = [note for note in self._notices.notes if note != before]
            return self._answered(chosen, answer)

    async def set_price(self, model: str, input_usd: float, output_usd: float, by: str) -> None:
        """Set a model's price in US dollars per million tokens, starting with its next call. Raises InvalidInput."""
        name, _, at_provider = model.partition("/")
        row = self._config.current.providers.get(name)
        if row is None or not at_provider:
            known = ", ".join(sorted(self._config.current.providers)) or "none yet"
            raise InvalidInput(
                f"{model[:80]!r} does not name a configured provider. Specify the model as PROVIDER/MODEL. "
                f"Providers: {known}."
            )
        async with self._changes.changing(f"price of {model}", by):
            prices: dict[str, Value] = {
                name: {**price} if isinstance(price, dict) else price for name, price in row.prices.items()
            }
            prices[at_provider] = {"input": input_usd, "output": output_usd}
            config = await self._changes.write({f"providers.{name}.prices": prices}, {})
            self._config.current = msgspec.structs.replace(self._config.current, providers=config.providers)
            await self._replace(name)

    async def _replace(self, provider: str) -> None:
        row = self._config.current.providers.get(provider)
        if isinstance(self._models, Catalog) and row is not None:
            self._models.replace(provider, row)
            if self._runtime.state != "stopped":
                await self._models.refresh()

    def _answered(self, model: str, answer: str) -> ModelAnswered:
        unpriced = lacks_price(self._config.current, self._models, model)
        return ModelAnswered(model, answer, f"{unpriced_note([model])} {PRICE_TODO}" if unpriced else "")

    def _provider(self, name: str, entered: ProviderEntered) -> tuple[dict[str, Value], dict[str, str]]:
        """Return the values and the secrets to write, each by key. Raises InvalidInput."""
        if name not in provider_titles():
            raise InvalidInput(f"Setup has no provider named {name[:80]!r}. Providers: {', '.join(provider_names())}.")
        table, known = f"providers.{table_of(name)}", KNOWN_PROVIDERS.get(name)
        row = self._config.current.providers.get(table_of(name))
        values: dict[str, Value] = {
            f"{table}.{key}": value_of(f"{table}.{key}", text) for key, text in entered.settings.items()
        }
        secrets = dict[str, str]()
        if lacking_package(name):
            raise InvalidInput(f"This provider needs the `{name}` extra. {how_to_add(name)}, then restart Shoal.")
        if known is None and name != SERVER:
            return values, secrets  # the package configures its provider itself
        kind = key_kind(name)
        if name == "local":
            values[f"{table}.model_file"] = gguf_file(entered.model_file or (row.model_file if row is not None else ""))
        elif not kind:
            before = row.base_url if row is not None else known.base_url if known is not None else ""
            address = checked_address(entered.address or before, known.base_url if known is not None else "")
            if row is not None and row.api_key and address != row.base_url.rstrip("/") and not entered.key:
                raise InvalidInput(
                    "To use a different URL, enter the key again. Shoal does not send the stored key to a new URL."
                )
            values[f"{table}.base_url"] = address
            if name == SERVER:
                values[f"{table}.kind"] = "openai"
        if entered.price is not None:
            values[f"{table}.price"] = {**entered.price} if isinstance(entered.price, dict) else entered.price
        if entered.key:
            self._redactor.learn(entered.key)
            if problem := mistaken(entered.key, kind) if kind else "":
                raise InvalidInput(problem)
            secrets[f"{table}.api_key"] = entered.key
        elif kind and (row is None or not row.api_key):
            raise InvalidInput("The key is missing.")
        return values, secrets


def checked_address(text: str, usual: str = "") -> str:
    """Check an address and remove its trailing slash. Raises InvalidInput with a message that never contains a
    possible key.
    """
    address = text.rstrip("/")
    if not re.search(URL, address):
        shown = "That" if looks_secret(address) else address[:300]
        example = usual or SERVER_ADDRESS
        raise InvalidInput(f"{shown} is not a URL. It must begin with http:// or https://, for example {example}.")
    return address


def gguf_file(path: str) -> str:
    """Return the absolute path of a GGUF file on Shoal's machine. Raises InvalidInput if it is unreadable or
    not GGUF.
    """
    file = Path(path).expanduser()
    if not file.is_absolute():
        raise InvalidInput(f"{path[:300]!r} is not the absolute path of a GGUF file on Shoal's machine.")
    try:
        with file.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise InvalidInput(f"Shoal cannot read {file}: {error.strerror}. Enter the absolute path of a file.") from error
    if begins != b"GGUF":
        raise InvalidInput(f"{file} is not a GGUF file. Choose a file whose name ends in .gguf.")
    return str(file)
