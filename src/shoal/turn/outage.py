"""The message that is shown while a model is unavailable, and its edit after the wait."""

from datetime import datetime

from shoal.kernel.events import RetryScheduled
from shoal.kernel.ids import ThreadId, TurnId
from shoal.kernel.posts import Button
from shoal.kernel.records import NewPost

BUTTON_BYTES_MAX = 64
"""Maximum size of a button's value that every platform accepts. Telegram has the lowest limit (`callback_data`)."""
ANSWERS_AGAIN = "The model is available again."
GAVE_UP = "The model did not become available in time."
STOPPED = "Stopped while waiting for the model."

_KEPT = "Your message is saved. I will retry until {until:%H:%M} UTC and answer here."
_OFFER = "`/retry` tries now{other}, and `/stop` cancels the message."


def outage_post(thread: ThreadId, turn: TurnId, number: int, retry: RetryScheduled, until: datetime) -> NewPost:
    """Build the message that explains why a turn is waiting and offers alternatives.

    `number` identifies the outage within the turn.
    """
    other = f", `/retry {retry.choices[0]}` asks another model" if retry.choices else ""
    text = f"{retry.message} {_KEPT.format(until=until)}\n\n{_OFFER.format(other=other)}"
    buttons = [Button("Try now", f"retry:{turn}")]
    buttons += [Button(f"Ask {name}", f"retry:{turn}:{name}") for name in retry.choices[:1]]
    buttons += [Button("Stop", f"retry:{turn}:stop")]
    fitting = tuple(button for button in buttons if len(button.value.encode()) <= BUTTON_BYTES_MAX)
    return NewPost(_id(turn, number), thread, text, "card", buttons=fitting)


def outage_over(thread: ThreadId, turn: TurnId, number: int, text: str) -> NewPost:
    """Build the edit that removes the buttons after the wait. Platforms that cannot edit messages skip it."""
    return NewPost(f"{_id(turn, number)}:over", thread, text, "edit", edits=_id(turn, number))


def _id(turn: TurnId, number: int) -> str:
    return f"outage:{turn}:{number}"
