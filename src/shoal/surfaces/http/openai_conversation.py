"""What OpenAI-compatible calls share: which thread a conversation is, sending to it, and its reply as it grows.

Clients of these APIs send the whole conversation with every call, but a thread has its history already. So only the
last message goes to the thread. A conversation that begins gets a thread of its own; when its answer is complete, its
beginning (up to that answer) is remembered, so that the next call, which repeats it, finds the thread.
"""

import hashlib
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import quote

import anyio
import msgspec
from starlette.requests import Request

from shoal.actors.principals import Principal, may_use, no_such_thread
from shoal.domain.errors import InvalidId, InvalidInput
from shoal.domain.events import AssistantSaid, Event, RetryScheduled, TextStreamed, TurnFinished, UserSaid
from shoal.domain.ids import PART_CHARS_MAX, ThreadId, TurnId, encode_part, make_thread_id, parse_thread_id
from shoal.domain.messages import Abort
from shoal.surfaces.http.endpoints import WebContext, checked_text
from shoal.surfaces.http.errors import ApiError
from shoal.surfaces.http.routes_files import AttachmentRef, take_attachments
from shoal.surfaces.http.routes_threads import make_prompt, still_allowed, submit
from shoal.surfaces.http.streams import cancel_when_refused, thread_items

DEFAULT_MODEL = "shoal"
"""The model name that means the default agent."""
SCOPE = "openai"
NO_RESPONSE = "`previous_response_id` is not the id of a response of this server to this token."

_NO_RETRY = {"X-Should-Retry": "false"}
"""OpenAI's clients retry failed calls on their own; that must not run a failed turn again."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One message of a conversation: its role and text."""

    role: str
    text: str


class ClientConversation(msgspec.Struct, frozen=True):
    """What a caller brings. `thread` is empty unless they chose one; `attachments` belong to the last message."""

    by: Principal
    agent: str
    lines: tuple[Line, ...]
    instructions: str = ""
    thread: str = ""
    attachments: tuple[AttachmentRef, ...] = ()


class PendingReply(msgspec.Struct, frozen=True):
    """A message that was sent: its reply is in the thread's events after `after`."""

    thread: ThreadId
    message_id: str
    after: int
    conversation: ClientConversation
    fresh: bool

    @property
    def headers(self) -> dict[str, str]:
        """What an answer's head tells: the thread, percent-encoded."""
        return {"X-Shoal-Thread": quote(self.thread, safe=":")}


def chosen_thread(by: Principal, metadata: Mapping[str, str] | None, user: str | None) -> str:
    """The thread that `metadata.thread` or `user` names: a thread id, or any name for one of the caller's channel.

    For a chat token a thread of anybody else's is merely a name like any other.
    """
    name = (metadata or {}).get("thread") or user or ""
    if not name:
        return ""
    try:
        thread = parse_thread_id(name)
    except InvalidId:
        thread = None
    if thread is not None and by.owns(thread):
        return thread
    part = name if len(encode_part(name)) <= PART_CHARS_MAX else hashlib.sha256(name.encode()).hexdigest()
    return make_thread_id("openai", _channel_of(by), part)


def _channel_of(by: Principal) -> str:
    return by.channel if by.token.scope == "chat" else "api"


def models_of(web: WebContext, by: Principal) -> Sequence[str]:
    """The agents that a caller may talk to."""
    return [name for name in web.app.agents.names() if by.token.agent in ("", name)]


def agent_of(web: WebContext, by: Principal, model: str) -> str:
    """The agent that a model name means. Raises ApiError 404 naming those that exist."""
    if model == DEFAULT_MODEL:
        return by.token.agent
    if model in models_of(web, by):
        return model
    known = ", ".join((DEFAULT_MODEL, *models_of(web, by)))
    raise ApiError(404, "model_not_found", f"There is no agent {model[:80]!r}. As `model`, give one of: {known}.")


def image_ref(url: str) -> AttachmentRef:
    """An image that came as a data: address. Raises InvalidInput for any other."""
    head, _, data = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and data):
        raise InvalidInput("Send images as data: addresses with base64; Shoal does not fetch other addresses here.")
    media_type = head[len("data:") : -len(";base64")].partition(";")[0] or "image/png"
    extension = media_type.rpartition("/")[2].partition("+")[0]
    return AttachmentRef(name=f"image.{extension}"[:255], media_type=media_type[:127], data=data)


def response_id(fresh_id: str, thread: ThreadId) -> str:
    """An id for a response that tells the thread again."""
    return f"resp_{fresh_id}_{urlsafe_b64encode(thread.encode()).decode().rstrip('=')}"


def thread_of_response(by: Principal, text: str) -> ThreadId:
    """Invert `response_id`. Raises InvalidInput, for a response that was another's too."""
    coded = text.partition("_")[2].partition("_")[2]
    try:
        thread = parse_thread_id(urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode())
    except (Base64Error, UnicodeDecodeError, ValueError, InvalidId) as error:
        raise InvalidInput(NO_RESPONSE) from error
    if not by.owns(thread):
        raise InvalidInput(NO_RESPONSE)
    return thread


def _digest(agent: str, lines: Sequence[Line], extra: str = "") -> str:
    stripped = [Line(line.role, line.text.strip()) for line in lines]
    return hashlib.sha256(msgspec.json.encode((agent, stripped, extra))).hexdigest()[:32]


async def begin(web: WebContext, request: Request, conversation: ClientConversation) -> PendingReply:
    """Send the last message to the conversation's thread. Raises ApiError 429 when its mailbox is full."""
    lines = conversation.lines
    if not lines or lines[-1].role != "user":
        raise InvalidInput("The last message must be the user's: it is what the agent answers.")
    last = lines[-1].text
    if not conversation.attachments or "\0" in last:
        checked_text(last, "content")
    message_id = request.headers.get("idempotency-key", "")[:200] or web.app.clock.new_id()
    thread, known = await _find_thread(web, conversation, message_id)
    if not await may_use(conversation.by, web.app.store.journal, thread):
        raise no_such_thread(thread)
    info = await web.app.store.journal.thread(thread)
    text = last if info is not None else _opening(conversation)
    attachments = await take_attachments(web.app, conversation.by.author, thread, conversation.attachments, message_id)
    prompt = make_prompt(
        web, conversation.by, thread, text, message_id, agent=conversation.agent, attachments=attachments
    )
    receipt = await submit(web, prompt)
    after = info.last_seq if info is not None and receipt.status != "duplicate" else 0
    return PendingReply(thread, message_id, after, conversation, not known)


async def _find_thread(web: WebContext, conversation: ClientConversation, message_id: str) -> tuple[ThreadId, bool]:
    if conversation.thread:
        return ThreadId(conversation.thread), True
    lines, agent, channel = conversation.lines, conversation.agent, _channel_of(conversation.by)
    answered = next((place for place, line in enumerate(lines) if line.role == "assistant"), None)
    if answered is None:
        return make_thread_id("openai", channel, _digest(agent, lines, message_id)), False
    beginning = _beginning(conversation, lines[: answered + 1])
    found = await web.app.store.settings.get(SCOPE, beginning)
    return (ThreadId(found) if found else make_thread_id("openai", channel, beginning)), True


def _beginning(conversation: ClientConversation, lines: Sequence[Line]) -> str:
    """The key under which the beginning of a conversation is remembered; each person has their own."""
    by = conversation.by
    return _digest(conversation.agent, lines, by.person if by.token.scope == "chat" else "")


def _opening(conversation: ClientConversation) -> str:
    """The first message of a new thread: the caller's instructions and what was said elsewhere come before it."""
    *earlier, last = conversation.lines
    parts: list[str] = []
    if conversation.instructions:
        parts.append(f"[Instructions of the calling program]\n{conversation.instructions}")
    if earlier:
        transcript = "\n".join(f"{line.role}: {line.text}" for line in earlier)
        parts.append(f"[The conversation so far]\n{transcript}")
    return "\n\n".join((*parts, last.text))


class GrowingReply:
    """The text of a turn as it can be sent on: what was sent is never taken back.

    Each step's text follows the one before after a blank line. When a model call is tried again, and after a gap in its
    text, nothing is sent until its answer is whole; then what is new in it.
    """

    def __init__(self) -> None:
        self.sent = ""
        self._of_step = ""
        self._step = -1
        self._reply = ""
        self._glue = ""

    def stream(self, text: str, step: int, offset: int) -> str:
        """Text as the model writes it; returns what to send on."""
        if step != self._step:
            if self._of_step:
                return ""
            self._step = step
        if offset != len(self._of_step):
            return ""
        piece = text if self._of_step else self._glue + text
        self._of_step += text
        return self._send(piece)

    def finish_step(self, said: AssistantSaid) -> str:
        """The step's whole text; returns what of it was not sent yet."""
        text, had, glue = said.text, self._of_step, self._glue
        continues = said.stop == "max_tokens" and not said.tool_calls
        self._reply = self._reply + text if not glue else text
        self._of_step, self._step = "", -1
        if text or had:
            self._glue = "" if continues else "\n\n"
        if had and text.startswith(had):
            return self._send(text[len(had) :])
        return self._send((glue or ("\n\n" if had else "")) + text) if text else ""

    def finish_turn(self, reply: str) -> str:
        """The turn's reply; returns it when it was not what the last step said."""
        if not reply or reply == self._reply:
            return ""
        return self._send(f"\n\n{reply}" if self.sent else reply)

    def _send(self, piece: str) -> str:
        self.sent += piece
        return piece


async def reply_pieces(
    web: WebContext, begun: PendingReply, growing: GrowingReply
) -> AsyncGenerator[str | TurnFinished, None]:
    """The reply as it grows, empty pieces now and then while nothing happens, then how the turn ended.

    Raises ApiError when the message was taken out of the queue, the model is away, or the server stops.
    """
    turn: TurnId | None = None
    seen, did_anything = begun.after, False
    async with aclosing(thread_items(web.app, web.streams, begun.thread, begun.after)) as items:
        async for item in items:
            if item == "beat":
                info = await web.app.store.journal.thread(begun.thread) if turn is None else None
                if info is not None and not info.open_turn and not info.queued and info.last_seq <= seen:
                    message = "The message was taken out of the queue before it was answered."
                    raise ApiError(409, "cancelled", message, _NO_RETRY)
                yield ""
                continue
            if isinstance(item, Event):
                seen = item.seq
                if turn is None and isinstance(item.data, UserSaid) and item.data.message_id == begun.message_id:
                    turn = item.turn
            if item.turn != turn:
                continue
            match item.data:
                case TextStreamed(text=text, step=step, offset=offset):
                    yield growing.stream(text, step, offset)
                case AssistantSaid() as said:
                    did_anything = True
                    yield growing.finish_step(said)
                case RetryScheduled() as retry:
                    raise await _model_away(web, begun, item.turn, retry, may_repeat=not did_anything)
                case TurnFinished() as finished:
                    yield finished
                    return
                case _:
                    pass
    raise ApiError(503, "stopping", "Shoal is stopping; the agent continues at the next start.", _NO_RETRY)


async def _model_away(
    web: WebContext, begun: PendingReply, turn: TurnId, retry: RetryScheduled, *, may_repeat: bool
) -> ApiError:
    """End a turn that no model answers: these clients do not wait, and send their message again on their own.

    They are told not to if the turn has already called tools.
    """
    await web.app.orchestrator.send(Abort(begun.thread, begun.conversation.by.author, turn=turn))
    seconds = max(1, math.ceil((retry.next_at - web.app.clock.now()).total_seconds()))
    headers = {"Retry-After": str(seconds), **({} if may_repeat else _NO_RETRY)}
    return ApiError(503, "model_unavailable", f"{retry.message} Send it again later.", headers)


async def whole_reply(web: WebContext, begun: PendingReply) -> TurnFinished:
    """Wait for the turn's end. Raises ApiError when there is no answer, or the token ended meanwhile."""
    finished: TurnFinished | None = None
    failure: ApiError | None = None
    async with anyio.create_task_group() as group:
        allowed = still_allowed(web, begun.conversation.by, begun.thread)
        group.start_soon(cancel_when_refused, allowed, group.cancel_scope)
        try:
            async with aclosing(reply_pieces(web, begun, GrowingReply())) as pieces:
                finished = [piece async for piece in pieces if isinstance(piece, TurnFinished)][-1]
        except ApiError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if finished is None:
        raise ApiError(401, "unauthorized", "The token ended before the answer came; ask for another one.", _NO_RETRY)
    _check_outcome(finished)
    await _remember(web, begun, finished.reply)
    return finished


async def last_piece(web: WebContext, begun: PendingReply, growing: GrowingReply, finished: TurnFinished) -> str:
    """What a stream sends at the turn's end. Raises ApiError when there is no answer."""
    _check_outcome(finished)
    rest = growing.finish_turn(finished.reply)
    await _remember(web, begun, growing.sent)
    return rest


async def _remember(web: WebContext, begun: PendingReply, reply: str) -> None:
    """Remember the thread under the beginning that the conversation's next call repeats."""
    if begun.fresh:
        lines = (*begun.conversation.lines, Line("assistant", reply))
        await web.app.store.settings.put(SCOPE, _beginning(begun.conversation, lines), begun.thread)


def _check_outcome(finished: TurnFinished) -> None:
    if finished.outcome == "failed":
        raise ApiError(500, "turn_failed", finished.reply or "The turn failed.", _NO_RETRY)
    if finished.outcome == "aborted":
        raise ApiError(409, "aborted", "The turn was stopped before it had an answer.", _NO_RETRY)
