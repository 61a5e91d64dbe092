"""/voice: choose whether replies are spoken in a channel."""

from typing import TYPE_CHECKING

from shoal.features.voice.service import VoiceService
from shoal.features.voice.settings import VOICE_MODES
from shoal.kernel.commands import ChatCommand, CommandRequest, CommandSpec
from shoal.kernel.errors import Forbidden
from shoal.kernel.ids import ThreadId

if TYPE_CHECKING:
    from shoal.services import Services

VOICE = CommandSpec(
    "voice", "answer aloud: always, never or after your voice messages", "[on|off|auto]", number=16, needs="thread"
)
USAGE = "`/voice on`, `/voice off`, or `/voice auto` to answer aloud when you speak to me"
MODES = {"on": "always", "off": "never", "auto": "when you speak to me"}


def chat_commands(services: "Services") -> list[ChatCommand]:
    command = VoiceCommand(services[VoiceService])
    return [ChatCommand(VOICE, command.voice, command.voice_in_channel)]


class VoiceCommand:
    def __init__(self, voice: VoiceService) -> None:
        self._voice = voice

    async def voice(self, asked: CommandRequest) -> str:
        """Show or set whether replies are spoken in the channel. Raises Forbidden if an untrusted person sets it."""
        mode = asked.argument.lower()
        if not mode:
            return f"I answer aloud {MODES[await self._voice.mode(asked.thread)]}. Usage: {USAGE}."
        if mode not in VOICE_MODES:
            return f"Usage: {USAGE}."
        if not asked.author.trusted:
            raise Forbidden("Only people listed by name in the access rules can change this setting.")
        return await self._voice.choose(asked.thread, mode)

    async def voice_in_channel(self, asked: CommandRequest, latest: ThreadId | None) -> str:
        """Run /voice outside the threads of a channel. All threads of the channel share the setting."""
        return await self.voice(asked)
