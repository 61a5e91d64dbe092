"""What the tests share."""

import pytest

pytest.register_assert_rewrite("shoal.testing.contracts")
