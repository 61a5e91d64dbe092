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
    """The identity and limits of a turn.

    `caller` is the call that started it. `speaks_in` is the thread to post to if nobody reads the turn's answer; empty
    means its own thread. `timezone` is the asker's. `visible_threads` is the id prefix of threads that the turn may
    see; empty means all.
    """

    agent: AgentSpec
    asker: Asker
    audience: Audience
    caller: Caller | None = None
    speaks_in: ThreadId = ThreadId("")
    timezone: str = "UTC"
    visible_threads: str = ""


class TurnRun(msgspec.Struct, eq=False):
    """One turn while it runs.

    `system` and `tools` are fixed when the turn begins. `streamed` is the text of the current model call, which is kept
    on abort, and `asked` the mark of its request. After an overflow, `squeezed_to` limits the conversation's units, and
    `window_tokens` is the assumed window of the model. `compacted` is set after an attempt to summarise, and
    `unsummarised` is the reason if no model could do it. `left_behind` is set after an attempt to continue without the
    earlier conversation, which the provider rejected.
    """

    turn: TurnId
    view: ThreadView
    scope: TurnScope
    system: SystemPrompt
    tools: Offer
    streamed: list[str] = msgspec.field(default_factory=list[str])
    asked: RequestMark | None = None
    squeezed_to: int = 0
    window_tokens: int = 0
    compacted: bool = False
    unsummarised: str = ""
    overflows: int = 0
    left_behind: bool = False

    def begin_call(self) -> Callable[[ModelEvent], None]:
        """Start a model call for live watchers. Returns the function that receives its events."""
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
