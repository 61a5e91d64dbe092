"""Digests of model requests, stored in the journal to rebuild and compare the requests later.

The `RequestMark` of a model's message contains a digest of each new message and a joint digest of all messages. A
message's digest covers its JSON. The paths of images and attachments are reduced to file names.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from shoal.kernel import lazy_re
from shoal.kernel.events import (
    AssistantSaid,
    RequestMark,
)
from shoal.kernel.messages import (
    AssistantMessage,
    Image,
    ModelMessage,
    ModelRequest,
    ToolSpec,
)
from shoal.kernel.transcript import Transcript
from shoal.turn.fitting import TokenRoom

DIGEST_BYTES = 8

_encoder = msgspec.json.Encoder()
_ATTACHMENTS = lazy_re.compile(rb'/data/[^/\s"]+/[^/\s"]+/[^/\s"]+/attachments/')
"""Matches the path of a thread's attachments in a sandbox without path mapping. A copy of the thread has a different
path.
"""
_Described = tuple[str, str, str]
"""A tool definition that the model sees: name, description and parameters."""
_tools = msgspec.json.Decoder(tuple[_Described, ...])


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def message_digest(message: ModelMessage) -> str:
    if not isinstance(message, AssistantMessage) and message.images:
        images = tuple(Image(image.path.rpartition("/")[2], image.media_type) for image in message.images)
        message = msgspec.structs.replace(message, images=images)
    return digest_of(_ATTACHMENTS.sub(b"/attachments/", _encoder.encode(message)))


def stored_tools(tools: Sequence[ToolSpec]) -> tuple[str, bytes]:
    body = _encoder.encode([(tool.name, tool.description, tool.parameters) for tool in tools])
    return digest_of(body), body


def stored_specs(body: bytes) -> tuple[ToolSpec, ...]:
    """Decode the JSON from `stored_tools`. Raises msgspec.MsgspecError if it is damaged."""
    return tuple(ToolSpec(name, description, parameters) for name, description, parameters in _tools.decode(body))


def options_of(model: str, output_tokens: int, tool_choice: str, temperature: float | None) -> str:
    warmth = "" if temperature is None else f", temperature {temperature:g}"
    return f"{model}, {output_tokens} tokens, tools {tool_choice}{warmth}"


class RequestDigests:
    """Creates the marks of one thread's requests. A mark hashes only the messages added since the previous mark."""

    def __init__(self) -> None:
        self._messages: tuple[ModelMessage, ...] = ()
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._after = 0
        self._head = ("", "", "")
        self._system = ("", "")

    def note(self, data: AssistantSaid) -> None:
        """Record that this message is journaled. Later marks omit the values that its mark already contains."""
        if data.asked is not None:
            asked, (system, tools, options) = data.asked, self._head
            self._after = asked.after
            self._head = (asked.system or system, asked.tools or tools, asked.options or options)

    def mark(
        self,
        request: ModelRequest,
        system: str,
        tools: str,
        transcript: Transcript,
        room: TokenRoom | None,
        window_tokens: int,
    ) -> RequestMark:
        """Return the mark of a request.

        - `system`: the complete system text, even if the request contains a shortened one.
        - `tools`: the digest of all offered tools, even if the request contains fewer.
        - `room`: the token budget if the request omits messages, otherwise None.
        - `window_tokens`: the learned window size, or 0.
        """
        if system is not self._system[0]:
            self._system = system, digest_of(system.encode())
        options = options_of(request.model, request.max_output_tokens, request.tool_choice, request.temperature)
        known, added = self._head, list[str]()
        for entry in reversed(transcript.entries):
            if entry.seq <= self._after:
                break
            added.append(message_digest(entry.message))
        return RequestMark(
            after=transcript.last_seq,
            count=len(request.messages),
            digest=self.digest(request.messages),
            added=tuple(reversed(added)),
            system="" if self._system[1] == known[0] else self._system[1],
            tools="" if tools == known[1] else tools,
            options="" if options == known[2] else options,
            room=(room.events, room.artifacts) if room is not None else None,
            window_tokens=window_tokens,
        )

    def digest(self, messages: tuple[ModelMessage, ...]) -> str:
        known = len(self._messages)
        if messages[:known] != self._messages:
            known, self._hash = 0, hashlib.blake2b(digest_size=DIGEST_BYTES)
        for message in messages[known:]:
            self._hash.update(message_digest(message).encode())
        self._messages = messages
        return self._hash.hexdigest()
