"""What a model call costs, from the offline price lists of genai-prices (extra `prices`); loaded on first use."""

from functools import cache
from typing import Protocol

from shoal.domain.messages import Usage
from shoal.providers.table import PRICED_AS, model_row


class _Calculate(Protocol):
    def __call__(self, usage: Usage, model: str, provider_id: str | None, url: str | None) -> float | None: ...


def usd(kind: str, base_url: str, model: str, usage: Usage) -> float | None:
    """US dollars for this use; None when the price is not known, which is never taken for 0."""
    public = base_url.startswith("https:")
    if not public and model_row(model) is None:
        return None
    calculate = load()
    if calculate is None:
        return None
    found = calculate(usage, model, None, base_url) if public else None
    return found if found is not None or kind not in PRICED_AS else calculate(usage, model, PRICED_AS[kind], None)


@cache
def load() -> _Calculate | None:
    """Import the price lists (0.1 s); None where they are not installed."""
    try:
        import genai_prices
    except ImportError:
        return None

    def calculate(usage: Usage, model: str, provider_id: str | None, url: str | None) -> float | None:
        tokens = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            if url is not None:
                price = genai_prices.calc_price(tokens, model, provider_api_url=url)
            else:
                price = genai_prices.calc_price(tokens, model, provider_id=provider_id)
        except LookupError:
            return None
        return float(price.total_price)

    return calculate
