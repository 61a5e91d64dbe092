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
    """The tool call that started the turn."""
    speaks_in: ThreadId = ThreadId("")
    """The thread to post to if nobody reads the turn's answer. Empty means its own thread."""
    timezone: str = "UTC"
    """The asker's time zone."""
    visible_threads: str = ""
    """Id prefix of threads that the turn may see. Empty means all."""


class TurnRun(msgspec.Struct, eq=False):
    """One turn while it runs. `system` and `tools` do not change during a turn."""

    turn: TurnId
    view: ThreadView
    scope: TurnScope
    system: SystemPrompt
    tools: Offer
    streamed: list[str] = msgspec.field(default_factory=list[str])
    """Text received in the current model call. It is kept on abort."""
    asked: RequestMark | None = None
    """The mark of the current request."""
    squeezed_to: int = 0
    """Limit for the conversation after an overflow, in units."""
    window_tokens: int = 0
    """The model's assumed window after an overflow."""
    compacted: bool = False
    """Whether a summary was attempted."""
    unsummarised: str = ""
    """Why no model could write the summary."""
    overflows: int = 0
    left_behind: bool = False
    """Whether the turn was retried without the earlier conversation, which the provider rejected."""

    def begin_call(self) -> Callable[[ModelEvent], None]:
        """Start a model call for live watchers. Return the function that receives its events."""
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
