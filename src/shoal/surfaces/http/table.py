"""Maps paths to modules. A module is imported when one of its paths is first called."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import NamedTuple

from starlette.routing import Route, Router, compile_path
from starlette.types import Receive, Scope, Send

from shoal.feature import Feature, features
from shoal.services import Services
from shoal.surfaces.http.endpoints import Endpoint, Routes, starlette_routes


class RouteModule(NamedTuple):
    """A module with endpoints. `load` returns them, and each of their paths is below one of `paths`.

    In `paths`, `*` matches any segment, and a final `$` the end of the path. A module without `paths` is imported for
    any call.
    """

    name: str
    paths: Sequence[str]
    feature: Feature | None = None

    def load(self) -> Routes:
        """Import the module and return its endpoints."""
        if self.feature is not None:
            routes = self.feature.load(self.feature.routes)
        else:
            routes = import_module(f"shoal.surfaces.http.{self.name}").routes
        assert isinstance(routes, Routes)
        return routes

    def serves(self, path: str) -> bool:
        """Whether an endpoint of the module may serve this path."""
        segments = path.split("/")
        return not self.paths or any(_is_below(segments, pattern.split("/")) for pattern in self.paths)


THREADS = "/api/threads/"
PAGE = RouteModule("page", ("/console", "/$", "/favicon.ico$"))
MODULES = (
    RouteModule(
        "routes_operations",
        ("/api/overview", "/healthz", "/readyz", "/metrics", "/openapi.json", "/api/usage", "/api/audit"),
    ),
    RouteModule("routes_inbound", ("/platforms",)),
    RouteModule("routes_threads", ("/api/threads", "/api/channels", "/api/chats", "/api/events", "/api/commands")),
    RouteModule(
        "routes_history",
        ("/api/threads/*$", "/api/threads/*/export", "/api/threads/*/turns/*/cost", "/api/search", "/api/models"),
    ),
    RouteModule(
        "routes_files",
        (
            "/api/threads/*/attachments",
            "/api/threads/*/files",
            "/api/threads/*/picture",
            "/api/threads/*/artifacts",
        ),
    ),
    RouteModule("routes_approvals", ("/api/approvals",)),
    RouteModule("routes_changes", ("/api/changes",)),
    RouteModule("routes_access", ("/api/me", "/api/tokens", "/api/access", "/api/permissions")),
    RouteModule("routes_agents", ("/api/agents", "/api/bindings", "/api/info", "/api/skills")),
    RouteModule("routes_setup", ("/api/setup", "/api/platforms")),
    *(RouteModule(feature.name, feature.paths, feature) for feature in features() if feature.routes),
    PAGE,
)


@cache
def api() -> Sequence[Endpoint]:
    """Return every endpoint of the API, without the page's. This imports all modules."""
    return [endpoint for module in MODULES if module is not PAGE for endpoint in module.load()]


def is_open(path: str) -> bool:
    """Whether a path needs no token: probes, calls that authenticate otherwise, files without secrets."""
    for module in modules_of(path):
        for endpoint in module.load():
            start, brace, _ = endpoint.path.partition("{")
            if endpoint.is_open and (path == endpoint.path or (brace and path.startswith(start))):
                return True
    return False


def is_file(path: str) -> bool:
    """Whether a path is a file of a thread, which the browser displays or saves by its address."""
    if not path.startswith(THREADS):
        return False
    for module in modules_of(path):
        for endpoint in module.load():
            is_thread_file = endpoint.is_file and endpoint.path.startswith(THREADS)
            if is_thread_file and compile_path(endpoint.path)[0].match(path):
                return True
    return False


def modules_of(path: str) -> tuple[RouteModule, ...]:
    """Return the modules whose endpoints may serve a path, or all modules if the table does not list it."""
    return tuple(module for module in MODULES if module.serves(path)) or MODULES


def _is_below(segments: Sequence[str], pattern: Sequence[str]) -> bool:
    *head, last = pattern
    if last.endswith("$") and len(segments) != len(pattern):
        return False
    wanted = (*head, last.removesuffix("$"))
    return len(segments) >= len(wanted) and all(
        want in ("*", segment) for want, segment in zip(wanted, segments, strict=False)
    )


class LazyRoutes:
    """The ASGI application of all endpoints. A module's endpoints are bound to the services on first use."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._routers: dict[tuple[str, ...], Router] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._route(modules_of(scope["path"]), scope, receive, send)

    async def _route(self, modules: tuple[RouteModule, ...], scope: Scope, receive: Receive, send: Send) -> None:
        names = tuple(module.name for module in modules)
        if names not in self._routers:
            others = None if modules == MODULES else self._call_any
            self._routers[names] = Router(self._bound(modules), redirect_slashes=False, default=others)
        await self._routers[names](scope, receive, send)

    async def _call_any(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a path that is in the table but in none of its modules."""
        await self._route(MODULES, scope, receive, send)

    def bind_all(self) -> None:
        """Bind every endpoint once. Raises LookupError for one that takes a service which does not exist."""
        self._bound(MODULES)

    def _bound(self, modules: Sequence[RouteModule]) -> list[Route]:
        return starlette_routes(self._services, [endpoint for module in modules for endpoint in module.load()])
