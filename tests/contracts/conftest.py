"""What the suites share: assertions that say what they compared, and a database."""

import pytest
from tests.postgres import postgres_database

__all__ = ["postgres_database"]

pytest.register_assert_rewrite("shoal.testing.contracts")
