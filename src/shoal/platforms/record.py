"""Records that describe built-in platforms and platforms from installed packages.

A platform is imported only if the configuration names it. Its folder contains the record in `__init__.py`, the settings
and the adapter.
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
"""Names of the built-in platforms, in the order shown in setup. A platform's environment variables start with its name
in upper case.
"""


class SetupQuestion(NamedTuple):
    """A settings key that setup asks for. `secret` is the kind of secret, or empty if the value is not a secret."""

    key: str
    question: str
    secret: str = ""
    optional: bool = False


class Platform(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Description of a chat platform.

    - `title`: name shown to people.
    - `settings`: settings class of its accounts.
    - `adapter`: MODULE:CLASS of a subclass of ChatAccount. It is imported when an account is enabled.
    - `variables`: usual environment variable for each key.
    - `from_variables`: function that returns additional keys for these variables, or None if they are not sufficient.
    - `questions`: questions that setup asks. A platform without questions is configured by hand.
    - `owner_question`: question for the owner's id. Needed if the platform calls the server, which does not run during
      setup.
    - `fetches_with`: key that is set if the account fetches its messages. Otherwise, the platform calls the server.
    - `package`: module whose presence shows that the platform's extra is installed, or empty.
    - `optional`: optional package of the extra, and the limitation without it.
    - `secret_shapes`: kinds of secrets, each with a pattern that matches the start of the secret.
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
        """Import the adapter. Raises ConfigError if the import fails or the class is not a ChatAccount."""
        from shoal.platforms.account import ChatAccount

        module, _, name = self.adapter.partition(":")
        try:
            adapter: object = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError([f"Importing the adapter for {self.title} failed: {error}."]) from error
        if not (isinstance(adapter, type) and issubclass(adapter, ChatAccount)):
            raise ConfigError([f"{self.adapter} is not a subclass of shoal.platforms.account.ChatAccount."])
        return cast("type[ChatAccount[AccountSettings]]", adapter)


def built_in(name: str) -> Platform:
    """Return the record of a built-in platform or of `webhook`."""
    record: object = import_module(f"shoal.platforms.{name}").PLATFORM
    assert isinstance(record, Platform)
    return record
