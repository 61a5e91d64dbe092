"""Cards posted by other apps: Shoal reads every visible text exactly once."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.platforms.cards import PARTS_MAX, WORDS_CHARS_MAX, CardForm, words_of
from shoal.platforms.discord import messages as discord
from shoal.platforms.discord.wire import SnapshotContent
from shoal.platforms.google_chat import wire as google
from shoal.platforms.google_chat.wire import SpaceMessage
from shoal.platforms.http import Json
from shoal.platforms.slack import wire as slack
from shoal.platforms.slack.wire import SlackBot, SlackMessage
from shoal.platforms.teams import wire as teams
from shoal.platforms.teams.wire import TeamsActivity

T = TypeVar("T")


def of_slack(message: Json) -> str:
    return slack.cards_of(msgspec.convert(_raw(message, SlackMessage), SlackMessage), SlackBot("UBOT"))


def of_teams(card: Json, kind: str = "application/vnd.microsoft.card.adaptive") -> str:
    activity: Json = {"attachments": [{"contentType": kind, "content": card}]}
    return "\n".join(one.text for one in teams.references_of(_raw(activity, TeamsActivity)))


def of_google(message: Json) -> str:
    return google.cards_of(_raw(message, SpaceMessage))


def of_discord(message: Json) -> str:
    return discord.cards_of(_raw(message, SnapshotContent))


def _raw(content: Json, kind: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(content), type=kind)


def text(said: str, kind: str = "mrkdwn") -> Json:
    return {"type": kind, "text": said}


def rich(*elements: Json, kind: str = "rich_text_section") -> Json:
    return {"type": "rich_text", "elements": [{"type": kind, "elements": list(elements)}]}


BLOCKS: list[tuple[Json, str]] = [
    ({"type": "section", "text": text("*Disk full*")}, "*Disk full*"),
    ({"type": "section", "text": text("see <https://x.test/1|run 7> &amp; fix")}, "see run 7 (https://x.test/1) & fix"),
    ({"type": "section", "fields": [text("*Host*\ndb1"), text("95 %", "plain_text")]}, "*Host*\ndb1\n95 %"),
    ({"type": "header", "text": text("Incident", "plain_text")}, "Incident"),
    ({"type": "context", "elements": [text("opened by Ada"), {"type": "image", "alt_text": "a graph"}]},
     "opened by Ada\na graph"),
    ({"type": "image", "image_url": "https://x.test/i.png", "alt_text": "CPU", "title": text("Load", "plain_text")},
     "CPU\nLoad"),
    ({"type": "section", "text": text("a"), "accessory": {"type": "image", "alt_text": "b"}}, "a\nb"),
    ({"type": "actions", "elements": [{"type": "button", "text": text("Ack", "plain_text"), "value": "1"}]}, ""),
    ({"type": "actions", "elements": [{"type": "button", "text": text("Open", "plain_text"), "url": "https://x.test"}]},
     "Open (https://x.test)"),
    (rich({"type": "text", "text": "Build "}, {"type": "text", "text": "7", "style": {"bold": True}},
          {"type": "text", "text": " failed"}), "Build 7 failed"),
    (rich({"type": "link", "url": "https://x.test/7", "text": "log"}, {"type": "text", "text": "!"}),
     "log (https://x.test/7)!"),
    (rich({"type": "link", "url": "https://x.test/7"}), "https://x.test/7"),
    (rich({"type": "user", "user_id": "UADA"}, {"type": "text", "text": " look "}, {"type": "emoji", "name": "fire"}),
     "<@UADA> look :fire:"),
    (rich({"type": "broadcast", "range": "here"}, {"type": "channel", "channel_id": "C1"}), "@here<#C1>"),
    (rich({"type": "text", "text": "x = 1\ny = 2"}, kind="rich_text_preformatted"), "x = 1\ny = 2"),
    (rich({"type": "text", "text": "quoted"}, kind="rich_text_quote"), "quoted"),
    ({"type": "rich_text", "elements": [{"type": "rich_text_list", "elements": [
        {"type": "rich_text_section", "elements": [{"type": "text", "text": one}]} for one in ("one", "two")]}]},
     "one\ntwo"),
    ({"type": "table", "rows": [[{"type": "raw_text", "text": "host"}, {"type": "raw_text", "text": "load"}],
                                [rich({"type": "text", "text": "db1"}), {"type": "raw_text", "text": "9"}]]},
     "host | load\ndb1 | 9"),
    ({"type": "markdown", "text": "**Deploy** done"}, "**Deploy** done"),
    ({"type": "video", "title": text("Demo", "plain_text"), "description": text("of it", "plain_text"),
      "alt_text": "a film", "video_url": "https://x.test/v"}, "Demo\nof it\na film"),
    ({"type": "call", "call_id": "R1", "call": {"v1": {"name": "Standup", "join_url": "https://x.test/j"}}},
     "Standup (https://x.test/j)"),
    ({"type": "card", "title": text("Outage"), "body": text("db1 is down")}, "Outage\ndb1 is down"),
    ({"type": "divider"}, ""),
    ({"type": "hologram", "title": "of tomorrow", "body": {"text": "deep"}}, "of tomorrow\ndeep"),
    ({"type": "input", "label": text("Why?", "plain_text"), "element": {"type": "static_select", "options": [
        {"text": text("no", "plain_text"), "value": "no"}]}}, "Why?"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "said"), BLOCKS)
@pytest.mark.parametrize("inside", ["message", "attachment"])
def test_every_slack_block_is_read(block: Json, said: str, inside: str) -> None:
    message: Json = {"blocks": [block]} if inside == "message" else {"attachments": [{"blocks": [block]}]}
    assert of_slack(message) == said


@pytest.mark.parametrize(
    ("attachment", "said"),
    [
        ({"pretext": "New alert", "title": "CPU", "text": "95 % on <https://x.test|db1>"},
         "New alert\nCPU\n95 % on <https://x.test|db1>"),
        ({"fields": [{"title": "Host", "value": "db1", "short": True}, {"title": "Load", "value": "9"}]},
         "Host: db1\nLoad: 9"),
        ({"author_name": "Grafana", "footer": "prod", "ts": 1}, "Grafana\nprod"),
        ({"title": "DiskFull", "title_link": "https://x.test/1", "text": "db1"}, "DiskFull (https://x.test/1)\ndb1"),
        ({"fallback": "only this"}, "only this"),
        ({"fallback": "not this", "text": "this"}, "this"),
    ],
)  # fmt: skip
def test_every_part_of_a_slack_attachment_is_read(attachment: Json, said: str) -> None:
    assert of_slack({"attachments": [attachment]}) == said


def test_text_already_in_the_message_is_not_repeated() -> None:
    message: Json = {"text": "Disk full on db1", "blocks": [{"type": "section", "text": text("Disk full on db1")}]}
    assert of_slack(message) == ""


ADAPTIVE: list[tuple[Json, str]] = [
    ({"type": "TextBlock", "text": "Build **7** failed"}, "Build **7** failed"),
    ({"type": "FactSet", "facts": [{"title": "Host", "value": "db1"}, {"title": "Load", "value": "9"}]},
     "Host: db1\nLoad: 9"),
    ({"type": "RichTextBlock", "inlines": ["Disk ", {"type": "TextRun", "text": "full"}, " now"]}, "Disk full now"),
    ({"type": "ColumnSet", "columns": [{"items": [{"type": "TextBlock", "text": "a"}]},
                                       {"items": [{"type": "TextBlock", "text": "b"}]}]}, "a\nb"),
    ({"type": "Container", "items": [{"type": "TextBlock", "text": "deep"}]}, "deep"),
    ({"type": "Table", "rows": [
        {"type": "TableRow", "cells": [{"items": [{"type": "TextBlock", "text": "host"}]},
                                       {"items": [{"type": "TextBlock", "text": "load"}]}]},
        {"type": "TableRow", "cells": [{"items": [{"type": "TextBlock", "text": "db1"}]},
                                       {"items": [{"type": "TextBlock", "text": "9"}]}]}]}, "host | load\ndb1 | 9"),
    ({"type": "Image", "url": "https://x.test/i.png", "altText": "a graph"}, "a graph"),
    ({"type": "ActionSet", "actions": [{"type": "Action.Submit", "title": "Ack"}]}, ""),
    ({"type": "ActionSet", "actions": [{"type": "Action.OpenUrl", "title": "Log", "url": "https://x.test/7"}]},
     "Log (https://x.test/7)"),
    ({"type": "Input.Text", "label": "Why?", "id": "why"}, "Why?"),
    ({"type": "Media", "altText": "a film", "sources": []}, "a film"),
    ({"type": "CodeBlock", "codeSnippet": "df -h", "language": "Bash"}, "df -h"),
    ({"type": "ActionSet", "actions": [{"type": "Action.ShowCard", "title": "More", "card": {
        "type": "AdaptiveCard", "body": [{"type": "TextBlock", "text": "inside"}]}}]}, "More\ninside"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "said"), ADAPTIVE)
def test_every_part_of_an_adaptive_card_is_read(part: Json, said: str) -> None:
    assert of_teams({"type": "AdaptiveCard", "version": "1.5", "body": [part]}) == said


@pytest.mark.parametrize("kind", ["hero", "thumbnail"])
def test_simple_cards_of_teams_are_read(kind: str) -> None:
    button: Json = {"type": "openUrl", "title": "See", "value": "https://x.test"}
    card: Json = {"title": "Tide", "subtitle": "Harbour", "text": "High at six", "buttons": [button]}
    said = of_teams(card, f"application/vnd.microsoft.card.{kind}")
    assert said == "Tide\nHarbour\nHigh at six\nSee (https://x.test)"


def test_a_connector_card_is_read() -> None:
    section: Json = {"activityTitle": "Run 7", "activitySubtitle": "main", "facts": [{"name": "Host", "value": "db1"}]}
    card: Json = {"summary": "Failed", "title": "CI", "sections": [section]}
    assert of_teams(card, "application/vnd.microsoft.teams.card.o365connector") == "Failed\nCI\nRun 7\nmain\nHost: db1"


WIDGETS: list[tuple[Json, str]] = [
    ({"textParagraph": {"text": "<b>Disk</b> full<br>&amp; hot"}}, "Disk full& hot"),
    ({"decoratedText": {"topLabel": "Host", "text": "db1", "bottomLabel": "prod"}}, "Host\ndb1\nprod"),
    ({"keyValue": {"topLabel": "Host", "content": "db1"}}, "Host\ndb1"),
    ({"image": {"imageUrl": "https://x.test/i.png", "altText": "a graph"}}, "a graph"),
    ({"columns": {"columnItems": [{"widgets": [{"textParagraph": {"text": "a"}}]},
                                  {"widgets": [{"textParagraph": {"text": "b"}}]}]}}, "a\nb"),
    ({"grid": {"title": "Hosts", "items": [{"title": "db1", "subtitle": "hot"}]}}, "Hosts\ndb1\nhot"),
    ({"buttonList": {"buttons": [{"text": "Ack", "onClick": {"action": {"function": "f"}}}]}}, ""),
    ({"buttonList": {"buttons": [{"text": "Log", "onClick": {"openLink": {"url": "https://x.test"}}}]}},
     "Log (https://x.test)"),
    ({"textInput": {"label": "Why?", "name": "why"}}, "Why?"),
    ({"textParagraph": {"text": "a < b and <users/1> stays"}}, "a < b and <users/1> stays"),
]  # fmt: skip


@pytest.mark.parametrize(("widget", "said"), WIDGETS)
@pytest.mark.parametrize("version", ["cardsV2", "cards"])
def test_every_widget_of_google_chat_is_read(widget: Json, said: str, version: str) -> None:
    card: Json = {"header": {"title": "Alert", "subtitle": "prod"}, "sections": [{"header": "S", "widgets": [widget]}]}
    message: Json = {"cardsV2": [{"cardId": "1", "card": card}]} if version == "cardsV2" else {"cards": [card]}
    assert of_google(message) == "\n".join(filter(None, ("Alert\nprod\nS", said)))


COMPONENTS: list[tuple[Json, str]] = [
    ({"type": 10, "content": "Disk full"}, "Disk full"),
    ({"type": 17, "components": [{"type": 10, "content": "deep"}, {"type": 14}]}, "deep"),
    ({"type": 9, "components": [{"type": 10, "content": "a"}], "accessory": {"type": 11, "description": "a graph"}},
     "a\na graph"),
    ({"type": 12, "items": [{"media": {"url": "https://x.test/i.png"}, "description": "a photo"}]}, "a photo"),
    ({"type": 13, "file": {"url": "attachment://log.txt"}, "name": "log.txt"}, "log.txt"),
    ({"type": 1, "components": [{"type": 2, "label": "Ack", "custom_id": "1"}]}, ""),
    ({"type": 1, "components": [{"type": 2, "label": "Log", "url": "https://x.test"}]}, "Log (https://x.test)"),
    ({"type": 1, "components": [{"type": 3, "custom_id": "1", "options": [{"label": "no"}]}]}, ""),
    ({"type": 99, "components": [{"type": 10, "content": "of tomorrow"}]}, "of tomorrow"),
]  # fmt: skip


@pytest.mark.parametrize(("component", "said"), COMPONENTS)
def test_every_component_of_discord_is_read(component: Json, said: str) -> None:
    assert of_discord({"components": [component]}) == said


def test_every_part_of_an_embed_is_read() -> None:
    embed: Json = {
        "author": {"name": "CI"}, "title": "Run 7", "description": "failed",
        "fields": [{"name": "Host", "value": "db1"}], "footer": {"text": "prod"},
    }  # fmt: skip
    assert of_discord({"embeds": [embed]}) == "CI\nRun 7\nfailed\nHost: db1\nprod"


@pytest.mark.parametrize("content", ["", "see https://x.test/7"])
def test_a_titles_address_is_shown_if_the_text_lacks_it(content: str) -> None:
    embed: Json = {"title": "Run 7", "url": "https://x.test/7"}
    said = of_discord({"content": content, "embeds": [embed]})
    assert said == ("Run 7" if content else "Run 7 (https://x.test/7)")


FORM = CardForm(said=frozenset({"text"}))
READERS: list[Callable[[Json], str]] = [
    lambda card: of_slack({"blocks": [card], "attachments": [card]}),
    of_teams,
    lambda card: of_google({"cardsV2": [card]}),
    lambda card: of_discord({"components": [card]}),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("key", ["elements", "items", "widgets", "components", "rows", "text"])
def test_an_endless_card_is_bounded(read: Callable[[Json], str], key: str) -> None:
    deep: Json = {"text": "end", "content": "end"}
    for _ in range(200):
        deep = {key: [deep]}
    assert len(read(deep)) < 100
    wide: Json = {key: [{"text": "word " * 100, "content": "word " * 100} for _ in range(1000)]}
    assert len(read(wide)) <= 2 * WORDS_CHARS_MAX + 100


def test_an_oversized_card_is_read_from_its_beginning() -> None:
    parts: Json = [{"text": "a"} for _ in range(2 * PARTS_MAX)]
    assert 0 < words_of(parts, FORM).count("a") <= PARTS_MAX


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["text", "type", "elements", "rows", "cells", "url", "title", "value", "onClick"]),
                inner,
            )
        ),
        max_leaves=20,
    )
)
def test_any_card_can_be_read(card: Json) -> None:
    for read in READERS:
        read(card)
