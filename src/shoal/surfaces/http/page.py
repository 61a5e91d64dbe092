"""The console page: static files with ETags, sign-in, and the content security policy."""

import contextlib
import hashlib
import mimetypes
import re
from html import escape
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlencode

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from shoal.services import Services
from shoal.surfaces.console import CONTENT_SECURITY_POLICY, FILES, PREFIX
from shoal.surfaces.http.auth import COOKIE_SECONDS, Gate
from shoal.surfaces.http.endpoints import OPEN, Routes, whole_body
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.options import WebOptions
from shoal.threads.principals import HOME_TOKEN, Principal

routes = Routes()

_POLICY = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}

_WORKER = "worker.js"
"""The service worker. It may control the whole site, although its own path is below PREFIX."""

_SIGN_IN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Shoal: sign in</title>
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<script src="/console/theme.js"></script>
<link rel="stylesheet" href="/console/base.css">
<link rel="stylesheet" href="/console/places.css">
<main class="alone is-signin">
<p class="brand"><img src="/console/icon.svg" alt="" width="24" height="24"> Shoal</p>
<h1>Sign in</h1>
{said}
<form method="post" action="/">
<label>Token <input type="password" name="token" autocomplete="current-password" spellcheck="false" required
autofocus></label>
<button class="primary">Sign in</button>
</form>
</main>
"""
_ASK = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Shoal: sign in</title>
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<script src="/console/theme.js"></script>
<link rel="stylesheet" href="/console/base.css">
<link rel="stylesheet" href="/console/places.css">
<main class="alone is-signin">
<p class="brand"><img src="/console/icon.svg" alt="" width="24" height="24"> Shoal</p>
<h1>Sign in as {name}?</h1>
<p>The link you opened contains {name}'s token. {now} If you sign in, you write as {name}, who can read your
messages.</p>
<form method="post" action="{action}">
<input type="hidden" name="token" value="{token}">
<button class="primary">Sign in as {name}</button>
<a class="quiet" href="/">Cancel</a>
</form>
</main>
"""
_WHERE = (
    "<p>The owner's token is in the <code>token</code> file in Shoal's home directory. Run <code>shoal token "
    "create</code> to create another token.</p>"
)


class StaticFile(msgspec.Struct, frozen=True):
    """A file of the page. `stamp` is its modification time in nanoseconds and its size."""

    content: bytes
    media_type: str
    digest: str
    stamp: tuple[int, int]


class Page:
    """Caches the files in a directory by relative path. A changed file is read again."""

    def __init__(self, folder: Path = FILES) -> None:
        self._folder = folder
        self._files: dict[str, StaticFile] = {}
        self._names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    @classmethod
    def of(cls, _: Services) -> Self:
        return cls()

    def has(self, name: str) -> bool:
        """Return True if the file existed at startup."""
        return name in self._names

    def read(self, name: str) -> StaticFile:
        """Return a file. Raises ApiError 404. This call blocks."""
        path = self._folder / name
        if not self.has(name) or not path.is_file():
            raise ApiError(404, "not_found", f"The page has no file {name[:100]!r}.")
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._files.get(name)
        if known is None or known.stamp != stamp:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:32]
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
            known = self._files[name] = StaticFile(content, kind, digest, stamp)
        return known

    def version(self) -> str:
        """Return a version that changes when any file changes. This call blocks."""
        digest = hashlib.sha256()
        for name in sorted(self._names):
            with contextlib.suppress(FileNotFoundError):
                status = (self._folder / name).stat()
                digest.update(f"{name} {status.st_mtime_ns} {status.st_size}\n".encode())
        return f"@{digest.hexdigest()[:16]}"


@routes(f"GET {PREFIX}/{{path:path}}", OPEN)
async def static_file(page: Page, request: Request, path: str) -> Response:
    """Serve a file of the page. Browsers cache it permanently if the URL contains the page's current version."""
    version, _, rest = path.partition("/") if path.startswith("@") else ("", "", "")
    name = rest if version else path
    found = await anyio.to_thread.run_sync(page.read, name)
    tag = f'"{found.digest}"'
    pinned = bool(version) and version == await anyio.to_thread.run_sync(page.version)
    caching = "public, max-age=31536000, immutable" if pinned else "no-cache"
    headers = {**_POLICY, "ETag": tag, "Cache-Control": caching}
    if name == _WORKER:
        headers["Service-Worker-Allowed"] = "/"
    if tag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, found.media_type)


@routes("GET /", OPEN)
async def index(gate: Gate, page: Page, request: Request) -> Response:
    """Serve the page. With `?token=`, sign in with a cookie and redirect to an address without the token.

    Asks for confirmation if this would replace another session. Also asks if the link is on another site, because
    browsers then do not send the cookie of an existing session.
    """
    given = request.query_params.get("token")
    try:
        visitor = await gate.visitor(request)
    except ApiError as error:
        if given is None:
            return _sign_in(error)
        visitor = None
    if given is not None:
        rest = [(name, value) for name, value in request.query_params.multi_items() if name not in ("token", "key")]
        try:
            bearer = await gate.bearer(request, given)
        except ApiError as error:
            return _sign_in(error)
        is_led_here = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if (visitor is None and is_led_here) or (visitor is not None and visitor.token.digest != bearer.token.digest):
            name = escape(_called(bearer))
            now = f"You are signed in as {escape(_called(visitor))}." if visitor else ""
            action = escape(f"/?{urlencode(rest)}" if rest else "/")
            content = _ASK.format(name=name, now=now, action=action, token=escape(given))
            headers = {**_POLICY, "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
            return Response(content, 200, headers, "text/html")
        return _let_in(gate, request, bearer, rest)
    if visitor is None:
        return _sign_in()
    if not page.has("index.html"):
        raise ApiError(404, "not_found", "This installation has no console page. The API works without it.")
    found, version = await anyio.to_thread.run_sync(lambda: (page.read("index.html"), page.version()))
    content = re.sub(rf'"{PREFIX}/([^"]+\.(?:js|css))"', rf'"{PREFIX}/{version}/\1"', found.content.decode())
    response = Response(content, 200, {**_POLICY, "Cache-Control": "no-cache"}, found.media_type)
    _set_cookie(gate, request, response, visitor)
    return response


@routes("POST /", OPEN, raw_body="application/x-www-form-urlencoded")
async def sign_in(gate: Gate, options: WebOptions, request: Request) -> Response:
    """Sign in with the form, which keeps the token out of URLs."""
    body = await whole_body(request, seconds=options.body_seconds)
    given = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
    try:
        bearer = await gate.bearer(request, given.strip())
    except ApiError as error:
        return _sign_in(error)
    rest = [(name, value) for name, value in request.query_params.multi_items() if name not in ("token", "key")]
    return _let_in(gate, request, bearer, rest)


@routes("DELETE /", OPEN)
async def sign_out(gate: Gate, request: Request) -> Response:
    """Delete the browser's cookie. The page calls this when its key is missing or invalid."""
    response = Response(None, 204, _POLICY)
    name, encrypted = gate.cookie_name(request), gate.is_encrypted(request)
    response.delete_cookie(name, httponly=True, samesite="strict", secure=encrypted)
    return response


def _let_in(gate: Gate, request: Request, visitor: Principal, rest: list[tuple[str, str]]) -> Response:
    """Set the cookie and redirect to the page, with the page's key in the URL. The page removes the key from the URL
    immediately. A cookie would reveal the key to other servers on this host.
    """
    response = RedirectResponse(f"/?{urlencode([*rest, ('key', gate.page_key(visitor))])}", 303, _POLICY)
    _set_cookie(gate, request, response, visitor)
    return response


def _called(principal: Principal) -> str:
    return "the owner" if principal.token is HOME_TOKEN else principal.token.name


def _set_cookie(gate: Gate, request: Request, response: Response, visitor: Principal) -> None:
    response.set_cookie(
        gate.cookie_name(request),
        gate.make_cookie(visitor),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=gate.is_encrypted(request),
    )


def _sign_in(refused: ApiError | None = None) -> Response:
    text, status = _WHERE, 401
    headers = {
        **_POLICY,
        "WWW-Authenticate": "Bearer",
        "Referrer-Policy": "same-origin",
    }  # makes browsers send the form's Origin
    if refused is not None:
        reason = re.sub("`([^`]+)`", r"<code>\1</code>", escape(str(refused)))
        text = f'<p class="problem" role="alert">{reason}</p>'
        if refused.status == 429:
            status, headers = 429, {**headers, **refused.headers}
    return Response(_SIGN_IN.format(said=text), status, headers, "text/html")


@routes("GET /favicon.ico", OPEN)
async def favicon(page: Page, request: Request) -> Response:
    """Serve the page's icon at the address that browsers request by default."""
    return await static_file(page, request, "icon.svg")
