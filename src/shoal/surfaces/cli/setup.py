"""`shoal setup`: ask for missing settings, test each answer immediately, and write the working ones.

The only state is `shoal.toml`. Working settings are not asked for again, so after Ctrl-C the next run continues at the
first missing one. Each step succeeds, is skipped by the person, or ends with one sentence about the problem.
"""

import asyncio
import importlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from shoal.config import Config, load_config
from shoal.config.defaults import DEMO
from shoal.extensions import extension_sandbox
from shoal.feature import command_named
from shoal.installation import install_command
from shoal.kernel.errors import HomeLocked, InvalidInput, KeyRefused, NotFound, ShoalError, Unreachable
from shoal.kernel.secret import Secret
from shoal.kernel.settings_platforms import AccountSettings
from shoal.permissions.effects import Situation, in_words
from shoal.sandbox.choose import open_sandbox
from shoal.setup import choices
from shoal.setup.chats import Account, ChatChoice
from shoal.setup.live import SetupState
from shoal.setup.models import SERVER_ADDRESS, ModelAnswered, ModelChoice, OfferedModels, checked_address, gguf_file
from shoal.setup.trying import plain
from shoal.setup.writing import value_of, write_settings, write_with_secrets, written
from shoal.store.lock import is_held
from shoal.surfaces.cli import setup_checks
from shoal.surfaces.cli.client import find_server, path_part
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import echo
from shoal.surfaces.cli.prompts import CHOICES_SHOWN, ask_from, ask_line, ask_yes, typing_unseen
from shoal.surfaces.cli.setup_calls import SetupCalls, open_calls
from shoal.text.toml_edit import Value

NOTHING: Mapping[str, Value] = {}
STEPS = ("home", "model", "chat", "brief", "sandbox", "login")
EXIT_LEFT = 130


class LeftOut(Exception):
    """A step ended without a change. The text says why."""


@command(example="shoal setup model")
@click.argument("steps", nargs=-1, type=click.Choice(STEPS), metavar="[home|model|chat|brief|sandbox|login]…")
@click.option("--provider", type=click.Choice(choices.provider_names()), help="Model provider.")
@click.option(
    "--key", metavar="SOURCE", help="Provider key: env:NAME, file:PATH, or - to read one line from standard input."
)
@click.option("--address", metavar="URL", help="URL of a server or Ollama, including the version part.")
@click.option("--model-file", metavar="FILE", help="GGUF file for the local provider.")
@click.option("--model", metavar="NAME", help="Model. [default: the provider's recommended model]")
@click.option("--platform", type=click.Choice(choices.platform_names()), help="Chat platform to connect.")
@click.option("--token", metavar="SOURCE", help="Bot token, in the same form as --key.")
@click.option("--app-token", metavar="SOURCE", help="Slack app-level token, in the same form as --key.")
@click.option(
    "--owner", metavar="USER", help="Your user id on the platform. [default: identified by a code in the chat]"
)
@click.option(
    "--brief", metavar="HOUR", help="Send a brief every morning at this time, such as 8:00, to your own chat."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any other key, such as web.port=8421.")
@click.option("--login/--no-login", default=None, help="Whether to start Shoal at login.")
@click.option("--no-input", is_flag=True, help="Ask nothing. Unanswered settings stay unchanged.")
def setup(
    context: CommandContext,
    steps: tuple[str, ...],
    settings: tuple[str, ...],
    login: bool | None,
    no_input: bool,
    **given: str | None,
) -> int:
    """Ask for missing settings, test each answer immediately, and store the working ones. Name steps to answer them
    again. Without a terminal nothing is asked.
    """
    logging.getLogger("shoal").addHandler(logging.NullHandler())  # errors are reported here
    answers = {name: value for name, value in given.items() if value is not None}
    if login is not None:
        answers["login"] = "y" if login else "n"
    return Setup(context, answers, settings, steps, asks=sys.stdin.isatty() and not no_input).run()


class Setup:
    """One run of the command."""

    def __init__(
        self,
        context: CommandContext,
        given: dict[str, str],
        settings: tuple[str, ...],
        again: tuple[str, ...],
        *,
        asks: bool,
    ) -> None:
        self._context = context
        self._given = given
        self._again = again
        self._asks = asks
        self._made: list[str] = []
        self._before: Mapping[str, object] = {}
        self._runs = False
        self._started: setup_checks.LoginService | None = None
        self._extra: dict[str, str] = {}
        self._failed = False
        self._thread = ""
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InvalidInput(f"--set {setting} has no value. Write it as --set KEY=VALUE.")
            self._extra[name.strip()] = text

    def run(self) -> int:
        """Run the steps. Return 1 if one of them failed."""
        with typing_unseen() if self._asks else nullcontext():
            return self._run()

    def _run(self) -> int:
        if self._asks:
            echo("Enter accepts the value in [brackets]. After Ctrl-C, `shoal setup` continues where you left off.\n")
        try:
            self.home()
            for step in (self.model, self.chat, self.brief, self.sandbox, self.login):
                try:
                    step()
                except (LeftOut, ShoalError, OSError) as left:
                    self._failed = True
                    self.say(step.__name__, f"{plain(left)} Nothing was changed.")
            if self._extra:
                self.write({key: value_of(key, text) for key, text in self._extra.items()})
        except (click.Abort, KeyboardInterrupt):
            echo("\nSetup stopped. Settings so far are saved.")
            self.finish("Run `shoal setup` to continue where you left off.")
            return EXIT_LEFT
        self.finish(self.next_step())
        return 1 if self._failed else 0

    # ---- the steps ----

    def home(self) -> None:
        """Create the missing parts of the home directory. First check that it is ours and writable, and that no Shoal
        uses it.
        """
        is_other = False
        while problem := setup_checks.not_usable(self._context.root):
            self.say("home", problem)
            if not self._asks:
                raise InvalidInput("Nothing was set up. Choose another directory with --home DIR.")
            self._context.root = Path(os.path.abspath(Path(ask_line("Directory")).expanduser()))
            is_other = True
        root = self._context.root
        if is_other:
            echo(f"From now on, set `export SHOAL_HOME={shlex.quote(str(root))}`")
        server = find_server(self._context) if root.is_dir() else None
        self._runs = server is not None
        if server is None and is_held(self._context.home.lock_file):
            service = setup_checks.login_service(root)
            stop = f" (`{service.stop}`)" if service is not None and service.file.exists() else ""
            raise HomeLocked(f"Shoal is running on {root}. Stop it{stop}, then run `shoal setup` again.")
        made = make_home(self._context.home)
        self._made += [str(root / name) for name in made if name in ("shoal.toml", "token")]
        self._before = written(self._context.home)
        self.say("home", f"{root} {'was created' if made else 'exists'}.")
        config = self.config({key: value_of(key, self._extra[key]) for key in self.more("web")})
        host, port = config.web.host, config.web.port
        if server is not None:
            self.say("home", f"Shoal is running at {server.address}. Settings made here take effect immediately.")
            return
        while port and not setup_checks.is_free(host, port):
            self.say("page", f"Another program is using port {port} of {host}.")
            if not self._asks:
                self.say("page", "Choose another: `shoal setup --set web.port=NUMBER`.")
                self._failed = self._failed or self._extra.pop("web.port", None) is not None
                return
            free = next((n for n in range(port + 1, port + 100) if setup_checks.is_free(host, n)), 0)
            typed = ask_line("Port of the page", str(free))
            if not typed.isdecimal() or int(typed) > 65535:
                echo("A port is a number up to 65535; with 0 the system chooses one at each start.")
                continue
            port = int(typed)
            if setup_checks.is_free(host, port):
                self.write({"web.port": port})

    def model(self) -> None:
        """Set up a working model."""
        with open_calls(self._context) as calls:
            state = calls.call("GET", "/api/setup", into=SetupState)
            is_chosen = bool(self.config().model.name) or not state.is_demo
            is_new = "model" in self._again or "provider" in self._given
            if is_chosen and not is_new and (state.is_demo or self.answers(calls)):
                return
            while True:
                runs = {model.name: " (running)" for model in state.models if model.name == "ollama" and model.is_set}
                titles = {model.name: f"{model.title}{runs.get(model.name, '')}" for model in state.models}
                titles[DEMO] = choices.DEMO_TITLE
                provider = self.choose("provider", "Which model should answer?", titles, DEMO)
                if provider == DEMO:
                    if "model" in self._again:
                        calls.call("PUT", f"/api/setup/providers/{DEMO}", {"model": DEMO})
                    self.say("model", "the built-in demo answers until you run `shoal setup model`.")
                    return
                if self.provider(calls, next(model for model in state.models if model.name == provider)):
                    return
                if not self._asks:
                    raise LeftOut(f"The model of {provider} does not answer.")

    def answers(self, calls: SetupCalls) -> bool:
        """Test the current model and print its answer or the error. Return whether it answered."""
        try:
            self.say_answer(calls.call("POST", "/api/setup/model/test", into=ModelAnswered))
        except ShoalError as error:
            self.say("model", str(error))
            return False
        return True

    def say_answer(self, answer: ModelAnswered) -> None:
        self.say("model", f"{answer.model} answers: {answer.said}")
        if answer.note:
            self.say("prices", answer.note)

    def provider(self, calls: SetupCalls, choice: ModelChoice) -> bool:
        """Ask for a provider's settings until its model answers. Return False to choose another provider.

        Only the wrong setting is asked for again.
        """
        path = f"/api/setup/providers/{path_part(choice.name)}"
        table = f"providers.{choices.table_of(choice.name)}"
        settings = {key.removeprefix(f"{table}."): self._extra[key] for key in self.more(table)}
        place, key, keeps_key = self.place_of(choice), "", False
        while True:
            if place is None:
                return False
            try:
                if "key" in choice.wants and not keeps_key:
                    question = f"Key of {choice.name}" if choice.key_kind else "Key, if required"
                    key = self.secret("key", question, choice.key_kind)
                    if key == "-" or (choice.key_kind and not key):
                        return False
                entered = {**place, "key": key, "settings": settings}
                wanted = {**entered, "model": self._given.get("model", "")}
                offer = calls.call("POST", f"{path}/test", wanted, into=OfferedModels)
                break
            except (ShoalError, OSError) as error:
                if not self._asks:
                    raise
                self.say("model", str(error))
                is_down = isinstance(error, Unreachable)
                keeps_key = bool(choice.key_kind) and is_down and ask_yes("Try again with the same key?", default=True)
                if place and not ("key" in choice.wants and isinstance(error, KeyRefused)):
                    place = self.place_of(choice, place.get("address", ""))
        while True:
            model = offer.usual if choice.name == "local" else self.model_of(offer.models, offer.usual)
            if self.use_model(calls, path, {**entered, "model": model}):
                self.forget(table)
                return True
            if (
                not self._asks
                or choice.name == "local"
                or not ask_yes("Choose another model of this provider?", default=True)
            ):
                return False

    def use_model(self, calls: SetupCalls, path: str, chosen: Mapping[str, object]) -> bool:
        """Use a model that answers. A model that does not is used only if the person insists."""
        try:
            self.say_answer(calls.call("PUT", path, chosen, into=ModelAnswered))
        except ShoalError as error:
            self.say("model", str(error))
            if not self._asks or not ask_yes("Keep it anyway?", default=False):
                return False
            calls.call("PUT", path, {**chosen, "keep": True})
        return True

    def place_of(self, choice: ModelChoice, before: str = "") -> dict[str, str] | None:
        """Ask for a provider's location, an address or a model file, until it is valid. Return None to choose another
        provider.
        """
        if choice.name == "local" and not self.has_extra("local"):
            return None
        while True:
            try:
                if "model_file" in choice.wants:
                    file = self.ask("model_file", "Path of the GGUF file (- goes back)")
                    return None if file == "-" else {"model_file": gguf_file(os.path.abspath(Path(file).expanduser()))}
                if "address" not in choice.wants:
                    return {}
                usual = choice.address or SERVER_ADDRESS
                address = self.ask("address", "Address (- goes back)", before or usual)
                return None if address == "-" else {"address": checked_address(address, usual)}
            except InvalidInput as error:
                if not self._asks:
                    raise
                self.say("model", str(error))

    def model_of(self, models: Sequence[str], default: str) -> str:
        """Ask which of a provider's models to use."""
        if "model" in self._given or not self._asks or len(models) < 2:
            return self.ask("model", "Model", default)
        echo("\nWhich of its models?" if len(models) <= CHOICES_SHOWN else f"\nWhich of its {len(models)} models?")
        first = [default, *(model for model in models if model != default)] if default else models
        return ask_from(first, "Model (a number, a name, or part of a name)", default)

    def chat(self) -> None:
        """Connect a bot and identify its owner."""
        with open_calls(self._context) as calls:
            state = calls.call("GET", "/api/setup", into=SetupState)
            chats = {chat.name: chat for chat in state.chats}
            chat = self.connected_chat(calls, state.chats)
            if chat is None:
                if not self._asks and "platform" not in self._given:
                    return
                chat = self.connect_one(calls, chats)
                if chat is None:
                    return
            elif self.has_people(chat.name):
                self.say("chat", f"{chat.title} is connected.")
                return
            self.own(calls, chat)

    def connected_chat(self, calls: SetupCalls, chats: Sequence[ChatChoice]) -> ChatChoice | None:
        """Return the first chat with an account that connects, or None to ask for one."""
        for chat in chats:
            is_on = any(account.enabled for account in self.accounts(chat.name))
            if not is_on or "chat" in self._again or self._given.get("platform", chat.name) != chat.name:
                continue
            try:
                calls.call("POST", f"/api/setup/platforms/{chat.name}/test", {})
            except ShoalError as error:
                self.say("chat", str(error))
                if self._asks:
                    return None
                raise LeftOut(f"Correct [platforms.{chat.name}] in {self._context.home.config_file}.") from error
            return chat
        return None

    def accounts(self, platform: str) -> tuple[AccountSettings, ...]:
        return self.config().platforms.of(platform)

    def has_people(self, platform: str) -> bool:
        """Return whether at least one person may write to a platform's account."""
        accounts = [account for account in self.accounts(platform) if account.enabled]
        return len(accounts) > 1 or any(account.owner or account.allow for account in accounts)

    def connect_one(self, calls: SetupCalls, chats: Mapping[str, ChatChoice]) -> ChatChoice | None:
        """Ask for a chat and its settings until it is connected. Return None for no chat."""
        titles = {**{name: chat.title for name, chat in chats.items()}, choices.NO_CHAT: choices.NO_CHAT_TITLE}
        chat, before = None, dict[str, str]()
        while True:
            if chat is None:
                question = "In which chat do you want to write to your agents?"
                name = self.choose("platform", question, titles, choices.NO_CHAT)
                if name == choices.NO_CHAT:
                    return None
                if name not in chats:
                    raise LeftOut(
                        f"Setup does not support {name}. Add [platforms.{name}] to shoal.toml as its manual explains."
                    )
                chat, before = chats[name], {}
            entered = self.fields_of(chat, before) if self.has_extra(chat.name) else None
            if entered is not None and self.connect(calls, chat, entered):
                return chat
            if not self._asks:
                raise LeftOut(f"{chat.title} is not connected.")
            if entered is None:
                chat = None
            else:
                before = entered

    def fields_of(self, chat: ChatChoice, before: Mapping[str, str]) -> dict[str, str] | None:
        """Return a platform account's settings by key, and `public_url`, or None to choose another platform.

        An account that was imported or switched off keeps its settings.
        """
        table, values = f"platforms.{chat.name}", dict[str, str]()
        rests = any(not account.enabled for account in self.accounts(chat.name))
        for field in chat.fields:
            option = "app_token" if field.name == "app_token" else "token"
            name = f"{table}.{field.name}"
            if rests and field.is_set and option not in self._given:
                continue
            if field.secret:
                typed = self.secret(option, field.question, "" if field.optional else field.kind)
                if typed == "-" or not (typed or field.optional):  # choose another platform
                    return None
                values[field.name] = typed
                continue
            value = self._extra.pop(name, "") or self.ask(
                f"set {name}=VALUE", field.question, before.get(field.name, "-" if field.optional else "")
            )
            if field.name.endswith("_file"):
                value = os.path.abspath(Path(value).expanduser())
            if value != "-":
                values[field.name] = value
        if self.is_called(chat, values.get(chat.fetches_with, "")) and not self.config().web.public_url:
            question = "Public URL of this server, https://…"
            values["public_url"] = self._extra.pop("web.public_url", "") or self.ask(
                "set web.public_url=VALUE", question, before.get("public_url", "")
            )
        return values

    def is_called(self, chat: ChatChoice, fetches: str) -> bool:
        """Return whether the platform calls Shoal to deliver messages, which works only while Shoal is running."""
        return bool(chat.owner_question) and not fetches

    def connect(self, calls: SetupCalls, chat: ChatChoice, entered: Mapping[str, str]) -> bool:
        """Connect a platform. Prints the reason if that fails."""
        table = f"platforms.{chat.name}"
        more = {key.removeprefix(f"{table}."): self._extra[key] for key in self.more(table)}
        values = {**more, **entered}
        body = {"public_url": values.pop("public_url", ""), "values": values, "another_bot": not self._runs}
        try:
            calls.call("PUT", f"/api/setup/platforms/{chat.name}", body)
        except ShoalError as error:
            self.say("chat", str(error))
            return False
        self.forget(table)
        return True

    def own(self, calls: SetupCalls, chat: ChatChoice) -> None:
        """Identify the owner: the person who receives a code in the chat and types it here."""
        path = f"/api/setup/platforms/{chat.name}/owner"
        if "owner" in self._given:
            calls.call("POST", path, {"user": self._given.pop("owner")})
            return
        if not self._asks:
            self.say("chat", f"{chat.title} is connected. Say who you are there: `shoal setup --owner USER`.")
            return
        account = self.accounts(chat.name)[0]
        if self.is_called(chat, str(getattr(account, chat.fetches_with, "")) if chat.fetches_with else ""):
            address = f"{self.config().web.public_url.rstrip('/')}/platforms/{chat.name}"
            self.say("chat", f"{chat.title} accepts the credentials. Enter {address} there as the webhook URL.")
            user = self.ask("owner", f"{chat.owner_question}; - to get access later with `shoal pair CODE`")
            if user != "-":
                calls.call("POST", path, {"user": user})
            return
        write = "Now send your bot a direct message there"
        if not calls.receives:
            echo(f"{chat.title} is connected. {write}. It answers with a code. Enter it here.")
            if self.own_by_code(calls, path):
                self.say("chat", f"You own the bot on {chat.title}.")
                self.say("brief", "Once you have written to it, `shoal setup brief` sets up a brief every morning.")
            return
        echo(f"{chat.title} is connected. {write}…")
        with calls.hearing(chat.name) as hearing:
            first = calls.wait_for(hearing.first)
            echo(f"{first.author.name or first.author.id} wrote and received a code.")
            owner = self.own_by_code(calls, path)
            if owner:
                self._thread = hearing.thread_of(owner)
                self.say("chat", f"You own the bot on {chat.title}; it has sent you a message.")

    def own_by_code(self, calls: SetupCalls, path: str) -> str:
        """Ask for the code until it matches, and return its person, or an empty string if skipped."""
        while True:
            code = ask_line("Code (- to get access later with `shoal pair CODE`)".replace("`", "'"))
            if code == "-":
                return ""
            try:
                return calls.call("POST", path, {"code": code}, into=Account).owner
            except (NotFound, InvalidInput) as error:
                self.say("chat", str(error))

    def brief(self) -> None:
        """Offer a brief every morning, once a chat is connected."""
        brief, hour = command_named("brief"), self._given.pop("brief", "")
        if not isinstance(brief, click.Command):
            return
        asks = self._asks and not hour and (bool(self._thread) or "brief" in self._again)
        while hour or asks:
            if asks:
                question = "Time of the morning brief on finished and pending work (- for none)"
                hour = ask_line(question, "-")
                if hour == "-":
                    return
            try:
                brief.main([hour, "--thread", self._thread], standalone_mode=False, obj=self._context)
                return
            except InvalidInput as error:
                if not asks:
                    raise
                self.say("brief", str(error))

    def sandbox(self) -> None:
        """Report whether agents' commands run isolated, or the missing requirements."""

        async def trial() -> tuple[str, bool, str]:
            chosen = await open_sandbox(self.config().sandbox, extension_sandbox)
            await chosen.sandbox.close()
            return chosen.sandbox.name, chosen.sandbox.isolated, chosen.note

        name, isolated, note = asyncio.run(trial())
        if isolated:
            self.say("sandbox", f"commands run in {name}. {note}".rstrip())
        else:
            self.say("sandbox", f"{note} Debian: `apt-get install bubblewrap`.")
        if self.config().permissions.default_profile == "standard":
            sealed = isolated and self.config().sandbox.network == "off"
            self.say("asks", in_words(Situation(isolated=isolated, sealed=sealed)))

    def login(self) -> None:
        """Offer to have the system start Shoal at login."""
        service = setup_checks.login_service(self._context.root)
        wanted = self._given.pop("login", "")
        if service is None:
            if wanted == "y":
                raise LeftOut(
                    "This system has neither systemd for users nor launchd. `shoal docs install` describes other ways."
                )
            return
        if not wanted and service.file.exists() and "login" not in self._again:
            self.say("login", f"{service.file} starts Shoal.")
            return
        if self._runs:
            if wanted == "y":
                raise LeftOut("Shoal is already running. Stop it, then run `shoal setup --login`.")
            return
        if not wanted and self._asks:
            wanted = "y" if ask_yes("Start Shoal now, and at each login?", default=True) else "n"
        if wanted != "y":
            return
        if only_here := self.from_environment():
            names = ", ".join(only_here.values())
            question = f"{names} is set only in this shell. Store it in a file for the service?"
            if not self._asks or ask_yes(question, default=True):
                secrets = {key: os.environ[name] for key, name in only_here.items()}
                write_with_secrets(self._context.home, {}, secrets)
        setup_checks.start_at_login(service)
        self._made.append(str(service.file))
        self._started = service
        self.say("login", f"Shoal is running. Its log: {service.log}")

    def from_environment(self) -> dict[str, str]:
        """Return the settings whose secrets are in environment variables of this shell, with the variables' names."""
        config, secrets = self.config(), dict[str, Secret]()
        for name, provider in config.providers.items():
            secrets[f"providers.{name}.api_key"] = provider.api_key
        for platform, record in choices.platforms().items():
            for account in config.platforms.of(platform)[:1]:
                keys = [question.key for question in record.questions if question.secret]
                secrets |= {f"platforms.{platform}.{key}": getattr(account, key) for key in keys}
        return {
            key: secret.name
            for key, secret in secrets.items()
            if secret.source == "env" and os.environ.get(secret.name)
        }

    # ---- asking, printing, writing ----

    def choose(self, name: str, question: str, choices: Mapping[str, str], default: str) -> str:
        """Ask for one of several choices, given by its number, its name, or a unique part."""
        if name in self._given:
            return self._given.pop(name)
        if not self._asks:
            return default
        names = list(choices)
        echo(f"\n{question}")
        for number, text in enumerate(choices.values(), 1):
            echo(f"  {number}  {text}")
        while True:
            answer = ask_line("Number", "1").lower()
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            matches = [name for name, text in choices.items() if answer in f"{name} {text}".lower()]
            if len(matches) == 1 and not answer.isdecimal():
                return matches[0]
            echo(f"Choose a number from 1 to {len(names)}, or type part of a name.")

    def ask(self, name: str, question: str, default: str = "") -> str:
        """Ask for a line. An option of that name answers the question once. Raises LeftOut without a terminal."""
        if name in self._given:
            return self._given.pop(name)
        if not self._asks:
            if default:
                return default
            raise LeftOut(f"--{name.replace('_', '-')} is missing.")
        return ask_line(question, default)

    def secret(self, name: str, question: str, kind: str) -> str:
        """Read a secret without echo; an empty one goes back. A secret of an obviously different kind is rejected."""
        while True:
            if name in self._given:
                value = read_source(self._given.pop(name))
                if not value:
                    raise LeftOut(f"The value of --{name.replace('_', '-')} is empty.")
            elif self._asks:
                back = "not shown; Enter goes back" if kind else "not shown; Enter for none, - goes back"
                value = ask_line(f"{question} ({back})", is_secret=True, may_be_empty=True)
            else:
                value = ""
                if kind:
                    raise LeftOut(f"--{name.replace('_', '-')} is missing.")
            problem = choices.mistaken(value, kind) if value and kind else ""
            if not problem:
                return value
            if not self._asks:
                raise LeftOut(problem)
            self.say("model" if name == "key" else "chat", f"{problem} Try again.")

    def has_extra(self, extra: str) -> bool:
        """Return whether a choice's dependencies are installed. Offers to install missing ones."""
        if not choices.lacking_package(extra):
            return True
        command = install_command(extra)
        self.say("extra", f"This needs the `{extra}` extra.")
        if not self._asks or not ask_yes(f"Install it now ({shlex.join(command)})?", default=True):
            self.say("extra", f"Run {shlex.join(command)}, then `shoal setup` again.")
            return False
        done = subprocess.run(command, check=False)
        importlib.invalidate_caches()
        if done.returncode or choices.lacking_package(extra):
            self.say("extra", "The installation failed. See the output above.")
            return False
        return True

    def say(self, topic: str, text: str) -> None:
        """Print a line, without secrets."""
        echo(self._context.redactor().redact(f"{topic:<8} {text}"))

    def config(self, values: Mapping[str, Value] = NOTHING) -> Config:
        """Return the configuration, with these values applied. Raises ConfigError with every problem."""
        return load_config(self._context.root, os.environ, values) if values else self._context.config()

    def more(self, table: str) -> list[str]:
        """Return the keys of a table given by --set that are not written yet."""
        return [key for key in self._extra if key.startswith(f"{table}.")]

    def forget(self, table: str) -> None:
        """Drop the --set keys of a table after they are written."""
        for key in self.more(table):
            del self._extra[key]

    def write(self, values: Mapping[str, Value]) -> None:
        """Set keys of shoal.toml, with the --set keys of their tables. Raises ConfigError."""
        tables = {key.rpartition(".")[0] for key in values}
        more = {key: value_of(key, text) for key, text in self._extra.items() if key.rpartition(".")[0] in tables}
        write_settings(self._context.home, {**more, **values})
        self._extra = {key: text for key, text in self._extra.items() if key not in {**more, **values}}
        self._context.config()

    def finish(self, last: str) -> None:
        """List the written keys and suggest the next step."""
        after = written(self._context.home)
        changed = [name for name, value in after.items() if self._before.get(name) != value]
        for name in (*self._made, *changed):
            echo(f"wrote    {name}")
        echo(last)

    def next_step(self) -> str:
        """Return one sentence with the next step after the setup."""
        config = self._context.config()
        chats = [
            record.title
            for name, record in choices.platforms().items()
            if any(account.enabled for account in config.platforms.of(name))
        ]
        where = f"write to your bot on {chats[0]}" if chats else 'open the page, or try `shoal ask "Hello"`'
        if self._started is not None or self._runs:
            return f"Next: {where}."
        return f"Next: run `shoal run` to start Shoal, then {where}."


def read_source(source: str) -> str:
    """Return the secret from env:NAME, file:PATH or -. Raises ConfigError, InvalidInput."""
    kind, _, name = source.partition(":")
    if source == "-":
        return sys.stdin.readline().strip()
    if kind == "env" and name:
        return Secret("env", name).reveal()
    if kind == "file" and name:
        return Secret("file", str(Path(name).expanduser())).reveal()
    raise InvalidInput("Give a secret as env:NAME, file:PATH, or - to read one line from standard input.")
