"""`shoal setup`: ask for missing settings, test each answer immediately, and store the settings that work.

All state is in `shoal.toml`. Setup does not ask again for settings that work, so after Ctrl-C the next run continues at
the first missing setting. Each step succeeds, is skipped, or prints one sentence about the problem.
"""

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import click

from shoal.extensions import extension_sandbox
from shoal.feature import command_named
from shoal.kernel.errors import HomeLocked, InvalidInput, ShoalError
from shoal.kernel.secret import Secret
from shoal.permissions.effects import Situation, in_words
from shoal.sandbox.choose import open_sandbox
from shoal.setup import choices
from shoal.setup.trying import plain
from shoal.setup.writing import value_of, write_with_secrets, written
from shoal.store.lock import is_held
from shoal.surfaces.cli import setup_checks
from shoal.surfaces.cli.client import find_server
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.init import make_home
from shoal.surfaces.cli.output import echo
from shoal.surfaces.cli.prompts import ask_line, ask_yes, typing_unseen
from shoal.surfaces.cli.setup_chat import ChatStep
from shoal.surfaces.cli.setup_model import ModelStep
from shoal.surfaces.cli.setup_session import LeftOut, SetupSession

STEPS = ("home", "model", "chat", "brief", "sandbox", "login")
EXIT_LEFT = 130


@command(example="shoal setup model")
@click.argument("steps", nargs=-1, type=click.Choice(STEPS), metavar="[home|model|chat|brief|sandbox|login]…")
@click.option("--provider", type=click.Choice(choices.provider_names()), help="Model provider.")
@click.option(
    "--key", metavar="SOURCE", help="Provider key: env:NAME, file:PATH, or - to read one line from standard input."
)
@click.option(
    "--address",
    metavar="URL",
    help="URL of Ollama or an OpenAI-compatible server, including the API version (usually /v1).",
)
@click.option("--model-file", metavar="FILE", help="GGUF file for the local provider.")
@click.option("--model", metavar="NAME", help="Model. [default: the provider's recommended model]")
@click.option("--platform", type=click.Choice(choices.platform_names()), help="Chat platform to connect.")
@click.option("--token", metavar="SOURCE", help="Bot token, in the same form as --key.")
@click.option("--app-token", metavar="SOURCE", help="Slack app-level token, in the same form as --key.")
@click.option(
    "--owner", metavar="USER", help="Your user id on the platform. [default: identified by a code in the chat]"
)
@click.option("--brief", metavar="HOUR", help="Send a brief to your own chat every morning at this time, such as 8:00.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any other key, such as web.port=8421.")
@click.option("--login/--no-login", default=None, help="Whether to start Shoal at login.")
@click.option("--no-input", is_flag=True, help="Do not ask questions. Settings that you do not pass stay unchanged.")
def setup(
    context: CommandContext,
    steps: tuple[str, ...],
    settings: tuple[str, ...],
    login: bool | None,
    no_input: bool,
    **given: str | None,
) -> int:
    """Ask for missing settings, test each answer immediately, and store the settings that work.

    To answer the questions of a step again, pass the step's name. Without a terminal, Shoal asks nothing.
    """
    logging.getLogger("shoal").addHandler(logging.NullHandler())  # setup reports errors itself
    answers = {name: value for name, value in given.items() if value is not None}
    if login is not None:
        answers["login"] = "y" if login else "n"
    session = SetupSession(context, answers, settings, steps, asks=sys.stdin.isatty() and not no_input)
    return Setup(session).run()


class Setup:
    def __init__(self, session: SetupSession) -> None:
        self._session = session
        self._model = ModelStep(session)
        self._chat = ChatStep(session)
        self._made: list[str] = []
        self._before: Mapping[str, object] = {}
        self._started: setup_checks.LoginService | None = None
        self._failed = False

    def run(self) -> int:
        """Run the steps and return the exit code: 1 if a step failed, 130 if the person stopped the setup."""
        with typing_unseen() if self._session.asks else nullcontext():
            return self._run()

    def _run(self) -> int:
        if self._session.asks:
            echo("Enter accepts the value in [brackets]. After Ctrl-C, `shoal setup` continues where you left off.\n")
        try:
            self.home()
            steps = {
                "model": self._model.run,
                "chat": self._chat.run,
                "brief": self.brief,
                "sandbox": self.sandbox,
                "login": self.login,
            }
            for name, step in steps.items():
                try:
                    step()
                except (LeftOut, ShoalError, OSError) as left:
                    self._failed = True
                    self._session.say(name, f"{plain(left)} Nothing was changed.")
            if self._session.extra:
                self._session.write({key: value_of(key, text) for key, text in self._session.extra.items()})
        except (click.Abort, KeyboardInterrupt):
            echo("\nSetup stopped. The settings that you completed are saved.")
            self.finish("Run `shoal setup` to continue where you left off.")
            return EXIT_LEFT
        self.finish(self.next_step())
        return 1 if self._failed else 0

    # ---- the steps ----

    def home(self) -> None:
        is_other = False
        while problem := setup_checks.not_usable(self._session.context.root):
            self._session.say("home", problem)
            if not self._session.asks:
                raise InvalidInput("Nothing was set up. Choose another directory with --home DIR.")
            self._session.context.root = Path(os.path.abspath(Path(ask_line("Directory")).expanduser()))
            is_other = True
        root = self._session.context.root
        if is_other:
            echo(
                f"To use this directory from now on, add `export SHOAL_HOME={shlex.quote(str(root))}` to your shell "
                "profile."
            )
        server = find_server(self._session.context) if root.is_dir() else None
        self._session.runs = server is not None
        if server is None and is_held(self._session.context.home.lock_file):
            service = setup_checks.login_service(root)
            stop = f" (`{service.stop}`)" if service is not None and service.file.exists() else ""
            raise HomeLocked(f"Shoal is using {root}. Stop it{stop}, then run `shoal setup` again.")
        made = make_home(self._session.context.home)
        self._made += [str(root / name) for name in made if name in ("shoal.toml", "token")]
        self._before = written(self._session.context.home)
        self._session.say("home", f"{root} {'was created' if made else 'exists'}.")
        config = self._session.config(
            {key: value_of(key, self._session.extra[key]) for key in self._session.more("web")}
        )
        host, port = config.web.host, config.web.port
        if server is not None:
            when = "Changes to models and chats take effect immediately. Restart Shoal after other changes."
            self._session.say("home", f"Shoal is running at {server.address}. {when}")
            return
        while port and not setup_checks.is_free(host, port):
            self._session.say("page", f"Another program is using port {port} on {host}.")
            if not self._session.asks:
                self._session.say("page", "Choose another port with `shoal setup --set web.port=NUMBER`.")
                self._failed = self._failed or self._session.extra.pop("web.port", None) is not None
                return
            free = next((n for n in range(port + 1, port + 100) if setup_checks.is_free(host, n)), 0)
            typed = ask_line("Port of the page", str(free))
            if not typed.isdecimal() or int(typed) > 65535:
                echo("The port must be a number up to 65535. With 0, the system chooses a free port at each start.")
                continue
            port = int(typed)
            if setup_checks.is_free(host, port):
                self._session.write({"web.port": port})

    def brief(self) -> None:
        brief, hour = command_named("brief"), self._session.given.pop("brief", "")
        if not isinstance(brief, click.Command):
            return
        asks = self._session.asks and not hour and (bool(self._chat.thread) or "brief" in self._session.again)
        while hour or asks:
            if asks:
                question = "Time of the morning brief on finished and pending work (- for none)"
                hour = ask_line(question, "-")
                if hour == "-":
                    return
            try:
                brief.main([hour, "--thread", self._chat.thread], standalone_mode=False, obj=self._session.context)
                return
            except InvalidInput as error:
                if not asks:
                    raise
                self._session.say("brief", str(error))

    def sandbox(self) -> None:
        async def trial() -> tuple[str, bool, str]:
            chosen = await open_sandbox(self._session.config().sandbox, extension_sandbox)
            await chosen.sandbox.close()
            return chosen.sandbox.name, chosen.sandbox.isolated, chosen.note

        name, isolated, note = asyncio.run(trial())
        if isolated:
            self._session.say("sandbox", f"commands run in {name}. {note}".rstrip())
        else:
            self._session.say("sandbox", f"{note} `shoal docs sandbox` lists what a sandbox needs.")
        if self._session.config().permissions.default_profile == "standard":
            sealed = isolated and self._session.config().sandbox.network == "off"
            self._session.say("asks", in_words(Situation(isolated=isolated, sealed=sealed)))

    def login(self) -> None:
        service = setup_checks.login_service(self._session.context.root)
        wanted = self._session.given.pop("login", "")
        if service is None:
            if wanted == "y":
                raise LeftOut(
                    "This system has neither systemd user services nor launchd. Run `shoal docs install` for other "
                    "ways to start Shoal."
                )
            return
        if not wanted and service.file.exists() and "login" not in self._session.again:
            self._session.say("login", f"{service.file} starts Shoal at login.")
            return
        if self._session.runs:
            if wanted == "y":
                raise LeftOut("Shoal is already running. Stop it, then run `shoal setup --login`.")
            return
        if not wanted and self._session.asks:
            wanted = "y" if ask_yes("Start Shoal now, and at each login?", default=True) else "n"
        if wanted != "y":
            return
        if only_here := self.from_environment():
            names = ", ".join(only_here.values())
            question = f"Only this shell defines {names}. Store a copy in a file for the service?"
            if not self._session.asks or ask_yes(question, default=True):
                secrets = {key: os.environ[name] for key, name in only_here.items()}
                write_with_secrets(self._session.context.home, {}, secrets)
        self._made.append(str(service.file))
        try:
            setup_checks.start_at_login(service)
        except ShoalError as error:  # the file is written, so "Nothing was changed" would be false
            self._failed = True
            self._session.say("login", str(error))
            return
        self._started = service
        self._session.say("login", f"Shoal is running. To see its log, run {service.log}")

    def from_environment(self) -> dict[str, str]:
        config, secrets = self._session.config(), dict[str, Secret]()
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

    # ---- summary ----

    def finish(self, last: str) -> None:
        after = written(self._session.context.home)
        changed = [name for name, value in after.items() if self._before.get(name) != value]
        for name in (*self._made, *changed):
            echo(f"wrote    {name}")
        echo(last)

    def next_step(self) -> str:
        config = self._session.context.config()
        chats = [
            record.title
            for name, record in choices.platforms().items()
            if any(account.enabled for account in config.platforms.of(name))
        ]
        where = f"write to your bot on {chats[0]}" if chats else 'open the page, or try `shoal ask "Hello"`'
        if self._started is not None or self._session.runs:
            return f"Next: {where}."
        return f"Next: run `shoal run` to start Shoal, then {where}."
