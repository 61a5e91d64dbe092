"""Adapt a conversation to one model on one server: omit, describe or move content that the server rejects.

Reasoning is sent back only to the provider, server and model that wrote it, because others reject it.
"""

import hashlib
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import msgspec

from shoal.kernel.ids import CallId
from shoal.kernel.messages import (
    AssistantMessage,
    Image,
    ModelMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from shoal.models.quirks import Quirks

NOT_SHOWN = "[The image {name} is not shown to you: this model accepts no images.]"
CROWDED_OUT = "[The image {name} is no longer shown to you: newer images fill the request.]"
REFUSED = "[The image {name} is not shown to you: the model's provider rejected it.]"
BETWEEN = "(I read the results.)"
"""Assistant message inserted between a tool result and a user message, for services that require one."""
_NINE = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class MessageForm(msgspec.Struct, frozen=True):
    quirks: Quirks = Quirks()
    origin: str = ""
    """Provider, server and model of the request. Only reasoning from the same origin is sent back."""
    native: bool = False
    """True if the request uses the provider's own tool search."""
    system: str = ""
    """System prompt to send as the first user message, if the server has no system role."""
    left_out: int = 0
    """Number of images to omit, oldest first."""


def arranged(
    run: Sequence[ModelMessage],
    after: ModelMessage | None,
    form: MessageForm,
    refused: Container[ModelMessage],
    left_out: int = 0,
    *,
    merges: bool,
) -> Iterator[ModelMessage]:
    """Yield the messages as they are sent.

    `run` is one assistant message, or the tool results and user messages that follow `after`. Messages in `refused`
    lose their images and reasoning. The first `left_out` images are omitted. With `merges`, consecutive user
    messages become one.
    """
    messages = _fitting(run, after, form, refused, left_out)
    return _merged(messages, form.quirks) if merges else messages


def _fitting(
    run: Sequence[ModelMessage],
    after: ModelMessage | None,
    form: MessageForm,
    refused: Container[ModelMessage],
    left_out: int,
) -> Iterator[ModelMessage]:
    quirks, moved = form.quirks, list[UserMessage]()
    calls = after.tool_calls if isinstance(after, AssistantMessage) else ()
    if after is None and form.system:
        yield UserMessage(form.system)
    for message in run:
        if isinstance(message, AssistantMessage):
            yield _answer(message, form, is_refused=message in refused)
            continue
        shown = _shown(message, quirks, left_out, is_refused=message in refused)
        left_out = max(0, left_out - len(message.images))
        if isinstance(shown, UserMessage):
            yield from moved
            moved.clear()
            yield shown
            continue
        if shown.images and quirks.images == "user":
            moved.append(UserMessage(f"[Images from {shown.name}]", shown.images))
            shown = msgspec.structs.replace(shown, images=())
        if not quirks.tools:
            yield UserMessage(f"[{shown.written_name} {'failed' if shown.is_error else 'returned'}]\n{shown.text}")
            continue
        if not quirks.parallel_calls and calls and shown.call_id != calls[0].id:
            yield from (AssistantMessage("", (_named(call, quirks),)) for call in calls if call.id == shown.call_id)
        yield _result(shown, quirks)
    yield from moved


def _answer(message: AssistantMessage, form: MessageForm, *, is_refused: bool) -> AssistantMessage:
    quirks, opaque, calls, text = form.quirks, message.opaque, message.tool_calls, message.text
    if opaque is not None and (opaque.kind != form.origin or is_refused or not quirks.thinking):
        opaque = None
    if calls and not quirks.tools:
        lines = (f"[I call {call.written_name}] {call.written_arguments}" for call in calls)
        text, calls, opaque = "\n".join((*([text] if text else ()), *lines)), (), None
    elif calls and not quirks.parallel_calls:
        calls, opaque = calls[:1], opaque if len(calls) == 1 else None
    if quirks.nine_char_ids:
        calls = tuple(_named(call, quirks) for call in calls)
    if (text, calls, opaque) == (message.text, message.tool_calls, message.opaque):
        return message
    return AssistantMessage(text, calls, opaque)


def _shown(
    message: UserMessage | ToolMessage, quirks: Quirks, left_out: int, *, is_refused: bool
) -> UserMessage | ToolMessage:
    takes_none = quirks.images == "none" or is_refused
    if not message.images or not (takes_none or left_out):
        return message
    words = NOT_SHOWN if quirks.images == "none" else REFUSED if is_refused else CROWDED_OUT
    hidden = message.images if takes_none else message.images[:left_out]
    lines = (words.format(name=Path(image.path).name) for image in hidden)
    text = "\n".join((*([message.text] if message.text else ()), *lines))
    return msgspec.structs.replace(message, text=text, images=message.images[len(hidden) :])


def _result(message: ToolMessage, quirks: Quirks) -> ToolMessage:
    if not quirks.nine_char_ids:
        return message
    return msgspec.structs.replace(message, call_id=CallId(nine_chars(message.call_id)))


def _named(call: ToolCall, quirks: Quirks) -> ToolCall:
    return msgspec.structs.replace(call, id=CallId(nine_chars(call.id))) if quirks.nine_char_ids else call


def nine_chars(call_id: str) -> str:
    """Return a call id of nine letters and digits, which Mistral requires. Other ids are replaced by a digest."""
    if len(call_id) == len(call_id.encode()) == 9 and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest())
    letters: list[str] = []
    for _ in range(9):
        number, place = divmod(number, len(_NINE))
        letters.append(_NINE[place])
    return "".join(letters)


def _merged(messages: Iterator[ModelMessage], quirks: Quirks) -> Iterator[ModelMessage]:
    words, images, is_after_result = list[str](), list[Image](), False

    def users() -> Iterator[ModelMessage]:
        if not words and not images:
            return
        if is_after_result and not quirks.user_after_tool:
            yield AssistantMessage(BETWEEN)
        yield UserMessage("\n\n".join(filter(None, words)), tuple(images))
        words.clear()
        images.clear()

    for message in messages:
        if isinstance(message, UserMessage):
            words.append(message.text)
            images.extend(message.images)
            continue
        yield from users()
        yield message
        is_after_result = isinstance(message, ToolMessage)
    yield from users()


def images_of(messages: Sequence[ModelMessage]) -> Iterator[UserMessage | ToolMessage]:
    for message in messages:
        if not isinstance(message, AssistantMessage) and message.images:
            yield message


def crowded_out(sizes: Sequence[Sequence[int]], images_max: int, bytes_max: int) -> int:
    """Return how many of the oldest images to omit. `sizes` lists the base64 sizes of the images of each message.

    If a limit is exceeded, a quarter more than necessary is omitted. The prefix then stays the same for the next few
    images. The last message keeps as many images as the limits allow, and at least one.
    """
    images_max = images_max or sum(map(len, sizes))
    flat, first, total = list[int](), 0, 0
    for message in sizes:
        own = len(flat)
        flat.extend(message)
        total += sum(message)
        if len(flat) - first <= images_max and total <= bytes_max:
            continue
        while first < len(flat) - 1:
            count, weight = images_max, bytes_max
            if first < own:
                count, weight = count - count // 4, weight - weight // 4
            if len(flat) - first <= count and total <= weight:
                break
            total -= flat[first]
            first += 1
    return first


def reasoned(messages: Sequence[ModelMessage], origin: str) -> Iterator[AssistantMessage]:
    for message in messages:
        if isinstance(message, AssistantMessage) and message.opaque is not None and message.opaque.kind == origin:
            yield message
