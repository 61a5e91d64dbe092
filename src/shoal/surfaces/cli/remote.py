"""Talks to the Shoal that runs on this home directory, if one does: the lock file tells where, the token lets in."""

import json
import os
import re
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import cast
from urllib.parse import quote, urlsplit

from shoal.domain.errors import Conflict, Gone, InvalidInput, NotFound, ShoalError
from shoal.surfaces.cli.place import Place

REQUEST_SECONDS = 30.0
_HOLDER = re.compile(r"process (\d+) at (https?://\S+)")


class Remote:
    """The API of a running Shoal."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token

    def call(self, method: str, path: str, body: object = None) -> object:
        """Make a call and return the JSON of its answer.

        Raises NotFound, Conflict, Gone or InvalidInput as the server says, ShoalError for anything else.
        """
        response = self.open(method, path, body)
        try:
            content = response.read()
        except (OSError, HTTPException) as error:
            raise ShoalError(f"Shoal at {self.address} broke off its answer. Look at its log.") from error
        if response.status >= 400:
            raise _refusal(response.status, content, self.address)
        return cast(object, json.loads(content)) if content else None

    def open(self, method: str, path: str, body: object = None, accept: str = "application/json") -> HTTPResponse:
        """Make a call and return its answer, still to be read. Raises ShoalError when nothing answers."""
        target = urlsplit(self.address)
        kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
        connection = kind(target.hostname or "", target.port, timeout=REQUEST_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, content, headers)
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            raise ShoalError(
                f"Shoal at {self.address} does not answer ({error}). Restart it, or stop it and try again."
            ) from error


def find_remote(place: Place) -> Remote | None:
    """The Shoal that serves this home directory now, or None."""
    try:
        found = _HOLDER.fullmatch(place.home.lock_file.read_text(encoding="utf-8").strip())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None or not _is_alive(int(found[1])):
        return None
    token = place.config().web.token.reveal() or _stored_token(place)
    return Remote(found[2], token)


def part(text: str) -> str:
    """A piece of a path, quoted."""
    return quote(text, safe="")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stored_token(place: Place) -> str:
    try:
        return place.home.token_file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _refusal(status: int, content: bytes, address: str) -> ShoalError:
    try:
        answer: object = json.loads(content)
    except ValueError:
        answer = None
    message = cast("dict[str, object]", answer).get("message", "") if isinstance(answer, dict) else ""
    text = str(message) or f"Shoal at {address} refused ({status})."
    kinds: dict[int, type[ShoalError]] = {400: InvalidInput, 404: NotFound, 409: Conflict, 410: Gone}
    return kinds.get(status, ShoalError)(text)
