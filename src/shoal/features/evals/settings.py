"""Settings in [cases]."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section

CASES = "cases"
"""Subdirectory of an agent's directory that contains its test cases."""


class CasesSettings(Section, frozen=True, kw_only=True):
    """Test cases of agents. They run with `shoal check`, and before Shoal asks a person to approve an agent's change to
    itself.
    """

    judge_model: str = ""
    """Model that checks `judged` expectations. If empty, the model under test checks them."""
    steps_max: Annotated[int, Meta(ge=1, le=100)] = 10
    """Maximum number of model calls per test case."""
    edit_seconds_max: Annotated[float, Meta(ge=0, le=600)] = 60.0
    """Time limit in seconds for the cases that run before a person is asked to approve a change. 0 disables these
    cases.
    """
    edit_usd_max: Annotated[float, Meta(ge=0)] = 0.5
    """Cost limit in US dollars for the cases that run before an approval, if the model's price is known. 0 means no
    limit.
    """
    edit_tokens_max: Annotated[int, Meta(ge=0)] = 500_000
    """Limit on input and output tokens for the cases that run before an approval. 0 means no limit."""
