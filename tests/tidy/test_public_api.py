"""The public interface changes on purpose only."""

from tests.tidy.public_api import PAGE, public_api


def test_the_public_interface_is_the_recorded_one() -> None:
    """After a change on purpose: `python -m tests.tidy.public_api`, and an entry in changes/."""
    assert public_api() == PAGE.read_text()
