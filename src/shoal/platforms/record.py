"""The record of a platform, built in or from an installed package.

Built-in platforms are found like those of packages: by name, and nothing is imported before the name is configured. A
platform's folder contains its record in `__init__.py`, its settings and its adapter.
"""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from shoal.kernel.errors import ConfigError
from shoal.kernel.settings_platforms import AccountSettings

if TYPE_CHECKING:
    from shoal.platforms.account import ChatAccount

BUILT_IN = ("telegram", "discord", "slack", "matrix", "teams", "google_chat")
"""Order of platforms in setup. Their environment variables begin with the name in capitals."""


class SetupQuestion(NamedTuple):
    """A key that setup asks for: the question, what kind of secret it is (empty: none), and whether it can be left
    out."""

    key: str
    question: str
    secret: str = ""
    optional: bool = False


class Platform(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A chat platform as Shoal knows it.

    title           its name for people
    settings        the keys of its accounts
    adapter         MODULE:CLASS, a subclass of ChatAccount; imported when an account is enabled
    variables       the usual environment variables of its keys
    from_variables  the further keys of an account that these keys make up; None where they do not suffice
    questions       what setup asks for; a platform without any is configured by hand
    owner_question  asked for the owner's id where the platform calls the server, which does not run during setup
    fetches_with    the key with which the account fetches its messages, and needs no call
    package         what its extra imports first; empty where it needs none
    optional        a package of its extra that it works without, and what it cannot do then
    secret_shapes   kinds of its secrets with the pattern that each begins with
    """

    title: str
    settings: type[AccountSettings]
    adapter: str
    variables: Mapping[str, str] = {}
    from_variables: Callable[[Collection[str]], Mapping[str, object] | None] | None = None
    questions: tuple[SetupQuestion, ...] = ()
    owner_question: str = ""
    fetches_with: str = ""
    package: str = ""
    optional: tuple[str, str] | None = None
    secret_shapes: tuple[tuple[str, str], ...] = ()

    def load_adapter(self) -> "type[ChatAccount[AccountSettings]]":
        """Import the adapter. Raises ConfigError if that fails or it is not a ChatAccount."""
        from shoal.platforms.account import ChatAccount

        module, _, name = self.adapter.partition(":")
        try:
            adapter: object = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError([f"The adapter of {self.title} cannot be imported: {error}."]) from error
        if not (isinstance(adapter, type) and issubclass(adapter, ChatAccount)):
            raise ConfigError([f"{self.adapter} is not a subclass of shoal.platforms.account.ChatAccount."])
        return cast("type[ChatAccount[AccountSettings]]", adapter)


def built_in(name: str) -> Platform:
    """Return the record of a built-in platform, or of `webhook`."""
    record: object = import_module(f"shoal.platforms.{name}").PLATFORM
    assert isinstance(record, Platform)
    return record
