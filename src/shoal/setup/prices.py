"""Models that cannot be used under a budget limit in dollars because their price is unknown."""

from collections.abc import Sequence

from shoal.config import Config
from shoal.kernel.errors import InvalidInput
from shoal.kernel.messages import Usage
from shoal.kernel.ports import Models

PRICE_TODO = (
    'Set providers.NAME.price in US dollars per million tokens (0 if it is free), or budget.unpriced = "allow".'
)


def lacks_price(config: Config, models: Models, model: str) -> bool:
    """Return True if messages to this model would fail because its price is unknown and a budget limit in dollars
    is set.
    """
    budget, people = config.budget, config.access.people.values()
    ceilings = (
        budget.usd_per_turn,
        budget.usd_per_thread_day,
        budget.usd_per_user_day,
        budget.usd_per_stranger_day,
        budget.usd_strangers_per_day,
        budget.usd_per_agent_day,
        budget.usd_per_day,
        budget.usd_total,
        *(person.usd_per_day for person in people),
    )
    if budget.unpriced == "allow" or not any(ceilings):
        return False
    try:
        return models.usd(models.route(model), Usage(1, 1)) is None
    except InvalidInput:
        return False


def unpriced_note(models: Sequence[str]) -> str:
    names, many = ", ".join(models), len(models) > 1
    verb = "have no known price" if many else "has no known price"
    return f"{names} {verb}, so every message to {'them' if many else 'it'} fails while a limit in dollars is set."
