"""The state of one turn while it runs: its identity, the model's input, and values passed between its steps."""

from collections.abc import Callable

import msgspec

from shoal.kernel.agents import AgentSpec
from shoal.kernel.events import (
    RequestMark,
    StatusChanged,
    TextStreamed,
    ThinkingStreamed,
)
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.messages import (
    Caller,
    ModelEvent,
    TextDelta,
    ThinkingDelta,
)
from shoal.kernel.permissions import Asker, Audience
from shoal.tools.offer import Offer
from shoal.turn.prompt import SystemPrompt
from shoal.turn.thread import ThreadView


class TurnScope(msgspec.Struct, frozen=True):
    """The agent, asker, readers and visible threads of a turn."""

    agent: AgentSpec
    asker: Asker
    audience: Audience
    caller: Caller | None = None
    speaks_in: ThreadId = ThreadId("")
    """Thread for the turn's posts if nobody reads its answer. Empty means the turn's own thread."""
    timezone: str = "UTC"
    visible_threads: str = ""
    """Prefix of the ids of threads that the turn may see. Empty means all threads."""


class TurnRun(msgspec.Struct, eq=False):
    """One turn while it runs. `system` and `tools` do not change during a turn."""

    turn: TurnId
    view: ThreadView
    scope: TurnScope
    system: SystemPrompt
    tools: Offer
    streamed: list[str] = msgspec.field(default_factory=list[str])
    """Text received so far in the current model call. It is kept if the turn is aborted."""
    asked: RequestMark | None = None
    squeezed_to: int = 0
    """Maximum size of the conversation after an overflow, in units. 0 means no limit."""
    window_tokens: int = 0
    """Window that is assumed for the model after an overflow. 0 means the known window."""
    compacted: bool = False
    """True if a summary was attempted. Reset if the attempt failed but may succeed later."""
    unsummarised: str = ""
    """Reason why no model could write the summary, or empty."""
    overflows: int = 0
    left_behind: bool = False
    """True if the turn has already tried to drop the earlier conversation because the provider rejected it."""

    def begin_call(self) -> Callable[[ModelEvent], None]:
        """Show live watchers that a model call starts. Return the function that receives the call's events."""
        view, streamed, number, offset, thought = self.view, self.streamed, next(self.view.call_numbers), 0, 0
        after, links = view.transcript.last_seq, view.growing_links()
        streamed.clear()
        view.show(StatusChanged("thinking"))

        def see(event: ModelEvent) -> None:
            nonlocal offset, thought
            if isinstance(event, ThinkingDelta):
                view.show(ThinkingStreamed(event.text, number, thought, after))
                thought += len(event.text)
            elif isinstance(event, TextDelta):
                streamed.append(event.text)
                text = event.text if links is None else links.take(event.text)
                if text:
                    view.show(TextStreamed(text, number, offset, after))
                    offset += len(text)
            else:
                streamed.clear()

        return see
