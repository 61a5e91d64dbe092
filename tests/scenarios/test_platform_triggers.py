"""Automatic turns on several platforms: reminders, schedules, files, heartbeats, webhooks and processes."""

import json
from pathlib import Path

import httpx2
from tests.scenarios.delegation import cast
from tests.scenarios.kit import calls, in_time
from tests.scenarios.scene import STEP_SECONDS, Scene, playing
from tests.scenarios.stands import Stand

from shoal.features.triggers.settings import HookSettings
from shoal.features.triggers.store import TriggerStore
from shoal.features.triggers.webhooks import Webhooks
from shoal.kernel.home import Home
from shoal.kernel.secret import Secret
from shoal.surfaces.http.options import WebOptions
from shoal.surfaces.http.server import serve
from shoal.testing.model import FakeModel, Reply

SECRET = "a secret that both of us know"


def schedules(**arguments: str) -> Reply:
    return calls("schedule", arguments=json.dumps(arguments))


def starts(command: str, name: str = "job", **hook: object) -> Reply:
    hooks = [{"on": "exit", **hook}]
    return calls("process_start", arguments=json.dumps({"command": command, "name": name, "hooks": hooks}))


def drops(home: Path, **event: str) -> None:
    events = home / "data" / "events"
    events.mkdir(parents=True, exist_ok=True)
    (events / "signal.json").write_text(json.dumps(event))


async def test_a_reminder_reaches_the_person_who_set_it(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel("Time to stretch!")
    async with playing(stand, tmp_path, model) as scene:
        assert "is due at 2026-01-05 09:0" in await scene.ada.asks("/remind in 1 minutes stretch")
        assert "stretch" in await scene.ada.asks("/remind list")
        assert "Nothing is scheduled" in await scene.bob.asks("/remind list")
        await scene.ada.sees("Time to stretch!")
        assert "stretch" in model.requests[-1].messages[-1].text
        assert scene.texts(stand.harbour) in ([], ["Nothing is scheduled here."])


async def test_memories_are_listed_corrected_and_forgotten_by_command(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel()) as scene:
        memory = tmp_path / "data/MEMORY.md"
        memory.write_text("- the tide turns at six <!-- only owner -->\n- the tide turns at six\n")
        assert "the tide turns at six" in await scene.ada.asks("/memory tide")
        assert "New text: the tide turns at seven" in await scene.ada.asks(
            "/memory amend turns at six -> the tide turns at seven"
        )
        assert "Forgotten" in await scene.ada.asks("/memory forget turns at seven")
        assert "seven" not in memory.read_text()


async def test_an_agents_schedule_runs_in_its_thread_until_cancelled(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(schedules(do="create", when="* * * * *", text="look out"), "Made.", "Calm.", "Wind.", "Never.")
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("look out every minute")
        made = await scene.bob.sees("Made.")
        thread = await scene.thread_of(made)
        for said in ("Calm.", "Wind."):
            assert await scene.thread_of(await scene.bob.sees(said)) == thread
        (trigger,) = await scene.app[TriggerStore].all()
        model.add(schedules(do="cancel", id=trigger.id))
        await scene.bob.says("enough", to=made)
        await scene.comes(lambda: no_triggers(scene))


async def no_triggers(scene: Scene) -> bool:
    return not await scene.app[TriggerStore].all()


async def test_an_event_file_starts_a_turn_in_a_thread(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel("The file said so.")
    drops(tmp_path, type="immediate", threadId=stand.thread(stand.direct), text="something happened")
    async with playing(stand, tmp_path, model) as scene:
        await scene.ada.sees("The file said so.")
        assert scene.texts() == ["The file said so."]
        assert model.calls == 1


async def test_an_event_file_opens_a_channel_thread_for_its_answers(tmp_path: Path, stand: Stand) -> None:
    where = {"adapterId": stand.platform, "channelId": stand.harbour}
    drops(tmp_path, type="one-shot", text="A storm is coming.", schedule="2026-01-05T09:01:00Z", **where)
    async with playing(stand, tmp_path, FakeModel("I take in sail.", "Two reefs.")) as scene:
        posted = await scene.bob.sees("A storm is coming.")
        thread = await scene.thread_of(await scene.bob.sees("I take in sail."))
        await scene.bob.says("how much?", to=posted)
        assert await scene.thread_of(await scene.bob.sees("Two reefs.")) == thread


async def test_a_heartbeat_message_reaches_the_owner(tmp_path: Path, stand: Stand) -> None:
    tells = calls("message", arguments='{"text": "Low tide at six."}')
    model = cast(morning=["hello"], boat=["at the pier"], heartbeat=[tells, "[SILENT]"])
    async with playing(stand, tmp_path, model, settings={"triggers": {"heartbeat_minutes": 1}}) as scene:
        await scene.ada.says("good morning")
        await scene.ada.sees("hello")
        await scene.bob.says("where is the boat?")
        await scene.bob.sees("at the pier")
        (scene.app[Home].data / "HEARTBEAT.md").write_text("- Tell when the tide is low.\n")
        await scene.ada.sees("Low tide at six.")
        (scene.app[Home].data / "HEARTBEAT.md").write_text("# Nothing\n")
        assert all(len(request.messages) in (1, 3) for request in model.requests), "without history"


async def test_a_webhook_posts_once_in_a_channel_and_taints(tmp_path: Path, stand: Stand) -> None:
    hook = HookSettings(
        secret=Secret(detail=SECRET), template="Build of {{ name }}.", channel=f"{stand.platform}:{stand.harbour}"
    )
    model = FakeModel(calls("bash", arguments='{"command": "curl https://example.org"}'), "I leave it.")
    async with playing(stand, tmp_path, model) as scene:
        options = WebOptions(token="unused", port=0)
        scene.app[Webhooks]["ci"] = hook
        headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": "d1"}
        async with serve(scene.app, options) as address, httpx2.AsyncClient(base_url=address) as client:
            for duplicate in (False, True):
                coming = client.post("/hooks/ci", json={"name": "tide"}, headers=headers)
                answer = await in_time(stand.clock, coming, STEP_SECONDS)
                assert (answer.status_code, answer.json()["duplicate"]) == (202, duplicate)
        card = await scene.bob.sees("curl https://example.org")
        assert "webhook ci" in card.text
        await stand.clicks(card, "Deny", stand.ada)
        await scene.bob.sees("I leave it.")
        assert [text for text in scene.texts(stand.harbour) if "Build of" in text] == ['Build of "tide".']


async def test_the_end_of_a_process_is_reported_in_its_thread(tmp_path: Path, stand: Stand) -> None:
    model = FakeModel(
        starts("echo nearly; exit 3", codes=[3], note="fetch a plumber"), "It runs.", "I call the plumber."
    )
    async with playing(stand, tmp_path, model) as scene:
        await scene.bob.says("start it")
        thread = await scene.thread_of(await scene.bob.sees("It runs."))
        assert await scene.thread_of(await scene.bob.sees("I call the plumber.")) == thread
    asked = model.requests[-1].messages[-1].text
    assert "ended with exit code 3" in asked
    assert "fetch a plumber" in asked
    assert "nearly" in asked


async def test_a_process_is_listed_and_reported_lost_after_a_restart(tmp_path: Path, stand: Stand) -> None:
    async with playing(stand, tmp_path, FakeModel(starts("sleep 600", "watcher"), "Started.")) as scene:
        await scene.ada.says("start it")
        await scene.ada.sees("Started.")
        assert "watcher" in await scene.ada.asks("/tasks")
    async with playing(stand, tmp_path, FakeModel("It was lost.")) as scene:
        await scene.ada.sees("It was lost.")
