"""`shoal setup`: asks for what is missing, tries each answer at once, and writes what works.

Nothing is remembered but what is written: what `shoal.toml` says and works is not asked for again, so that leaving in
the middle (Ctrl-C) and beginning anew goes on at the first thing that is missing. Each step ends in one of three ways:
it works, somebody chose to do without, or one sentence says what is wrong.
"""

import asyncio
import importlib
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click

from shoal.config import Config, default_model, load_config, open_catalog
from shoal.config.defaults import DEMO, KNOWN_PROVIDERS, with_ollama
from shoal.config.load import parse_variable
from shoal.extensions import extension_sandbox
from shoal.feature import command_named
from shoal.installation import install_command
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import HomeLocked, InvalidInput, NotFound, ProviderRefused, ShoalError
from shoal.kernel.secret import Secret
from shoal.kernel.section import URL
from shoal.permissions.effects import Situation, in_words
from shoal.sandbox.choose import open_sandbox
from shoal.setup import choices, trying
from shoal.setup.choices import CHATS, KEYS, MODELS, OWN_SERVER, PACKAGES, QUESTIONS, USER_IDS
from shoal.setup.prices import PRICE_TODO, lacks_price, unpriced_note
from shoal.setup.writing import keep_secret, write_settings
from shoal.store.lock import is_held
from shoal.surfaces.cli import setup_checks
from shoal.surfaces.cli.client import Client, call_api, find_server
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import tell
from shoal.surfaces.cli.prompts import CHOICES_SHOWN, ask_from, ask_line, ask_yes, typing_unseen
from shoal.text.toml_edit import Value

NOTHING: Mapping[str, Value] = {}
STEPS = ("home", "model", "chat", "brief", "sandbox", "login")
EXIT_LEFT = 130


class LeftOut(Exception):
    """A step ends without having set anything; the text says why."""


@command(example="shoal setup model")
@click.argument("steps", nargs=-1, type=click.Choice(STEPS), metavar="[home|model|chat|brief|sandbox|login]…")
@click.option("--provider", type=click.Choice(list(MODELS)), help="Who runs the model.")
@click.option("--key", metavar="SOURCE", help="The provider's key: env:NAME, file:PATH, or - for a line of input.")
@click.option("--address", metavar="URL", help="Address of a server or Ollama, including the version part.")
@click.option("--model-file", metavar="FILE", help="The GGUF file of the provider local.")
@click.option("--model", metavar="NAME", help="The model. By default the provider's usual one.")
@click.option("--platform", type=click.Choice(list(CHATS)), help="Where people write to the agents first.")
@click.option("--token", metavar="SOURCE", help="The bot's token, given like --key.")
@click.option("--app-token", metavar="SOURCE", help="Slack's app-level token, given like --key.")
@click.option("--owner", metavar="USER", help="Your user id on the platform. By default a code in the chat finds it.")
@click.option("--brief", metavar="HOUR", help="A brief every morning at this hour, such as 8:00, where you wrote last.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other key, such as web.port=8421.")
@click.option("--login/--no-login", default=None, help="Start at login, or not.")
@click.option("--no-input", is_flag=True, help="Ask nothing. Missing answers stay missing.")
def setup(
    context: CommandContext,
    steps: tuple[str, ...],
    settings: tuple[str, ...],
    login: bool | None,
    no_input: bool,
    **given: str | None,
) -> int:
    """Ask for what is missing, try each answer at once, and write what works.

    Name steps to answer them again. Without a terminal nothing is asked.
    """
    logging.getLogger("shoal").addHandler(logging.NullHandler())  # what goes wrong is said here
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
        self._wrote: list[str] = []
        self._server: Client | None = None
        self._started: setup_checks.LoginService | None = None
        self._extra: dict[str, Value] = {}
        self._failed = False
        self._thread = ""
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InvalidInput(f"--set {setting} has no value. Write it as --set KEY=VALUE.")
            value = parse_variable(tuple(name.strip().split(".")), text)
            self._extra[name.strip()] = text if isinstance(value, dict) else cast("Value", value)

    def run(self) -> int:
        """Go through the steps; 1 when one of them failed."""
        with typing_unseen() if self._asks else nullcontext():
            return self._run()

    def _run(self) -> int:
        if self._asks:
            tell("Enter takes what stands in [brackets]. Ctrl-C leaves; `shoal setup` then goes on where you left.\n")
        try:
            self.home()
            for step in (self.model, self.chat, self.brief, self.sandbox, self.login):
                try:
                    step()
                except (LeftOut, ShoalError, OSError) as left:
                    self._failed = True
                    self.say(step.__name__, f"{trying.plain(left)} Nothing was changed.")
            if self._extra:
                self.write(self._extra)
        except (click.Abort, KeyboardInterrupt):
            tell("\nLeft. What is written stays.")
            self.finish("`shoal setup` goes on where you left.")
            return EXIT_LEFT
        self.finish(self.next_step())
        return 1 if self._failed else 0

    # ---- the steps ----

    def home(self) -> None:
        """The directory is ours, can be written, and no Shoal runs on it; then what is missing is made."""
        is_other = False
        while problem := setup_checks.not_usable(self._context.root):
            self.say("home", problem)
            if not self._asks:
                raise InvalidInput("Nothing was set up: name another directory with --home DIR.")
            self._context.root = Path(os.path.abspath(Path(ask_line("Directory")).expanduser()))
            is_other = True
        root = self._context.root
        if is_other:
            tell(f"From now on say so: `export SHOAL_HOME={shlex.quote(str(root))}`")
        self._server = find_server(self._context) if root.is_dir() else None
        if self._server is None and is_held(self._context.home.lock_file):
            service = setup_checks.login_service(root)
            stop = f" (`{service.stop}`)" if service is not None and service.file.exists() else ""
            raise HomeLocked(f"A Shoal runs on {root}. Stop it{stop}, then `shoal setup` again.")
        made = make_home(self._context.home)
        self._wrote += [str(root / name) for name in made if name in ("shoal.toml", "token")]
        self.say("home", f"{root} {'was made' if made else 'is there'}.")
        config = self.config({key: value for key, value in self._extra.items() if key.startswith("web.")})
        host, port = config.web.host, config.web.port
        if self._server is not None:
            self.say("home", f"Shoal runs at {self._server.address}. It takes up what is set here at once.")
            return
        while port and not setup_checks.is_free(host, port):
            self.say("page", f"Port {port} of {host} is used by another program.")
            if not self._asks:
                self.say("page", "Choose another: `shoal setup --set web.port=NUMBER`.")
                self._failed = self._failed or self._extra.pop("web.port", None) is not None
                return
            free = next((n for n in range(port + 1, port + 100) if setup_checks.is_free(host, n)), 0)
            typed = ask_line("Port of the page", str(free))
            if not typed.isdecimal() or int(typed) > 65535:
                tell("A port is a number up to 65535; with 0 the system chooses one at each start.")
                continue
            port = int(typed)
            if setup_checks.is_free(host, port):
                self.write({"web.port": port})

    def model(self) -> None:
        """A model answers."""
        config = asyncio.run(with_ollama(self.config(), os.environ))
        name = default_model(config)
        is_chosen = bool(config.model.name) or name != DEMO
        is_new = "model" in self._again or "provider" in self._given
        if is_chosen and not is_new and (name == DEMO or self.answers(config, name)):
            return
        while True:
            running = " (it runs)" if "ollama" in config.providers else ""
            texts = {**MODELS, "ollama": MODELS["ollama"] + running}
            provider = self.choose("provider", "Which model should answer?", texts, DEMO)
            if provider == DEMO:
                self.write({"model.name": DEMO} if "model" in self._again else {})
                self.say("model", "the built-in demo answers until there is another: `shoal setup model`.")
                return
            if self.provider(OWN_SERVER if provider == "server" else provider):
                return
            if not self._asks:
                raise LeftOut(f"The model of {provider} does not answer.")

    def provider(self, name: str) -> bool:
        """Ask for what a provider needs until its model answers, and write that; False to choose another.

        What was wrong is asked for again, and nothing else.
        """
        table, key = f"providers.{name}", ""
        usual = KNOWN_PROVIDERS[name].model if name in KNOWN_PROVIDERS else ""
        values = self.place_of(name)
        keeps_key = False
        while True:
            if values is None:
                return False
            try:
                if keeps_key:
                    pass
                elif name in KEYS:
                    key = self.secret("key", f"Key of {name}", KEYS[name])
                    if not key:
                        return False
                elif name not in ("local", "ollama"):
                    key = self.secret("key", "Its key, if it has one", "")
                    if key == "-":
                        return False
                config = self.config({**values, **({f"{table}.api_key": key} if key else {})}, table)
                models = asyncio.run(trying.offered(config, name))
                if models or usual or "model" in self._given:
                    break
                raise InvalidInput(f"{name} has no model yet. Load one there (Ollama: `ollama pull NAME`).")
            except (ShoalError, OSError) as error:
                if not self._asks:
                    raise
                self.say("model", trying.plain(error))
                is_refused = isinstance(error, ProviderRefused)
                keeps_key = name in KEYS and not is_refused and ask_yes("Try again with the same key?", default=True)
                if name not in KEYS and not (name == OWN_SERVER and is_refused):
                    values = self.place_of(name, str(values.get(f"{table}.base_url", "")))
        default = usual if usual in models else next(iter(models), usual)
        while True:
            model = default if name == "local" else self.model_of(models, default)
            chosen = f"{name}/{model.removeprefix(f'{name}/')}"
            if self._server is not None:
                if self.hand_over_model(name, values, key, model.removeprefix(f"{name}/")):
                    return True
            else:
                trial = {**values, "model.name": chosen, **({f"{table}.api_key": key} if key else {})}
                if self.answers(self.config(trial, table), chosen) or (
                    self._asks and ask_yes("Keep it anyway?", default=False)
                ):
                    if key:
                        values[f"{table}.api_key"] = self.keep(f"{table}.api_key", key)
                    self.write({**values, "model.name": chosen})
                    return True
            if not self._asks or name == "local" or not ask_yes("Choose another model of it?", default=True):
                return False

    def place_of(self, name: str, before: str = "") -> dict[str, Value] | None:
        """Where a provider is, as the file says it: an address or a model file, asked for until it can be one; None to
        choose another provider."""
        table = f"providers.{name}"
        if name in KEYS:
            return {}
        if name == "local" and not self.has_extra("local"):
            return None
        while True:
            try:
                if name == "local":
                    file = self.ask("model_file", "Path of the GGUF file (- goes back)")
                    return None if file == "-" else {f"{table}.model_file": gguf_file(file)}
                usual = KNOWN_PROVIDERS["ollama"].base_url if name == "ollama" else "http://127.0.0.1:8080/v1"
                address = self.ask("address", "Its address (- goes back)", before or usual).rstrip("/")
                if address == "-":
                    return None
                if not re.search(URL, address):
                    shown = "That" if choices.looks_secret(address) else address
                    raise InvalidInput(
                        f"{shown} is no address. Give one that begins with http:// or https://, as {usual}."
                    )
                kind: dict[str, Value] = {} if name == "ollama" else {f"{table}.kind": "openai"}
                return {f"{table}.base_url": address, **kind}
            except InvalidInput as error:
                if not self._asks:
                    raise
                self.say("model", str(error))

    def model_of(self, models: Sequence[str], default: str) -> str:
        """Which of a provider's models is to answer."""
        if "model" in self._given or not self._asks or len(models) < 2:
            return self.ask("model", "Model", default)
        tell("\nWhich of its models?" if len(models) <= CHOICES_SHOWN else f"\nWhich of its {len(models)} models?")
        first = [default, *(one for one in models if one != default)] if default else models
        return ask_from(first, "Model (a number, a name, or a part of one)", default)

    def hand_over_model(self, name: str, values: Mapping[str, Value], key: str, model: str) -> bool:
        """Have the Shoal that runs use a model, if it answers there."""
        table = f"providers.{name}"
        entered = {
            "key": key, "address": values.get(f"{table}.base_url", ""),
            "model_file": values.get(f"{table}.model_file", ""), "model": model,
        }  # fmt: skip
        path = f"/api/setup/providers/{'server' if name == OWN_SERVER else name}"
        try:
            answer = call_api(self._context, "PUT", path, entered, into=dict[str, str])
        except ShoalError as error:
            self.say("model", trying.plain(error))
            return False
        self.say("model", f"{answer['model']} answers: {answer['said']}")
        return True

    def answers(self, config: Config, name: str) -> bool:
        """Whether a model answers; what it says, or why not, is shown."""
        try:
            self.say("model", f"{name} answers: {asyncio.run(trying.answer_of(config, name))}")
        except ShoalError as error:
            self.say("model", trying.plain(error))
            return False
        if lacks_price(config, open_catalog(config, os.environ, SystemClock()), name):
            self.say("prices", f"{unpriced_note([name])} {PRICE_TODO}")
        return True

    def chat(self) -> None:
        """A bot is connected, and its owner is known."""
        config, platform = self.config(), ""
        for name in QUESTIONS:
            accounts = [one for one in config.platforms.of(name) if one.enabled]
            if not accounts or "chat" in self._again or self._given.get("platform", name) != name:
                continue
            if not self.connects(name):
                if self._asks:
                    break
                raise LeftOut(f"Correct [platforms.{name}] in {self._context.home.config_file}.")
            platform = name
            if any(one.owner or one.allow for one in accounts) or len(accounts) > 1:
                self.say("chat", f"{CHATS[name]} is connected.")
                return
            break
        if not platform and not self._asks and "platform" not in self._given:
            return
        values, secrets, chosen = dict[str, Value](), dict[str, str](), ""
        while not platform:
            platform = chosen or self.choose(
                "platform", "In which chat do you want to write to your agents?", CHATS, "none"
            )
            if platform == "none":
                return
            before = {**values} if chosen else {}
            values, secrets, chosen = dict[str, Value](), dict[str, str](), ""
            resting = next((one for one in config.platforms.of(platform) if not one.enabled), None)
            if resting is not None:  # an account that was imported, or switched off
                values[f"platforms.{platform}.enabled"] = True
            for key, question, kind in QUESTIONS[platform]:
                option = "app_token" if key == "app_token" else "token"
                name = f"platforms.{platform}.{key}"
                if resting is not None and getattr(resting, key) and option not in self._given:
                    continue
                if kind:
                    secrets[name] = self.secret(option, question, kind)
                    if not secrets[name]:  # back to the platforms
                        break
                else:
                    value = str(self._extra.pop(name, ""))
                    value = value or self.ask(f"set {name}=VALUE", question, str(before.get(name, "")))
                    if key.endswith("_file"):
                        value = str(Path(value).expanduser().absolute())
                    if value != "-":
                        values[name] = value
            is_whole = all(secrets.values()) and self.has_extra(platform)
            is_called = is_whole and platform in USER_IDS and f"platforms.{platform}.subscription" not in values
            if is_called and not config.web.public_url:
                question = "Address at which the internet reaches this server, https://…"
                given = str(self._extra.pop("web.public_url", ""))
                values["web.public_url"] = given or self.ask(
                    "set web.public_url=VALUE", question, str(before.get("web.public_url", ""))
                )
            if is_whole and self.connect(platform, values, secrets):
                continue
            if self._asks:
                chosen, platform = platform if is_whole else "", ""
            else:
                raise LeftOut(f"{CHATS[platform]} is not connected.")
        self.own(platform)

    def connect(self, platform: str, values: Mapping[str, Value], secrets: Mapping[str, str]) -> bool:
        """Connect a platform and write that, here or by the Shoal that runs; why it is not connected is shown."""
        if self._server is None:
            if not self.connects(platform, {**values, **secrets}):
                return False
            self.write({**values, **{name: self.keep(name, value) for name, value in secrets.items()}})
            return True
        table = f"platforms.{platform}."
        apart = {key: value for key, value in values.items() if not key.startswith(table) or key == f"{table}enabled"}
        fields = {
            key.removeprefix(table): str(value) for key, value in {**values, **secrets}.items() if key not in apart
        }
        try:
            self.write({key: value for key, value in apart.items() if not key.startswith(table)})
            call_api(self._context, "PUT", f"/api/setup/platforms/{platform}", {"values": fields})
        except ShoalError as error:
            self.say("chat", trying.plain(error))
            return False
        self.say("chat", f"{CHATS[platform]} is connected.")
        return True

    def connects(self, platform: str, values: Mapping[str, Value] = NOTHING) -> bool:
        """Whether a platform takes the token, also with values that are not written yet; why not is shown."""
        try:
            config = self.config(values, f"platforms.{platform}")
            asyncio.run(trying.try_account(config, platform))
        except ShoalError as error:
            self.say("chat", trying.plain(error))
            return False
        return True

    def own(self, platform: str) -> None:
        """Find out who the owner is: whoever is shown a code in the chat and types it here."""
        shown, table = CHATS[platform], f"platforms.{platform}"
        if "owner" in self._given:
            self.write({f"{table}.owner": self._given.pop("owner")})
            return
        if not self._asks:
            self.say("chat", f"{shown} is connected. Say who you are there: `shoal setup --owner USER`.")
            return
        account = self.config().platforms.of(platform)[0]
        if platform in USER_IDS and not getattr(account, "subscription", ""):
            address = f"{self.config().web.public_url.rstrip('/')}/platforms/{platform}"
            self.say("chat", f"{shown} takes the credentials. Give it {address} as the address to call.")
            user = self.ask("owner", f"{USER_IDS[platform]}; - to be let in later with `shoal pair CODE`")
            if user != "-":
                self.write({f"{table}.owner": user})
            return
        if self._server is not None:
            self.own_by_code(platform)
            return
        tell(f"{shown} is connected. Now write anything to your bot there, directly and not in a group…")
        config = self.config()
        with setup_checks.Hearing(self._context, config, platform) as hearing:
            first = hearing.first()
            tell(f"{first.author.name or first.author.id} wrote, and was sent a code.")
            while (prompt := hearing.owner(ask_line("Code"))) is None:
                tell("That is not the code in the chat. Is it not yours? Write to your bot, and it sends you your own.")
        self.write({f"{table}.owner": prompt.author.id})
        self._context.write(lambda store: setup_checks.greet(config, platform, store, prompt))
        self._thread = prompt.thread
        self.say("chat", f"You own the bot on {shown}; it has sent you a message.")

    def own_by_code(self, platform: str) -> None:
        """Have the Shoal that runs, which answers strangers with a code, take whoever has this one for the owner."""
        tell("Now write anything to your bot there, directly and not in a group. It answers with a code to type here.")
        while True:
            code = ask_line("Code (- to be let in later with `shoal pair CODE`)".replace("`", "'"))
            if code == "-":
                return
            try:
                call_api(self._context, "POST", f"/api/setup/platforms/{platform}/owner", {"code": code})
            except (NotFound, InvalidInput) as error:
                self.say("chat", str(error))
            else:
                self.say("chat", f"You own the bot on {CHATS[platform]}.")
                self.say("brief", "Once you have written to it, `shoal setup brief` sends you one every morning.")
                return

    def brief(self) -> None:
        """A brief comes every morning, if that is wanted: asked once a chat is connected."""
        brief, hour = command_named("brief"), self._given.pop("brief", "")
        if not isinstance(brief, click.Command):
            return
        asks = self._asks and not hour and (bool(self._thread) or "brief" in self._again)
        while hour or asks:
            if asks:
                question = "A brief every morning, of what was done and what waits? At what hour (- for none)"
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
        """Commands of agents run isolated, or it is said what would isolate them."""

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
        """The system starts Shoal by itself, if that is wanted."""
        service = setup_checks.login_service(self._context.root)
        wanted = self._given.pop("login", "")
        if service is None:
            if wanted == "y":
                raise LeftOut(
                    "This system has neither systemd for users nor launchd. `shoal docs install` tells other ways."
                )
            return
        if not wanted and service.file.exists() and "login" not in self._again:
            self.say("login", f"{service.file} starts Shoal.")
            return
        if self._server is not None:
            if wanted == "y":
                raise LeftOut("A Shoal runs already. Stop it, then `shoal setup --login`.")
            return
        if not wanted and self._asks:
            wanted = "y" if ask_yes("Start Shoal now, and at each login?", default=True) else "n"
        if wanted != "y":
            return
        if only_here := self.from_environment():
            names = ", ".join(only_here.values())
            question = f"{names} is set in this shell alone. Keep it in a file, so that the service has it?"
            if not self._asks or ask_yes(question, default=True):
                self.write({key: self.keep(key, os.environ[name]) for key, name in only_here.items()})
        setup_checks.start_at_login(service)
        self._wrote.append(str(service.file))
        self._started = service
        self.say("login", f"Shoal runs. Its log: {service.log}")

    def from_environment(self) -> dict[str, str]:
        """The keys whose secret stands in a variable of this shell, and the variable."""
        config, found = self.config(), dict[str, Secret]()
        for name, provider in config.providers.items():
            found[f"providers.{name}.api_key"] = provider.api_key
        for platform, questions in QUESTIONS.items():
            for account in config.platforms.of(platform)[:1]:
                found |= {f"platforms.{platform}.{key}": getattr(account, key) for key, _, kind in questions if kind}
        return {
            key: secret.name for key, secret in found.items() if secret.source == "env" and os.environ.get(secret.name)
        }

    # ---- asking, saying, writing ----

    def choose(self, name: str, question: str, choices: Mapping[str, str], default: str) -> str:
        """One of several, by its number, its name, or a part that only it has."""
        if name in self._given:
            return self._given.pop(name)
        if not self._asks:
            return default
        names = list(choices)
        tell(f"\n{question}")
        for number, text in enumerate(choices.values(), 1):
            tell(f"  {number}  {text}")
        while True:
            answer = ask_line("Number", "1").lower()
            if answer.isdecimal() and 1 <= int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            matches = [one for one, text in choices.items() if answer in f"{one} {text}".lower()]
            if len(matches) == 1 and not answer.isdecimal():
                return matches[0]
            tell(f"Choose a number from 1 to {len(names)}, or type a part of one name.")

    def ask(self, name: str, question: str, default: str = "") -> str:
        """A line, or what the option of that name said, which counts once. Raises LeftOut without a terminal."""
        if name in self._given:
            return self._given.pop(name)
        if not self._asks:
            if default:
                return default
            raise LeftOut(f"--{name.replace('_', '-')} is missing.")
        return ask_line(question, default)

    def secret(self, name: str, question: str, kind: str) -> str:
        """A secret, read without showing it; empty to go back. One that is plainly of another kind is refused."""
        while True:
            if name in self._given:
                value = read_source(self._given.pop(name))
                if not value:
                    raise LeftOut(f"What --{name.replace('_', '-')} names is empty.")
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
        """Whether what a choice needs is installed; offers to install it."""
        needed = PACKAGES.get(extra, "")
        if not needed or find_spec(needed) is not None:
            return True
        command = install_command(extra)
        self.say("extra", f"That needs the extra `{extra}`.")
        if not self._asks or not ask_yes(f"Install it now ({shlex.join(command)})?", default=True):
            self.say("extra", f"Run {shlex.join(command)}, then `shoal setup` again.")
            return False
        done = subprocess.run(command, check=False)
        importlib.invalidate_caches()
        if done.returncode or find_spec(needed) is None:
            self.say("extra", "It could not be installed; see above.")
            return False
        return True

    def say(self, topic: str, text: str) -> None:
        """A line, without secrets."""
        tell(self._context.redactor().redact(f"{topic:<8} {text}"))

    def config(self, values: Mapping[str, Value] = NOTHING, table: str = "") -> Config:
        """The configuration as it is, or as it would be with these values and what --set says of their table.

        Raises ConfigError with every problem.
        """
        if not values:
            return self._context.config()
        own = {key: value for key, value in self._extra.items() if key.startswith(f"{table}.")}
        return load_config(self._context.root, os.environ, {**own, **values})

    def keep(self, key: str, value: str) -> Value:
        """Put a secret into a file of its own, and return what the configuration says of it."""
        kept = keep_secret(self._context.home, key, value)
        self._wrote.append(str(self._context.home.secrets / key))
        return kept

    def write(self, values: Mapping[str, Value]) -> None:
        """Set keys of shoal.toml, with what --set says, and leave the rest of it as it is. Raises ConfigError."""
        tables = {key.rpartition(".")[0] for key in values}
        extra = {key: value for key, value in self._extra.items() if key.rpartition(".")[0] in tables}
        wanted = {**extra, **values}
        if not wanted:
            return
        write_settings(self._context.home, wanted)
        self._extra = {key: value for key, value in self._extra.items() if key not in wanted}
        self._wrote += [f"{self._context.home.config_file}: {key}" for key in wanted]
        self._context.config()

    def finish(self, last: str) -> None:
        """Say what was written, and what comes next."""
        for line in dict.fromkeys(self._wrote):
            tell(f"wrote    {line}")
        tell(last)

    def next_step(self) -> str:
        config = self._context.config()
        chats = [CHATS[name] for name in QUESTIONS if any(one.enabled for one in config.platforms.of(name))]
        where = f"write to your bot on {chats[0]}" if chats else 'open the page, or try `shoal ask "Hello"`'
        if self._started is not None or self._server is not None:
            return f"Next: {where}."
        return f"Next: `shoal run` starts it; then {where}."


def gguf_file(path: str) -> str:
    """The whole path of a model file. Raises InvalidInput where it is none."""
    file = Path(path).expanduser().absolute()
    try:
        with file.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}. Give the whole path of a file.") from error
    if begins != b"GGUF":
        raise InvalidInput(f"{file} is not a GGUF file. Choose one whose name ends in .gguf.")
    return str(file)


def read_source(source: str) -> str:
    """The secret that env:NAME, file:PATH or - names. Raises ConfigError, InvalidInput."""
    kind, _, name = source.partition(":")
    if source == "-":
        return sys.stdin.readline().strip()
    if kind == "env" and name:
        return Secret("env", name).reveal()
    if kind == "file" and name:
        return Secret("file", str(Path(name).expanduser())).reveal()
    raise InvalidInput("A secret is given as env:NAME, file:PATH, or - for a line of standard input.")
