"""The table in docs/providers.md matches the results of the contract suite."""

from shoal.testing.model.services import SERVICES
from tests.contracts.test_services import BEHAVIOURS
from tests.provider_table import PAGE, page, read


def test_the_results_have_every_service_and_behavior() -> None:
    names = [behaves.__name__ for behaves in BEHAVIOURS]
    assert {name: result.holds for name, result in read().items()} == {name: names for name in SERVICES}, (
        "run `python -m tests.provider_table`"
    )


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, read()), "run `python -m tests.provider_table page`"
