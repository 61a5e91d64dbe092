"""`shoal models`: what the configured providers offer."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.config import default_model
from shoal.surfaces.cli.output import json_option, print_json, print_table, printable
from shoal.surfaces.cli.place import Place

if TYPE_CHECKING:
    from shoal.providers.catalog import Catalog
    from shoal.providers.discovery import Listing


class ModelView(msgspec.Struct, frozen=True):
    """A model as lists show it; 0 where the window is unknown."""

    name: str
    provider: str
    context_tokens: int
    is_default: bool


class ProviderView(msgspec.Struct, frozen=True):
    """What a provider said when it was asked."""

    provider: str
    valid: bool
    models: int
    error: str


@click.group()
def models() -> None:
    """Models, as PROVIDER/MODEL."""


@models.command("list")
@json_option
@click.pass_obj
def list_(place: Place, as_json: bool) -> None:
    """List the models that are known; `models refresh` asks the providers anew."""
    chosen = default_model(place.config())
    catalog = open_catalog(place)
    views = [_view(catalog, name, chosen) for name in dict.fromkeys([*catalog.names(), chosen])]
    if as_json:
        print_json(views)
        return
    rows = [
        (printable(view.name), str(view.context_tokens or "unknown"), "default" if view.is_default else "")
        for view in views
    ]
    print_table(("model", "window in tokens", ""), rows, "No model is known.")


@models.command()
@json_option
@click.pass_obj
def refresh(place: Place, as_json: bool) -> int:
    """Ask every provider which models it offers, which shows too whether its key is valid; exit 1 if one fails."""
    found = asyncio.run(refresh_listings(place))
    views = [ProviderView(name, row.valid, len(row.models), row.error) for name, row in found.items()]
    if as_json:
        print_json(views)
    else:
        rows = [
            (view.provider, "ok" if not view.error else "failed", str(view.models), printable(view.error))
            for view in views
        ]
        print_table(("provider", "", "models", "why"), rows, "No provider is configured; `demo` answers without one.")
    return 1 if any(view.error for view in views) else 0


def open_catalog(place: Place) -> "Catalog":
    """The providers and models of the configuration. Raises ConfigError."""
    from shoal.domain.clock import SystemClock
    from shoal.factories import make_catalog

    return make_catalog(place.config(), place.home, SystemClock())


async def refresh_listings(place: Place) -> "Mapping[str, Listing]":
    """Ask every provider and keep what they say in available_models.json."""
    catalog = open_catalog(place)
    try:
        return await catalog.refresh()
    finally:
        await catalog.close()


def _view(catalog: "Catalog", name: str, chosen: str) -> ModelView:
    route = catalog.route(name)
    return ModelView(name, route.provider.name, route.context_tokens, name == chosen)
