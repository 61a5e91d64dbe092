"""Several machines with separate homes, one database that has outages, and one object store."""

import json
import re
import subprocess
import sys
from collections.abc import Generator
from itertools import product
from pathlib import Path

import httpx2
import psycopg
import pytest
from tests import s3
from tests.postgres import SCRIPT, database, private_server
from tests.processes import Entry, Process, process
from tests.waiting import until

from shoal.net.connections import default_tls

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgres")]

THREAD = "web:lobby:sea"
SECRET = "sixteen-letters-at-least"
PAGE = "\n." * 4_000
"""Padding between the edited lines. Edits do not conflict, and each takes long enough to overlap."""


@pytest.fixture
def model() -> Generator[str]:
    command = [sys.executable, "-m", "shoal.testing.model", "--model", "fake-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip()
        running.terminate()


@pytest.fixture
def settings(model: str) -> dict[str, str]:
    return {
        "SHOAL_MODEL__NAME": "fake/fake-1",
        "SHOAL_PROVIDERS__FAKE__KIND": "openai",
        "SHOAL_PROVIDERS__FAKE__BASE_URL": f"{model}/v1",
        "SHOAL_SANDBOX__KIND": "host",
        "SHOAL_PERMISSIONS__DEFAULT_PROFILE": "open",
        "SHOAL_ENGINE__HEARTBEAT_SECONDS": "0.5",
        "SHOAL_ENGINE__STALLED_SECONDS": "3",
    }


@pytest.fixture
def shared(settings: dict[str, str]) -> Generator[dict[str, str]]:
    with database() as url, s3.server() as address:
        assert httpx2.put(f"{address}/machines", verify=default_tls()).status_code == 200
        yield {
            **settings,
            "DATABASE_URL": "postgresql:///?" + "&".join(url.split()),
            "SHOAL_FILES__URL": "s3://machines/of/ours",
            "SHOAL_FILES__ENDPOINT": address,
            "SHOAL_FILES__REGION": "us-east-1",
            "SHOAL_FILES__ACCESS_KEY": "key",
            "SHOAL_FILES__SECRET_KEY": "secret",
        }


def call(tool: str, **arguments: object) -> str:
    return f"tools=1 tool={tool} args={json.dumps(arguments)} words=1"


def result(events: list[Entry]) -> dict[str, object]:
    (found,) = [event.data for event in events if event.type == "tool_result"]
    return found


def test_files_follow_their_work_from_machine_to_machine(tmp_path: Path, shared: dict[str, str]) -> None:
    with process("serve", tmp_path / "serve", shared) as serve:
        uploaded = serve.ask(f"/api/threads/{THREAD}/attachments?name=chart.txt", raw=b"depth 12 m").json
        with process("worker", tmp_path / "a", shared):
            serve.says(THREAD, call("write", path="log.md", content="day one"), "1")
            assert "is_error" not in result(serve.turn_of(THREAD, "1"))
            serve.says(THREAD, call("bash", command="seq 1 3000"), "2")
            artifact = str(result(serve.turn_of(THREAD, "2"))["artifact"])
            serve.says(THREAD, "words=1", "3", attachments=[{"file": uploaded["file"]}])
            (said,) = [one.data for one in serve.turn_of(THREAD, "3") if one.type == "user_message"]
            assert said["attachments"][0]["path"].startswith(str(tmp_path / "a"))  # pyrefly: ignore[bad-index]
        with process("worker", tmp_path / "b", shared):
            serve.says(THREAD, call("read", path="log.md"), "4")
            assert "day one" in str(result(serve.turn_of(THREAD, "4"))["text"])
            serve.says(THREAD, call("read_artifact", artifact=artifact, grep="2999"), "5")
            assert "2999" in str(result(serve.turn_of(THREAD, "5"))["text"])
            serve.says(THREAD, call("read", path=f"/attachments/{uploaded['file']}"), "6")
            assert "depth 12 m" in str(result(serve.turn_of(THREAD, "6"))["text"])
        assert b"\n2999\n" in serve.ask(f"/api/threads/{THREAD}/artifacts/{artifact}").body
    assert not list((tmp_path / "b").rglob("data/artifacts/*"))
    assert (tmp_path / "b/agents/main/workspace/log.md").read_text() == "day one"
    lines = (tmp_path / "b/data/web/lobby/sea/log.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["seq"] == 1, "turns that ran elsewhere are in the readable log too"


def test_untrusted_file_changes_are_known_on_the_next_machine(tmp_path: Path, shared: dict[str, str]) -> None:
    bell = {
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__SECRET": SECRET,
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__TEMPLATE": call("write", path="log.md", content="hostile"),
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__THREAD": "web:lobby:bell",
    }
    with process("serve", tmp_path / "serve", {**shared, **bell}) as serve:
        with process("worker", tmp_path / "a", shared):
            assert serve._replace(token=SECRET).ask("/hooks/bell", {}).status == 202
            until(lambda: "turn_finished" in [event.type for event in serve.events("web:lobby:bell")])
            serve.says(THREAD, call("write", path="own.md", content="mine"), "1")
            serve.turn_of(THREAD, "1")
        with process("worker", tmp_path / "b", shared):
            serve.says(THREAD, call("read", path="own.md"), "2")
            assert not result(serve.turn_of(THREAD, "2")).get("tainted_by")
            serve.says(THREAD, call("read", path="log.md"), "3")
            read = result(serve.turn_of(THREAD, "3"))
    assert "hostile" in str(read["text"])
    assert read["tainted_by"] == "'log.md', written after webhook bell"
    assert (tmp_path / "b/agents/main/workspace/log.md").exists()


def test_memory_of_a_tainted_turn_taints_on_the_next_machine(tmp_path: Path, shared: dict[str, str]) -> None:
    bell = {
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__SECRET": SECRET,
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__TEMPLATE": call("write", path="log.md", content="hostile"),
        "SHOAL_TRIGGERS__WEBHOOKS__BELL__THREAD": "web:lobby:bell",
    }
    lasting = {
        "SHOAL_PERMISSIONS__DEFAULT_PROFILE": "lasting",
        "SHOAL_PERMISSIONS__PROFILES__LASTING__EXTENDS": "open",
        "SHOAL_PERMISSIONS__PROFILES__LASTING__TRUSTED_ALLOW": '["tool:remember:.*"]',
    }
    settings = {**shared, **lasting}
    with process("serve", tmp_path / "serve", {**settings, **bell}) as serve:
        with process("worker", tmp_path / "a", settings):
            assert serve._replace(token=SECRET).ask("/hooks/bell", {}).status == 202
            until(lambda: "turn_finished" in [event.type for event in serve.events("web:lobby:bell")])
            for number, said in enumerate((call("read", path="log.md"), call("remember", text="obey", scope="global"))):
                serve.says(THREAD, said, str(number))
                serve.turn_of(THREAD, str(number))
        with process("worker", tmp_path / "b", settings):
            serve.says("web:lobby:other", "words=1", "3")
            (started,) = [one for one in serve.turn_of("web:lobby:other", "3") if one.type == "turn_started"]
    assert "obey" in (tmp_path / "b/data/MEMORY.md").read_text()
    assert str(started.data["tainted_by"]).startswith("memory global, written after ")


def test_a_turn_on_one_machine_can_be_undone_on_another(tmp_path: Path, shared: dict[str, str]) -> None:
    command = "mkdir -p d/e; echo one > a; echo b > b; echo x > d/e/x; echo run > run; chmod 755 run; chmod 600 b"
    change = "echo two > a; rm b; rm -r d; echo now > new; chmod 644 run"
    at, workspace, turn = f"/api/threads/{THREAD}/turns", Path("agents/main/workspace"), ""

    def texts(machine: str) -> dict[str, str]:
        found = tmp_path / machine / workspace
        files = [one for one in found.rglob("*") if one.is_file() and ".git" not in one.parts]
        return {str(one.relative_to(found)): one.read_text() for one in files}

    with process("serve", tmp_path / "serve", shared) as serve:
        with process("worker", tmp_path / "a", shared):
            for number, one in enumerate((command, change)):
                serve.says(THREAD, call("bash", command=one), str(number))
                turn = serve.turn_of(THREAD, str(number))[0].turn
        shown = serve.ask(f"{at}/{turn}/changes").json
        files: list[dict[str, str]] = shown["files"]  # pyrefly: ignore[bad-assignment]
        assert {one["path"]: (one["change"], one["since"]) for one in files} == {
            "a": ("changed", ""), "b": ("removed", ""), "d/e/x": ("removed", ""), "new": ("added", ""),
            "run": ("mode", ""),
        }  # fmt: skip
        undone = serve.ask(f"{at}/{turn}/undo", {})
        assert undone.status == 200, undone.body
        with process("worker", tmp_path / "b", shared):
            serve.says(
                THREAD, call("bash", command="cat a b d/e/x; test -x run && echo runs; test -e new || echo gone"), "2"
            )
            assert str(result(serve.turn_of(THREAD, "2"))["text"]).split()[:5] == ["one", "b", "x", "runs", "gone"]
            assert texts("b") == {"a": "one\n", "b": "b\n", "d/e/x": "x\n", "run": "run\n"}
        again = serve.ask(f"{at}/{undone.json['id']}/undo", {})
        assert again.status == 200, again.body
        with process("worker", tmp_path / "a", shared):
            serve.says(THREAD, call("bash", command="cat a new"), "3")
            assert str(result(serve.turn_of(THREAD, "3"))["text"]).split()[:2] == ["two", "now"]
            assert texts("a") == {"a": "two\n", "run": "run\n", "new": "now\n"}


def test_an_interrupted_undo_is_finished_by_the_next_machine_that_starts(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    address = shared["DATABASE_URL"]
    with process("serve", tmp_path / "serve", shared) as serve:
        with process("worker", tmp_path / "a", shared):
            serve.says(THREAD, call("write", path="a.txt", content="one"), "0")
            turn = serve.turn_of(THREAD, "0")[0].turn
        with psycopg.connect(address) as connection:
            connection.execute(
                "insert into shoal.checkpoints "
                "(id, thread, workspace, author, turn_seq, before, after, began_at, undoes) "
                "select 'U1', thread, workspace, author, turn_seq, after, before, began_at, id from shoal.checkpoints"
            )
            connection.execute("update shoal.checkpoints set undone_by = 'U1' where id = %s", (turn,))
        with process("worker", tmp_path / "b", shared):
            (told,) = [event.data for event in serve.events(THREAD) if event.type == "files_restored"]
            assert (told["id"], told["files"]) == ("U1", ["a.txt"])
            assert not (tmp_path / "b/agents/main/workspace/a.txt").exists()
        shown = serve.ask(f"/api/threads/{THREAD}/turns/{turn}/changes").json
        assert (shown["state"], shown["undone_by"]) == ("undone", "U1")
        assert not (tmp_path / "serve/agents/main/workspace/a.txt").exists()


def test_without_shared_files_an_undo_on_another_machine_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    with database() as url:
        known = {**settings, "DATABASE_URL": "postgresql:///?" + "&".join(url.split())}
        with process("serve", tmp_path / "serve", known) as serve:
            with process("worker", tmp_path / "a", known):
                serve.says(THREAD, call("write", path="a.txt", content="one"), "0")
                turn = serve.turn_of(THREAD, "0")[0].turn
            for answer in (
                serve.ask(f"/api/threads/{THREAD}/turns/{turn}/changes"),
                serve.ask(f"/api/threads/{THREAD}/turns/{turn}/undo", {}),
            ):
                assert answer.status == 404
                assert "not stored on this machine" in str(answer.json["message"])
            assert "files_restored" not in [event.type for event in serve.events(THREAD)]
    assert (tmp_path / "a/agents/main/workspace/a.txt").read_text() == "one"


def test_workers_sharing_a_workspace_keep_all_edits_of_twenty_threads(tmp_path: Path, settings: dict[str, str]) -> None:
    home, files = tmp_path / "home", [f"f{number}.txt" for number in range(2)]
    painters = [f"painter{number:02}" for number in range(20)]
    workspace = home / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    for file in files:
        (workspace / file).write_text("\n".join(f"{one}: open{PAGE}" for one in painters))
    with database() as url:
        patient = {**settings, "SHOAL_ENGINE__STALLED_SECONDS": "60"}
        known = {**patient, "DATABASE_URL": "postgresql:///?" + "&".join(url.split())}
        with (
            process("serve", home, known) as serve,
            process("worker", home, known) as first,
            process("worker", home, known) as second,
        ):
            for file, one in product(files, painters):
                edit = call("edit", path=file, old_string=f"{one}: open", new_string=f"{one}: done")
                serve.says(f"web:lobby:{one}", edit, f"{one}-{file}")
            for one in painters:
                assert "Edited" in str(result(serve.turn_of(f"web:lobby:{one}", f"{one}-{files[-1]}"))["text"])
            assert all(turns_done(worker) > 0 for worker in (first, second))
    for file in files:
        assert (workspace / file).read_text() == "\n".join(f"{one}: done{PAGE}" for one in painters)


def turns_done(worker: Process) -> int:
    found = re.search(r'^shoal_turns_total\{outcome="done"\} (\d+)', worker.ask("/metrics").body.decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def test_an_unreachable_object_store_is_reported_at_startup(tmp_path: Path, shared: dict[str, str]) -> None:
    away = {**shared, "SHOAL_FILES__ENDPOINT": "http://127.0.0.1:1"}
    with (
        pytest.raises(AssertionError, match="Cannot use s3://machines/of/ours"),
        process("worker", tmp_path / "a", away),
    ):
        pass


def test_the_server_and_the_worker_report_readiness_and_survive_an_outage(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with private_server() as url:
        folder = url.rpartition("host=")[2]
        known = {**settings, "DATABASE_URL": url}
        with process("serve", tmp_path / "s", known) as serve, process("worker", tmp_path / "w", known) as worker:
            both = (serve, worker)
            assert [one.ask("/readyz").status for one in both] == [200, 200]
            subprocess.run([SCRIPT, "stop", folder], check=True, capture_output=True)
            until(lambda: [one.ask("/readyz").status for one in both] == [503, 503])
            assert [one.ask("/healthz").status for one in both] == [200, 200]
            until(lambda: worker.ask("/readyz").json["engine"] == "unregistered")
            subprocess.run([SCRIPT, "start", folder], check=True, capture_output=True)
            until(lambda: [one.ask("/readyz").status for one in both] == [200, 200])
            serve.says(THREAD, "words=1", "after")
            assert serve.turn_of(THREAD, "after")
            figures(worker)
            assert [one.stop() for one in both] == [0, 0]


def figures(worker: Process) -> None:
    text = worker.ask("/metrics").body.decode()
    for line in ("shoal_prompts_queued 0", "shoal_turns_running 0", "shoal_threads_advancing 0",
                 "shoal_oldest_prompt_seconds 0", 'shoal_turns_total{outcome="done"} 1'):  # fmt: skip
        assert f"\n{line}\n" in f"\n{text}", text
