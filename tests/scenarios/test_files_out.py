"""Files that the agent sends: pictures, albums, and long texts as files."""

import json
from pathlib import Path

from tests.scenarios.test_voice import ADA, running, sees, stage

from shoal.agents.registry import AgentRegistry
from shoal.services import Services
from shoal.testing.contracts.chat import PICTURE
from shoal.testing.model import Call, FakeModel, Reply


def call(name: str, **arguments: object) -> Reply:
    return Reply(calls=(Call(name, json.dumps(arguments)),))


def put(app: Services, name: str, content: bytes) -> None:
    path = app[AgentRegistry].spec("main").workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


async def test_pictures_sent_together_form_albums_of_bounded_size(tmp_path: Path) -> None:
    names = [f"tide-{number}.png" for number in range(10)]
    sends = call("upload", path=names[0], more=names[1:], comment="The week.")
    async with stage() as (telegram, _), running(tmp_path, telegram, model := FakeModel(sends, "Sent.")) as app:
        for name in names:
            put(app, name, PICTURE)
        await telegram.says(ADA, "show me the week")
        album = await sees(telegram, lambda sent: bool(sent.album))
        await sees(telegram, lambda sent: sent.text == "Sent.")
    assert (album.kind, album.text, len(album.album)) == ("photo", "The week.", 9)
    assert model.requests[-1].messages[-1].text.count("Posted ") == 10


async def test_a_picture_that_telegram_cannot_show_is_sent_as_a_document(tmp_path: Path) -> None:
    model = FakeModel(call("upload", path="chart.png"), "Sent.")
    async with stage() as (telegram, _), running(tmp_path, telegram, model) as app:
        put(app, "chart.png", b"no picture at all")
        await telegram.says(ADA, "show it")
        sent = await sees(telegram, lambda one: one.file is not None)
    assert (sent.kind, sent.file) == ("document", ("chart.png", b"no picture at all"))


async def test_a_long_text_is_sent_as_a_file_when_asked(tmp_path: Path) -> None:
    report = "# Tides\n\n" + "High at six. " * 800
    model = FakeModel(call("message", text=report, as_file="tides.md"), "")
    async with stage() as (telegram, _), running(tmp_path, telegram, model):
        await telegram.says(ADA, "send me the whole report as a file")
        sent = await sees(telegram, lambda one: one.file is not None)
    assert (sent.kind, sent.file) == ("document", ("tides.md", report.encode()))
    assert [one.text for one in telegram.said(ADA)] == [""]
