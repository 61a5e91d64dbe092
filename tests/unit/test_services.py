"""Services are looked up by class and created once, from other services."""

from typing import Self

import pytest

from shoal.services import Services


class Made:
    @classmethod
    def of(cls, _: Services) -> Self:
        return cls()


def test_a_service_is_created_on_first_use_and_once() -> None:
    services = Services()
    assert services[Made] is services[Made]


def test_extended_services_share_the_services_created_later() -> None:
    services = Services()
    extended, other = services.extended(), services.extended()
    assert extended[Made] is services[Made] is other[Made]


def test_a_service_added_to_an_extension_stays_in_that_extension() -> None:
    services = Services()
    extended = services.extended()
    extended.add("text")
    assert extended[str] == "text"
    assert str not in services
    with pytest.raises(LookupError, match="The service str"):
        services[str]
