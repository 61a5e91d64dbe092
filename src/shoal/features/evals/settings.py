"""The section [cases] of the file."""

from typing import Annotated

from msgspec import Meta

from shoal.kernel.section import Section


class CasesSettings(Section, frozen=True, kw_only=True):
    """Agents' cases, run by `shoal check` and before a person is asked about a change that an agent makes of itself."""

    judge_model: str = ""
    """The model that judges what a sentence describes; empty takes the one that is checked."""
    steps_max: Annotated[int, Meta(ge=1, le=100)] = 10
    """Model calls that one case may take."""
    edit_seconds_max: Annotated[float, Meta(ge=0, le=600)] = 60.0
    """How long cases may take before a change of the agent is asked about, in seconds; 0 runs none then."""
    edit_usd_max: Annotated[float, Meta(ge=0)] = 0.5
    """What they may cost then, in US dollars, where the model's price is known; 0 sets no ceiling."""
    edit_tokens_max: Annotated[int, Meta(ge=0)] = 500_000
    """Tokens that they may take then, in and out; 0 sets no ceiling."""
