"""The step of `shoal setup` that chooses a model."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.config.defaults import DEMO
from shoal.kernel.errors import InvalidInput, KeyRefused, ShoalError, Unreachable
from shoal.setup import choices
from shoal.setup.live import SetupState
from shoal.setup.models import SERVER_ADDRESS, ModelAnswered, ModelChoice, OfferedModels, checked_address, gguf_file
from shoal.surfaces.cli.client import path_part
from shoal.surfaces.cli.output import echo
from shoal.surfaces.cli.prompts import CHOICES_SHOWN, ask_from, ask_yes
from shoal.surfaces.cli.setup_calls import SetupCalls, open_calls
from shoal.surfaces.cli.setup_session import LeftOut, SetupSession


def listed(names: Sequence[str]) -> str:
    """Return up to CHOICES_SHOWN names, separated by commas, and the number of the others."""
    more = len(names) - CHOICES_SHOWN
    return ", ".join(names[:CHOICES_SHOWN]) + (f" and {more} more" if more > 0 else "")


class ModelStep:
    """Asks for a provider, its settings and a model until the model answers."""

    def __init__(self, session: SetupSession) -> None:
        self._session = session

    def run(self) -> None:
        with open_calls(self._session.context) as calls:
            state = calls.call("GET", "/api/setup", into=SetupState)
            is_chosen = bool(self._session.config().model.name) or not state.is_demo
            is_new = "model" in self._session.again or "provider" in self._session.given
            if is_chosen and not is_new and (state.is_demo or self.answers(calls)):
                return
            while True:
                runs = {model.name: " (running)" for model in state.models if model.name == "ollama" and model.is_set}
                titles = {model.name: f"{model.title}{runs.get(model.name, '')}" for model in state.models}
                titles[DEMO] = choices.DEMO_TITLE
                provider = self._session.choose("provider", "Which model provider do you want to use?", titles, DEMO)
                if provider == DEMO:
                    if "model" in self._session.again:
                        calls.call("PUT", f"/api/setup/providers/{DEMO}", {"model": DEMO})
                    self._session.say("model", "Shoal uses the built-in demo until you run `shoal setup model`.")
                    return
                if self.provider(calls, next(model for model in state.models if model.name == provider)):
                    return
                if not self._session.asks:
                    raise LeftOut(f"The {provider} model does not answer.")

    def answers(self, calls: SetupCalls) -> bool:
        try:
            self.say_answer(calls.call("POST", "/api/setup/model/test", into=ModelAnswered))
        except ShoalError as error:
            self._session.say("model", str(error))
            return False
        return True

    def say_answer(self, answer: ModelAnswered) -> None:
        self._session.say("model", f"{answer.model} answers: {answer.said}")
        if answer.note:
            self._session.say("prices", answer.note)

    def provider(self, calls: SetupCalls, choice: ModelChoice) -> bool:
        """Ask for a provider's settings until its model answers. Return False to choose another provider.

        After an error, setup asks again only for the setting that was wrong.
        """
        path = f"/api/setup/providers/{path_part(choice.name)}"
        table = f"providers.{choices.table_of(choice.name)}"
        settings = {key.removeprefix(f"{table}."): self._session.extra[key] for key in self._session.more(table)}
        place, key, keeps_key = self.place_of(choice), "", False
        while True:
            if place is None:
                return False
            try:
                if "key" in choice.wants and not keeps_key:
                    question = f"API key for {choice.name}" if choice.key_kind else "Key, if required"
                    key = self._session.secret("key", question, choice.key_kind)
                    if key == "-" or (choice.key_kind and not key):
                        return False
                entered = {**place, "key": key, "settings": settings}
                wanted = {**entered, "model": self._session.given.get("model", "")}
                offer = calls.call("POST", f"{path}/test", wanted, into=OfferedModels)
                break
            except (ShoalError, OSError) as error:
                if not self._session.asks:
                    raise
                self._session.say("model", str(error))
                is_down = isinstance(error, Unreachable)
                keeps_key = bool(choice.key_kind) and is_down and ask_yes("Try again with the same key?", default=True)
                if place and not ("key" in choice.wants and isinstance(error, KeyRefused)):
                    place = self.place_of(choice, place.get("address", ""))
        while True:
            model = offer.usual if choice.name == "local" else self.model_of(offer.models, offer.usual)
            if self.use_model(calls, path, {**entered, "model": model}):
                self._session.forget(table)
                return True
            if offer.models and model not in offer.models:
                self._session.say("model", f"{choice.name} offers {listed(offer.models)}.")
            if (
                not self._session.asks
                or choice.name == "local"
                or not ask_yes("Choose another model from this provider?", default=True)
            ):
                return False

    def use_model(self, calls: SetupCalls, path: str, chosen: Mapping[str, object]) -> bool:
        try:
            self.say_answer(calls.call("PUT", path, chosen, into=ModelAnswered))
        except ShoalError as error:
            self._session.say("model", str(error))
            if not self._session.asks or not ask_yes("Use this model anyway?", default=False):
                return False
            calls.call("PUT", path, {**chosen, "keep": True})
        return True

    def place_of(self, choice: ModelChoice, before: str = "") -> dict[str, str] | None:
        if choice.name == "local" and not self._session.has_extra("local"):
            return None
        while True:
            try:
                if "model_file" in choice.wants:
                    file = self._session.ask("model_file", "Path of the GGUF file (- goes back)")
                    return None if file == "-" else {"model_file": gguf_file(os.path.abspath(Path(file).expanduser()))}
                if "address" not in choice.wants:
                    return {}
                usual = choice.address or SERVER_ADDRESS
                address = self._session.ask("address", "URL (- goes back)", before or usual)
                return None if address == "-" else {"address": checked_address(address, usual)}
            except InvalidInput as error:
                if not self._session.asks:
                    raise
                self._session.say("model", str(error))

    def model_of(self, models: Sequence[str], default: str) -> str:
        if "model" in self._session.given or not self._session.asks or len(models) < 2:
            return self._session.ask("model", "Model", default)
        echo(
            "\nWhich model do you want to use?"
            if len(models) <= CHOICES_SHOWN
            else (f"\nWhich of the {len(models)} models do you want to use?")
        )
        first = [default, *(model for model in models if model != default)] if default else models
        return ask_from(first, "Model (a number, a name, or part of a name)", default)
