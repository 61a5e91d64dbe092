"""Voice: transcribe recordings for the model, and speak replies in channels where spoken replies are on.

recording                                   what the model receives
-----------------------------------------   -----------------------------------------------------------------
alone                                       its transcript, as if the person had typed it
with text                                   the text, followed by the transcript with the file's name
quoted or forwarded from another person     its transcript with the file, in an untrusted block unless that
                                            person is trusted
too long, or without intelligible speech    the recording as a file; the person gets the reason
any, if recognition is not configured       the recording as a file

Each paid external call is made only once. Its result is first stored as a file of the thread, in `speech/`, which no
tool can reach. After a crash, the result is read from there. Its cost is recorded under a unique id, so it is also
counted once. The recording itself is stored with the message.
"""

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from shoal.assembly.outside import Adapters
from shoal.delivery.sender import Senders
from shoal.features.voice.settings import VOICE_MODES, SpeechSettings, VoiceMode
from shoal.features.voice.speech import build_speech
from shoal.kernel.clock import Clock, retry_delay
from shoal.kernel.errors import ProviderDown, ProviderRefused, system_words
from shoal.kernel.files import Folders, in_thread
from shoal.kernel.home import Home
from shoal.kernel.ids import ThreadId, TurnId, channel_of, thread_address
from shoal.kernel.live_config import LiveConfig
from shoal.kernel.messages import Attachment, Prompt, Usage
from shoal.kernel.permissions import Asker
from shoal.kernel.ports import ChatAdapter, Settings, Speech
from shoal.kernel.records import NewPost, OutboxRow
from shoal.kernel.regular_files import read_regular
from shoal.kernel.speech import AudioFormat, Heard, seconds_of
from shoal.kernel.untrusted import UNREADABLE
from shoal.markdown.spoken import speakable
from shoal.permissions.access import Links, People
from shoal.store.store import Store
from shoal.threads.attachments import Attachments
from shoal.tools.executor import LiveToolServices
from shoal.turn.spending import Charge, Spending

if TYPE_CHECKING:
    from shoal.services import Services

log = logging.getLogger(__name__)

VOICE = "voice"
"""Settings scope that stores the VoiceMode of each channel. Keys have the form `PLATFORM:CHANNEL:`."""
FOLDER = "speech"
HEARD, SPOKEN = "heard.json", "spoken.json"
TRIES = 3
BYTES_A_SECOND_MIN = 1_500
"""Minimum number of bytes per second of speech. Used to estimate the duration of a recording that does not state it."""
WORDS_CHARS_MAX = 20_000
UNHEARD = "I could not understand {name}: {why} I kept the recording with your message."

ResultT = TypeVar("ResultT")


class _Recording(msgspec.Struct, frozen=True):
    """A synthesized recording. `usd` is None if the price is unknown."""

    name: str
    usage: Usage
    usd: float | None


class VoiceService(msgspec.Struct, frozen=True, eq=False):
    """Service that transcribes recordings for turns and speaks replies for senders. `post` adds a message to the
    outbox.
    """

    recognition: Speech | None
    speaking: Speech | None
    settings: SpeechSettings
    spending: Spending
    choices: Settings
    home: Home
    clock: Clock
    people: People
    adapters: Mapping[str, ChatAdapter]
    folders: Folders
    post: Callable[[NewPost], Awaitable[None]]

    @classmethod
    def of(cls, services: "Services") -> "VoiceService":
        """Create the service from the configuration. Raises ConfigError if a model in [speech] is invalid."""
        config, clock = services[LiveConfig].current, services[Clock]
        settings = config.section(SpeechSettings)
        return cls(
            build_speech("recognition", settings, config.providers, clock, os.environ),
            build_speech("speaking", settings, config.providers, clock, os.environ),
            settings,
            services[Spending],
            services[Store].settings,
            services[Home],
            clock,
            services[Links].people,
            services[Adapters],
            services[Folders],
            services[LiveToolServices].post,
        )

    # ---- incoming ----

    async def heard(self, prompt: Prompt, agent: str, asker: Asker) -> Prompt:
        """Return the message with transcripts of its recordings. If a transcription fails, the recording remains a file
        and the person gets the reason.

        The transcript of a quoted or forwarded recording remains with its file. It never counts as the author's words.
        """
        if self.recognition is None:
            return prompt
        files, texts = list(prompt.attachments), [prompt.text] if prompt.text else []
        is_alone = not prompt.text and sum(file.author is None for file in files) == 1
        for number, file in enumerate(files):
            if not file.media_type.startswith("audio/") or not file.path or file.error or file.words:
                continue
            try:
                words = await self._words(prompt.thread, file, self.recognition, agent, asker)
            except ProviderRefused as error:
                log.warning("recognizing speech failed", extra={"thread_id": prompt.thread, "why": str(error)})
                files[number] = msgspec.structs.replace(file, error=f"not recognized: {error}")
                is_plain = not prompt.text and file.author is None
                text = UNHEARD.format(name="your voice message" if is_plain else file.name, why=error)
                id, answered = f"unheard:{prompt.key}:{number}", prompt.message_id
                await self.post(NewPost(id, prompt.thread, text, reply_to=answered))
                continue
            files[number] = msgspec.structs.replace(file, words=words)
            if file.author is None:
                texts.append(words if is_alone else f"[Said in {file.name}:] {words}")
        return msgspec.structs.replace(prompt, text="\n\n".join(texts), attachments=tuple(files))

    async def _words(self, thread: ThreadId, file: Attachment, recognition: Speech, agent: str, asker: Asker) -> str:
        """Return a recording's transcript. Each recording is transcribed and charged once per thread.

        Raises ProviderRefused with the reason if the recording cannot be transcribed.
        """
        try:
            audio = await in_thread(Path(file.path).read_bytes)
        except OSError as error:
            raise ProviderRefused(f"it is unreadable: {system_words(error)}.") from error
        if len(audio) > self.settings.bytes_max:
            raise ProviderRefused(f"it is larger than {self.settings.bytes_max:,} bytes (speech.bytes_max).")
        seconds = seconds_of(audio)
        if seconds > self.settings.seconds_max:
            allowed = self.settings.seconds_max
            raise ProviderRefused(f"it lasts {seconds:.0f} s, but the limit is {allowed:g} s (speech.seconds_max).")
        digest = hashlib.sha256(audio).hexdigest()[:32]
        charge = Charge(f"heard:{thread}:{digest}", recognition.name, thread, TurnId(""), agent, asker)
        heard = await self._stored(thread, digest, HEARD, Heard)
        if heard is None:
            longest = seconds or min(self.settings.seconds_max, len(audio) / BYTES_A_SECOND_MIN)
            refused = await self.spending.set_aside(charge, _usd(recognition.usd_per_minute, longest / 60), 0)
            if refused:
                raise ProviderRefused(refused)
            for attempt in range(1, TRIES + 1):
                try:
                    heard = await recognition.transcribe(audio, file.media_type)
                    break
                except (ProviderRefused, ProviderDown) as error:
                    if isinstance(error, ProviderRefused) or attempt == TRIES:
                        await self.spending.release(charge)
                        raise ProviderRefused(str(error)) from error
                    await self.clock.sleep(retry_delay(attempt))
            assert heard is not None, "a failed recognition raises"
            usd = _usd(recognition.usd_per_minute, (heard.seconds or longest) / 60)
            heard = msgspec.structs.replace(heard, text=heard.text[:WORDS_CHARS_MAX], usd=usd)
            try:
                await self._store(thread, digest, {HEARD: msgspec.json.encode(heard)})
            except OSError as error:
                log.warning("storing transcript failed", extra={"thread_id": thread, "why": str(error)})
        await self.spending.record(charge, heard.usage, heard.usd)
        if not heard.text:
            raise ProviderRefused("it contains no speech.")
        return heard.text

    # ---- outgoing ----

    async def speaks(self, prompt: Prompt) -> bool:
        if not self._form(prompt.thread) or prompt.origin not in ("person", "api"):
            return False
        mode = await self.mode(prompt.thread)
        spoken = any(file.words and file.author is None for file in prompt.attachments)  # recorded by the author
        return mode == "on" or (mode == "auto" and spoken)

    async def mode(self, thread: ThreadId) -> VoiceMode:
        chosen = await self.choices.get(VOICE, channel_of(thread))
        return chosen if chosen in VOICE_MODES else self.settings.answers

    async def choose(self, thread: ThreadId, mode: VoiceMode) -> str:
        """Store the voice mode of the thread's channel, and return the confirmation. Raises StoreError."""
        await self.choices.put(VOICE, channel_of(thread), mode)
        if mode == "off":
            return "I answer in writing."
        if self.speaking is None:
            return "Saved, but no voice is configured yet. My owner can set `speech.speaking`."
        if not self._form(thread):
            return "Saved, but this platform cannot play voice messages."
        return "I also answer aloud." if mode == "on" else "I also answer aloud when you speak to me."

    async def say(self, row: OutboxRow) -> Path:
        """Return the audio file of a post. Each post is synthesized and charged once.

        Raises ProviderDown and ProviderRefused with the reason for a failure.
        """
        speaking, spoken = self.speaking, row.post.spoken
        text = speakable(row.post.text, self.settings.chars_max)
        if speaking is None or spoken is None:
            raise ProviderRefused("no voice is configured.")
        if not text:
            raise ProviderRefused("it contains no text to read aloud.")
        digest = _digest_of(row.id)
        asker = self.people.asker(spoken.author.asker(row.thread, direct=spoken.direct))
        charge = Charge(row.id, speaking.name, row.thread, TurnId(""), spoken.agent, asker)
        recording = await self._stored(row.thread, digest, SPOKEN, _Recording)
        if recording is None:
            usd = _usd(speaking.usd_per_million_chars, len(text) / 1_000_000)
            refused = await self.spending.set_aside(charge, usd, 0)
            if refused:
                raise ProviderRefused(refused)
            try:
                answer = await speaking.say(text, self._form(row.thread) or "ogg")
            except (ProviderRefused, ProviderDown):
                await self.spending.release(charge)
                raise
            extension = {"audio/mpeg": "mp3"}.get(answer.media_type, answer.media_type.rpartition("/")[2])
            recording = _Recording(f"answer.{extension}", answer.usage, usd)
            try:
                files = {recording.name: answer.audio, SPOKEN: msgspec.json.encode(recording)}
                await self._store(row.thread, digest, files)
            except OSError as error:
                raise ProviderDown(f"storing the recording failed: {system_words(error)}.") from error
        await self.spending.record(charge, recording.usage, recording.usd)
        return self._folder(row.thread, digest) / recording.name

    async def recording(self, thread: ThreadId, post: str) -> Path | None:
        digest = _digest_of(post)
        recording = await self._stored(thread, digest, SPOKEN, _Recording)
        return None if recording is None else self._folder(thread, digest) / recording.name

    def _form(self, thread: ThreadId) -> AudioFormat | Literal[""]:
        adapter = self.adapters.get(thread_address(thread).platform)
        return "" if adapter is None else adapter.limits.voice

    # ---- stored results of paid calls ----

    def _folder(self, thread: ThreadId, digest: str) -> Path:
        return self.home.thread(thread) / FOLDER / digest

    async def _stored(self, thread: ThreadId, digest: str, name: str, kind: type[ResultT]) -> ResultT | None:
        await self.folders.pull(thread)
        path = self._folder(thread, digest) / name

        def read() -> ResultT | None:
            try:
                return msgspec.json.decode(read_regular(path), type=kind)
            except (FileNotFoundError, *UNREADABLE):
                return None

        return await in_thread(read)

    async def _store(self, thread: ThreadId, digest: str, files: Mapping[str, bytes]) -> None:
        """Store all of these files or none, even after a power failure."""
        folder = self._folder(thread, digest)

        def write() -> None:
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = folder.with_name(f".{secrets.token_hex(8)}")
            part.mkdir()
            for name, content in files.items():
                with (part / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)

        await in_thread(write)
        await self.folders.push(thread)


def _usd(price: float | None, amount: float) -> float | None:
    return None if price is None else price * amount


def _digest_of(post: str) -> str:
    return hashlib.sha256(post.encode()).hexdigest()[:32]


@asynccontextmanager
async def open_voice(services: "Services") -> AsyncGenerator[None]:
    """Connect speech recognition to turns and synthesis to senders, if their models are configured.

    Raises ConfigError if a model in [speech] is invalid.
    """
    voice = services[VoiceService]
    if voice.recognition is not None:
        services[Attachments].transcribe = voice.heard
    if voice.speaking is not None:
        services[Senders].speaks, services[Senders].speak = voice.speaks, voice.say
    try:
        yield
    finally:
        for model in (voice.recognition, voice.speaking):
            if model is not None:
                await model.close()
