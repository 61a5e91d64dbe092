"""Lets the suites' failed assertions say what they compared."""

import pytest

pytest.register_assert_rewrite("shoal.testing.contracts")
