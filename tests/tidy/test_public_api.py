"""The public interface changes only intentionally."""

from tests.tidy.public_api import PAGE, public_api


def test_the_public_interface_is_the_recorded_one() -> None:
    """After an intended change, run `python -m tests.tidy.public_api` and add an entry to changes/."""
    assert public_api() == PAGE.read_text()
