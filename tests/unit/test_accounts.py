"""A platform whose package is missing is reported with the extra to install."""

import pytest

from shoal.kernel.errors import ConfigError
from shoal.platforms.slack.wire import check_package


def test_a_missing_package_is_reported_with_its_extra() -> None:
    check_package()
    with pytest.raises(ConfigError, match=r"needs the `slack` extra. Run: "):
        check_package("no_such_package_of_this_name")
