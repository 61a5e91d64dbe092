"""Which models are known, as far as the providers have listed theirs."""

import difflib
from collections.abc import Sequence

from shoal.domain.errors import InvalidInput
from shoal.domain.ports import Models
from shoal.providers.catalog import Catalog


def existing_model(models: Models, name: str) -> None:
    """Raises InvalidInput for a model that no provider has, as far as that is known."""
    route = models.route(name)
    if not isinstance(models, Catalog):
        return
    known = model_names(models)
    offered = [one for one in known if one.startswith(f"{route.provider.name}/")]
    listing = models.listings.get(route.provider.name)
    is_listed = listing is not None and listing.valid and bool(listing.models)
    if is_listed and f"{route.provider.name}/{route.model}" not in offered:
        near = difflib.get_close_matches(route.model, [one.partition("/")[2] for one in offered], 3)
        hint = f" Near it: {', '.join(near)}." if near else " `shoal models list` shows what it has."
        raise InvalidInput(f"{route.provider.name} does not offer the model {route.model!r}.{hint}")


def model_names(models: Models) -> Sequence[str]:
    """The known models, PROVIDER/MODEL."""
    return models.names() if isinstance(models, Catalog) else ()


async def key_lines(models: Models) -> Sequence[str]:
    """Ask every provider whether its key is valid, and note its models; a line each."""
    if not isinstance(models, Catalog):
        return ()
    found = await models.refresh()
    return [f"- {name}: {one.error or f'ok, {len(one.models)} models'}" for name, one in found.items()]
