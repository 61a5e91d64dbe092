"""The step of `shoal setup` that connects a chat."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.kernel.errors import InvalidInput, NotFound, ShoalError
from shoal.kernel.settings_platforms import AccountSettings
from shoal.setup import choices
from shoal.setup.chats import Account, ChatChoice
from shoal.setup.live import SetupState
from shoal.surfaces.cli.output import echo
from shoal.surfaces.cli.prompts import ask_line
from shoal.surfaces.cli.setup_calls import SetupCalls, open_calls
from shoal.surfaces.cli.setup_session import LeftOut, SetupSession


class ChatStep:
    """Connects a bot and identifies its owner. Afterwards `thread` is the owner's direct conversation, or empty if
    the owner has not written to the bot.
    """

    def __init__(self, session: SetupSession) -> None:
        self._session = session
        self.thread = ""

    def run(self) -> None:
        with open_calls(self._session.context) as calls:
            state = calls.call("GET", "/api/setup", into=SetupState)
            chats = {chat.name: chat for chat in state.chats}
            chat = self.connected_chat(calls, state.chats)
            if chat is None:
                if not self._session.asks and "platform" not in self._session.given:
                    return
                chat = self.connect_one(calls, chats)
                if chat is None:
                    return
            elif self.has_people(chat.name):
                self._session.say("chat", f"{chat.title} is connected.")
                return
            self.own(calls, chat)

    def connected_chat(self, calls: SetupCalls, chats: Sequence[ChatChoice]) -> ChatChoice | None:
        for chat in chats:
            is_on = any(account.enabled for account in self.accounts(chat.name))
            if (
                not is_on
                or "chat" in self._session.again
                or self._session.given.get("platform", chat.name) != chat.name
            ):
                continue
            try:
                calls.call("POST", f"/api/setup/platforms/{chat.name}/test", {})
            except ShoalError as error:
                self._session.say("chat", str(error))
                if self._session.asks:
                    return None
                raise LeftOut(
                    f"Correct [platforms.{chat.name}] in {self._session.context.home.config_file}."
                ) from error
            return chat
        return None

    def accounts(self, platform: str) -> tuple[AccountSettings, ...]:
        return self._session.config().platforms.of(platform)

    def has_people(self, platform: str) -> bool:
        accounts = [account for account in self.accounts(platform) if account.enabled]
        return len(accounts) > 1 or any(account.owner or account.allow for account in accounts)

    def connect_one(self, calls: SetupCalls, chats: Mapping[str, ChatChoice]) -> ChatChoice | None:
        titles = {**{name: chat.title for name, chat in chats.items()}, choices.NO_CHAT: choices.NO_CHAT_TITLE}
        chat, before = None, dict[str, str]()
        while True:
            if chat is None:
                question = "Which chat platform do you want to connect?"
                name = self._session.choose("platform", question, titles, choices.NO_CHAT)
                if name == choices.NO_CHAT:
                    return None
                if name not in chats:
                    raise LeftOut(
                        f"Setup does not support {name}. Follow its manual to add [platforms.{name}] to shoal.toml."
                    )
                chat, before = chats[name], {}
            entered = self.fields_of(chat, before) if self._session.has_extra(chat.name) else None
            if entered is not None and self.connect(calls, chat, entered):
                return chat
            if not self._session.asks:
                raise LeftOut(f"{chat.title} is not connected.")
            if entered is None:
                chat = None
            else:
                before = entered

    def fields_of(self, chat: ChatChoice, before: Mapping[str, str]) -> dict[str, str] | None:
        """Ask for a platform account's settings. Return them by key, with `public_url` if the platform needs it, or
        None to choose another platform.

        An account that was imported or switched off keeps its stored secrets.
        """
        table, values = f"platforms.{chat.name}", dict[str, str]()
        rests = any(not account.enabled for account in self.accounts(chat.name))
        for field in chat.fields:
            option = "app_token" if field.name == "app_token" else "token"
            name = f"{table}.{field.name}"
            if rests and field.is_set and option not in self._session.given:
                continue
            if field.secret:
                typed = self._session.secret(option, field.question, "" if field.optional else field.kind)
                if typed == "-" or not (typed or field.optional):  # choose another platform
                    return None
                values[field.name] = typed
                continue
            value = self._session.extra.pop(name, "") or self._session.ask(
                f"set {name}=VALUE", field.question, before.get(field.name, "-" if field.optional else "")
            )
            if field.name.endswith("_file"):
                value = os.path.abspath(Path(value).expanduser())
            if value != "-":
                values[field.name] = value
        if self.is_called(chat, values.get(chat.fetches_with, "")) and not self._session.config().web.public_url:
            question = "Public URL of this server, https://…"
            values["public_url"] = self._session.extra.pop("web.public_url", "") or self._session.ask(
                "set web.public_url=VALUE", question, before.get("public_url", "")
            )
        return values

    def is_called(self, chat: ChatChoice, fetches: str) -> bool:
        """Return True if the platform delivers messages by calling Shoal. Such an account receives messages only
        while Shoal runs.
        """
        return bool(chat.owner_question) and not fetches

    def connect(self, calls: SetupCalls, chat: ChatChoice, entered: Mapping[str, str]) -> bool:
        table = f"platforms.{chat.name}"
        more = {key.removeprefix(f"{table}."): self._session.extra[key] for key in self._session.more(table)}
        values = {**more, **entered}
        body = {"public_url": values.pop("public_url", ""), "values": values, "another_bot": not self._session.runs}
        try:
            calls.call("PUT", f"/api/setup/platforms/{chat.name}", body)
        except ShoalError as error:
            self._session.say("chat", str(error))
            return False
        self._session.forget(table)
        return True

    def own(self, calls: SetupCalls, chat: ChatChoice) -> None:
        path = f"/api/setup/platforms/{chat.name}/owner"
        if "owner" in self._session.given:
            calls.call("POST", path, {"user": self._session.given.pop("owner")})
            return
        if not self._session.asks:
            self._session.say(
                "chat", (f"{chat.title} is connected. Run `shoal setup --owner USER` to set your user id there.")
            )
            return
        account = self.accounts(chat.name)[0]
        if self.is_called(chat, str(getattr(account, chat.fetches_with, "")) if chat.fetches_with else ""):
            address = f"{self._session.config().web.public_url.rstrip('/')}/platforms/{chat.name}"
            self._session.say(
                "chat", f"{chat.title} accepts the credentials. Enter {address} there as the webhook URL."
            )
            user = self._session.ask("owner", f"{chat.owner_question} (- to get access later with `shoal pair CODE`)")
            if user != "-":
                calls.call("POST", path, {"user": user})
            return
        write = "Now send your bot a direct message there"
        if not calls.receives:
            echo(f"{chat.title} is connected. {write}. The bot answers with a code. Enter the code here.")
            if self.own_by_code(calls, path):
                self._session.say("chat", f"You own the bot on {chat.title}.")
                self._session.say(
                    "brief", "After you have written to the bot, run `shoal setup brief` to get a brief every morning."
                )
            return
        echo(f"{chat.title} is connected. {write}…")
        with calls.hearing(chat.name) as hearing:
            first = calls.wait_for(hearing.first)
            echo(f"{first.author.name or first.author.id} wrote to your bot and received a code.")
            owner = self.own_by_code(calls, path)
            if owner:
                self.thread = hearing.thread_of(owner)
                self._session.say("chat", f"You own the bot on {chat.title}. It has sent you a message.")

    def own_by_code(self, calls: SetupCalls, path: str) -> str:
        while True:
            code = ask_line("Code (- to get access later with `shoal pair CODE`)".replace("`", "'"))
            if code == "-":
                return ""
            try:
                return calls.call("POST", path, {"code": code}, into=Account).owner
            except (NotFound, InvalidInput) as error:
                self._session.say("chat", str(error))
