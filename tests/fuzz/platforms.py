"""Sample messages of each platform and functions that read them, for the target `platforms`.

For a new adapter, add a `Reading` with a few real samples and a function that processes a body up to the first write
to the store. The function may raise only errors that the adapter catches.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from shoal.kernel.commands import CommandTable
from shoal.kernel.errors import ShoalError
from shoal.kernel.untrusted import UNREADABLE, decode_known
from shoal.platforms import webhook
from shoal.platforms.discord import messages as discord
from shoal.platforms.discord.wire import DiscordChannel, DiscordMessage
from shoal.platforms.google_chat import wire as google_chat
from shoal.platforms.slack import wire as slack
from shoal.platforms.slack.wire import EventCall, SlackBot, SlackMessage
from shoal.platforms.teams import wire as teams
from shoal.platforms.telegram import wire as telegram
from tests.fuzz.inputs import Json

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Reading(NamedTuple):
    """Sample messages of a platform, and the function that reads a message body."""

    samples: tuple[Json, ...]
    read: Callable[[bytes], None]


_ADA: Json = {"id": 5, "is_bot": False, "first_name": "Ada", "username": "ada"}
_TELEGRAM: tuple[Json, ...] = (
    {
        "update_id": 1,
        "message": {
            "message_id": 7,
            "from": _ADA,
            "chat": {"id": -100, "type": "supergroup"},
            "date": 1767603600,
            "message_thread_id": 3,
            "is_topic_message": True,
            "text": "@shoal_bot look 😀 /go",
            "entities": [
                {"type": "mention", "offset": 0, "length": 10},
                {"type": "bot_command", "offset": 19, "length": 3},
            ],
            "reply_to_message": {"message_id": 6, "chat": {"id": -100}, "from": _ADA},
        },
    },
    {
        "update_id": 2,
        "message": {
            "message_id": 8,
            "from": _ADA,
            "chat": {"id": 5, "type": "private"},
            "date": 1767603600,
            "caption": "a picture",
            "photo": [{"file_id": "f", "file_unique_id": "u", "file_size": 9}],
        },
    },
    {
        "update_id": 3,
        "callback_query": {
            "id": "q",
            "from": _ADA,
            "data": "allow:01",
            "message": {"message_id": 9, "chat": {"id": 5}},
        },
    },
)


def _telegram(body: bytes) -> None:
    try:
        update = msgspec.json.decode(body, type=telegram.Update)
    except UNREADABLE:
        return
    query = update.callback_query
    for message in (update.message, update.edited_message, query.message if query is not None else None):
        if message is not None:
            me = telegram.TelegramUser(9, username="shoal_bot")
            telegram.prompt_of("telegram", message, me)
            telegram.is_addressed(message, me)
            telegram.thread_of("telegram", message)
            telegram.file_of(message)


_DISCORD: tuple[Json, ...] = (
    {
        "id": "1201000000000000000",
        "channel_id": "7",
        "guild_id": "8",
        "author": {"id": "5", "username": "ada", "global_name": "Ada", "bot": False},
        "member": {"nick": "Ada L", "roles": ["r1"]},
        "content": "<@9> look at <@6>",
        "timestamp": "2026-01-05T09:00:00+00:00",
        "mentions": [{"id": "9", "username": "shoal"}, {"id": "6", "username": "bob"}],
        "message_reference": {"message_id": "1200000000000000000", "channel_id": "7"},
        "referenced_message": {"id": "1200000000000000000", "author": {"id": "9", "username": "shoal"}},
    },
    {
        "id": "1201000000000000001",
        "channel_id": "7",
        "author": {"id": "5", "username": "ada"},
        "message_snapshots": [{"message": {"content": "forwarded\nwords"}}],
    },
)


def _discord(body: bytes) -> None:
    try:
        message, _ = decode_known(body, DiscordMessage)
    except UNREADABLE:
        return
    discord.is_from_others(message, "9")
    discord.is_addressed(message, "9")
    place = discord.place_of(DiscordChannel(message.channel_id, type=0), message.guild_id)
    discord.prompt_of(discord.thread_of("discord", place, message.id, "native"), message, "9")


_SLACK: tuple[Json, ...] = (
    {
        "type": "event_callback",
        "team_id": "T1",
        "authorizations": [{"team_id": "T1"}],
        "event": {
            "type": "message",
            "channel": "C0123456789",
            "user": "U5",
            "text": "<@U9> see <https://example.org|here> &amp; <!channel> <#C1|room>",
            "ts": "1767603600.000100",
            "thread_ts": "1767603500.000100",
        },
    },
    {
        "type": "event_callback",
        "event": {
            "type": "message",
            "subtype": "message_changed",
            "channel": "C0123456789",
            "message": {"user": "U5", "text": "new", "ts": "1767603600.000100"},
            "previous_message": {"user": "U5", "text": "old", "ts": "1767603600.000100"},
        },
    },
)


def _slack(body: bytes) -> None:
    try:
        call, _ = decode_known(body, EventCall)
        event, _ = decode_known(call.event, SlackMessage)
    except UNREADABLE:
        return
    call.is_of("T1")
    me = SlackBot("U9", "B9", "T1")
    slack.is_about_message(event)
    slack.is_from_others(event, me)
    if slack.is_written(event, me):
        slack.prompt_of("slack", event, me)
        slack.is_addressed(event, me)


_WEBHOOK: tuple[Json, ...] = (
    {
        "type": "message",
        "id": "m1",
        "channel": "harbour",
        "author": {"id": "5", "name": "Ada", "roles": ["crew"]},
        "text": "look",
        "at": "2026-01-05T09:00:00Z",
        "files": [{"name": "a.txt", "data": "aGk="}],
    },
    {"type": "edit", "id": "m1", "channel": "harbour", "author": {"id": "5"}, "text": "look again"},
    {"type": "reaction", "id": "m1", "channel": "harbour", "author": {"id": "5"}, "emoji": "x"},
)


def _webhook(body: bytes) -> None:
    try:
        call = msgspec.json.decode(body, type=webhook.Call)
    except UNREADABLE:
        return
    if isinstance(call, webhook.MessageCall):
        webhook.prompt_of("web-hook", call, NOW, joins=False)
    elif not isinstance(call, webhook.ClickCall):
        webhook.revision_of("web-hook", call)


_TEAMS: tuple[Json, ...] = (
    {
        "type": "message",
        "id": "1767603600001",
        "timestamp": "2026-01-05T09:00:00.1234567Z",
        "channelId": "msteams",
        "serviceUrl": "https://smba.trafficmanager.net/teams/",
        "from": {"id": "29:5", "name": "Ada", "aadObjectId": "a-5"},
        "recipient": {"id": "28:9", "name": "Shoal"},
        "conversation": {"id": "19:x@thread.tacv2;messageid=1767603600000", "conversationType": "channel"},
        "channelData": {"tenant": {"id": "t"}},
        "text": '<at>Shoal</at> look <at id="1">Bob</at>',
        "entities": [{"type": "mention", "mentioned": {"id": "28:9", "name": "Shoal"}, "text": "<at>Shoal</at>"}],
        "attachments": [
            {
                "contentType": "application/vnd.microsoft.teams.file.download.info",
                "name": "a.txt",
                "content": {"downloadUrl": "https://x.sharepoint.com/a", "fileType": "txt"},
            }
        ],
    },
    {
        "type": "invoke",
        "name": "fileConsent/invoke",
        "conversation": {"id": "a:1"},
        "value": {"action": "accept", "context": {"shoal": "01"}, "uploadInfo": {"uploadUrl": "https://x"}},
        "reactionsAdded": [{"type": "274c_crossmark"}],
    },
)


def _teams(body: bytes) -> None:
    try:
        activity, _ = decode_known(body, teams.TeamsActivity)
    except UNREADABLE:
        return
    teams.is_of_bot(activity)
    teams.is_addressed(activity)
    teams.tenant_of(activity)
    teams.host_of(activity.service_url)
    teams.is_here(activity.service_url)
    teams.pressed_in(activity)
    teams.files_of(activity)
    for reaction in activity.reactions_added or ():
        teams.emoji_of(reaction)
    teams.prompt_of("teams", activity, NOW)


_SAID: Json = {
    "name": "spaces/AAA/messages/B.C",
    "sender": {"name": "users/5", "displayName": "Ada", "type": "HUMAN"},
    "createTime": "2026-01-05T09:00:00.123456789Z",
    "text": "@Shoal /status now",
    "argumentText": " now",
    "slashCommand": {"commandId": "3"},
    "thread": {"name": "spaces/AAA/threads/B"},
    "attachment": [{"contentName": "a.txt", "attachmentDataRef": {"resourceName": "r"}}],
}
_GOOGLE_CHAT: tuple[Json, ...] = (
    {"type": "MESSAGE", "space": {"name": "spaces/AAA", "spaceType": "SPACE"}, "message": _SAID},
    {"type": "APP_COMMAND", "space": {"name": "spaces/AAA"}, "appCommandMetadata": {"appCommandId": 3}},
    {"type": "CARD_CLICKED", "action": {"parameters": [{"key": "shoal", "value": "allow:01"}]}},
    {
        "message": {"data": "e30=", "attributes": {"ce-type": "google.workspace.chat.message.v1.created"}},
        "subscription": "s",
    },
    {"message": _SAID, "reaction": {"name": "spaces/AAA/messages/B.C/reactions/D", "emoji": {"unicode": "x"}}},
)


def _google_chat(body: bytes) -> None:
    push = google_chat.push_in(body)
    if push is not None:
        push.message.content()
        return
    try:
        event, _ = decode_known(body, google_chat.ChatEvent)
        changes, _ = decode_known(body, google_chat.SpaceChanges)
    except UNREADABLE:
        return
    google_chat.pressed_in(event)
    google_chat.command_of(event, CommandTable())
    messages, reactions = changes.found()
    for reaction in reactions:
        google_chat.channel_of(google_chat.message_name(reaction.name))
    for message in messages:
        google_chat.prompt_of("google_chat", message, event.space, NOW)


READINGS: dict[str, Reading] = {
    "telegram": Reading(_TELEGRAM, _telegram),
    "discord": Reading(_DISCORD, _discord),
    "slack": Reading(_SLACK, _slack),
    "webhook": Reading(_WEBHOOK, _webhook),
    "teams": Reading(_TEAMS, _teams),
    "google_chat": Reading(_GOOGLE_CHAT, _google_chat),
}

ALLOWED = (ShoalError,)
"""Exceptions that reading may raise. An adapter reports them and continues."""
