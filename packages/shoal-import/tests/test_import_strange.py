"""`shoal import` copes with any contents of another product's home. Its report names the files it could not read."""

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import cast

import peers
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from import_runs import MAKERS, Line, Shoal, files

from shoal.importing import Found, slug
from shoal.kernel.errors import InvalidInput

EVERY = {**MAKERS, "openclaw 2026.9": peers.openclaw_2026_9}
Bring = Callable[..., list[Line]]


@pytest.fixture
def bring(shoal: Shoal) -> Bring:
    def run(product: str, root: Path, *options: str) -> list[Line]:
        ran = shoal("import", product, str(root), "--json", *options)
        assert ran.code == 0, ran.err
        return [Line(load["became"], load["what"], load["detail"]) for load in json.loads(ran.out)]

    return run


def left(lines: list[Line]) -> dict[str, str]:
    return {line.what: line.detail for line in lines if line.became == "left"}


def texts(shoal: Shoal, title: str) -> list[str]:
    threads = json.loads(shoal("threads", "list", "--json").out)
    (thread,) = [thread["thread"] for thread in threads if thread["title"].startswith(title)]
    events = json.loads(shoal("threads", "show", "--json", thread).out)["events"]
    return [event["data"]["text"] for event in events if event["type"] in ("user_message", "assistant_message")]


# ---- newer storage formats ----


def test_openclaw_databases_are_imported_like_the_files_of_older_versions(
    bring: Bring, shoal: Shoal, tmp_path: Path
) -> None:
    now, before = peers.openclaw_2026_9(tmp_path / "now"), peers.openclaw(tmp_path / "before")
    found = bring("openclaw", now, "--keys", "--dry-run")
    asked = bring("openclaw", before, "--keys", "--dry-run")
    assert [line[:2] for line in found if line.became != "left"] == [
        line[:2] for line in asked if line.became != "left"
    ]
    assert "the login anthropic:me" in left(found)
    assert not [what for what in left(found) if "sqlite" in what]
    bring("openclaw", now)
    assert texts(shoal, "Tides")[-1] == "At 10:51."
    assert "asked in another way" not in texts(shoal, "Tides")


def test_rows_in_a_write_ahead_log_are_imported_without_changing_it(bring: Bring, tmp_path: Path) -> None:
    root = peers.openclaw_2026_9(tmp_path / "root")
    file = root / "agents/main/agent/openclaw-agent.sqlite"
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("pragma journal_mode = wal")
        entry = {"type": "message", "id": "n", "message": {"role": "user", "content": "only in the log"}}
        writer.execute("insert into transcript_events values ('new', 0, ?, 1, null)", (json.dumps(entry),))
        writer.commit()
        before = files(root)
        assert "conversation only in the log" in [line.what for line in bring("openclaw", root)]
        assert files(root) == before


def packed(root: Path, pack: Callable[[str], bytes]) -> Path:
    """Create an OpenClaw home in which entry 4 of each conversation is compressed."""
    peers.openclaw_2026_9(root)
    with closing(sqlite3.connect(root / "agents/main/agent/openclaw-agent.sqlite")) as database:
        select = "select session_id, event_json from transcript_events where seq = 4"
        for session, text in database.execute(select).fetchall():
            database.execute(
                "update transcript_events set event_json = null, event_zstd = ? where seq = 4 and session_id = ?",
                (pack(text), session),
            )
        database.execute("insert into transcript_event_identities values ('aaaa', 'e3', 4, 'e2')")
        database.execute("insert into session_transcript_archives values ('old', 'reset', 'zstd', x'28b5')")
        database.commit()
    return root


def test_compressed_entries_are_imported(bring: Bring, shoal: Shoal, tmp_path: Path) -> None:
    lines = bring("openclaw", packed(tmp_path / "root", lambda text: zstd.compress(text.encode())))
    assert not [what for what in left(lines) if "of a conversation" in what or "of conversations" in what]
    assert texts(shoal, "Tides")[::5] == ["When is high water in Husum?", "At 10:51."]


def test_without_a_decompressor_conversations_wait_for_the_next_import(
    bring: Bring, shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "root", lambda text: zstd.compress(text.encode()))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "backports", None)
        why = left(bring("openclaw", root))["openclaw: conversation Tides"]
    assert re.fullmatch(r"parts of it are compressed with zstd\. Run: .*\[import\]'?, then import again", why)
    bring("openclaw", root)
    assert texts(shoal, "Tides")[-1] == "At 10:51."


@pytest.mark.parametrize("pack", [lambda _: b"(\xb5", lambda _: zstd.compress(b" " * 5_000_000)], ids=["torn", "bomb"])
def test_damaged_entries_are_counted_and_the_rest_of_the_conversation_is_imported(
    bring: Bring, shoal: Shoal, tmp_path: Path, pack: Callable[[str], bytes]
) -> None:
    lines = left(bring("openclaw", packed(tmp_path / "root", pack)))
    assert "damaged" in lines["openclaw: 1 entry of a conversation"]
    assert "openclaw: 1 conversation that was reset" in lines
    assert texts(shoal, "Tides")[0] == "When is high water in Husum?"


def test_the_nanobot_database_is_read(bring: Bring, shoal: Shoal, tmp_path: Path) -> None:
    root = peers.nanobot(tmp_path / "root")
    record = {"role": "user", "content": "from the database", "timestamp": "2026-02-01T09:00:00"}
    peers.database(
        root / "sessions/0f/sessions.sqlite3",
        "create table sessions (key text, created_at text, title text);"
        "create table messages (session_key text, position integer, record text);",
        {"sessions": [("telegram:9", "2026-02-01T09:00:00", "Stored"), ("telegram:7", "2026-02-01", "Newer")],
         "messages": [("telegram:9", 0, json.dumps(record)), ("telegram:7", 0, json.dumps(record))]},
    )  # fmt: skip
    lines = bring("nanobot", root)
    assert texts(shoal, "Stored") == ["from the database"]
    assert (
        "its conversation was already read from sessions.sqlite3" in left(lines)["workspace/sessions/telegram_7.jsonl"]
    )


def test_open_webui_messages_and_settings_are_read_from_their_own_tables(
    bring: Bring, shoal: Shoal, tmp_path: Path
) -> None:
    root = peers.openwebui(tmp_path / "root")
    with closing(sqlite3.connect(root / "webui.db")) as database:
        database.executescript(
            "create table chat_message (id text, chat_id text, role text, parent_id text, content text, at int);"
            "drop table config; create table config (key text, value text)"
        )
        database.execute("insert into chat values ('c9', 'u1', 'Rows', '{}', 1767603600, 0)")
        rows = [
            ("c9-a", "c9", "user", None, '"Hello?"', peers.AT),
            ("c9-b", "c9", "assistant", "a", '"Hello."', peers.AT),
        ]
        database.executemany("insert into chat_message values (?, ?, ?, ?, ?, ?)", rows)
        values = [("openai.api_base_urls", '["http://127.0.0.1:9/v1"]'), ("openai.api_keys", '[""]')]
        database.executemany("insert into config values (?, ?)", values)
        database.commit()
    lines = bring("openwebui", root)
    assert texts(shoal, "Rows") == ["Hello?", "Hello."]
    assert "provider openwebui-1" in [line.what for line in lines if line.became == "came"]


# ---- complete reports ----


def test_long_conversations_are_imported_whole_and_long_texts_marked_as_cut(
    bring: Bring, shoal: Shoal, tmp_path: Path
) -> None:
    root = peers.nanobot(tmp_path / "root")
    said = [{"role": "user", "content": f"{number} {'x' * 2000}"} for number in range(3000)]
    (root / "workspace/sessions/cli_long.jsonl").write_text(peers.lines(said))
    (root / "workspace/SOUL.md").write_text("y" * 5_000_000)
    lines = bring("nanobot", root)
    assert len(texts(shoal, "0 xxx")) == 3000
    assert left(lines)["workspace/SOUL.md"] == "it is longer than 4 MiB, so the rest was skipped"


def test_files_and_lines_without_a_conversation_are_named(bring: Bring, shoal: Shoal, tmp_path: Path) -> None:
    root = peers.openclaw(tmp_path / "root")
    sessions = root / "agents/main/sessions"
    text = (sessions / "aaaa.jsonl").read_text().splitlines()
    (sessions / "aaaa.jsonl").write_text("\n".join([*text[:4], "{damaged", *text[4:]]))
    (sessions / "rubbish.jsonl").write_text("{{{")
    (sessions / "old.jsonl.reset.2026-01-07T00-00-00.000Z").write_text(text[1])
    shutil.rmtree(root / "workspace/projects")
    lines = left(bring("openclaw", root))
    assert lines["agents/main/sessions/aaaa.jsonl"] == "it has 1 line of invalid JSON"
    assert "agents/main/sessions/rubbish.jsonl" in lines
    assert lines["agents/main/sessions/old.jsonl.reset.2026-01-07T00-00-00.000Z"] == (
        "it was reset or deleted in OpenClaw"
    )
    assert not [what for what in lines if "other files" in what]
    assert len(texts(shoal, "Tides")) == 6


def test_a_damaged_line_does_not_cut_a_conversation_off(bring: Bring, shoal: Shoal, tmp_path: Path) -> None:
    root = peers.openclaw(tmp_path / "root")
    file = root / "agents/main/sessions/aaaa.jsonl"
    text = file.read_text().splitlines()
    file.write_text("\n".join([*text[:5], "{damaged", *text[6:]]))
    bring("openclaw", root)
    assert texts(shoal, "Tides")[0] == "When is high water in Husum?"


def test_nanobots_history_becomes_notes_and_untimed_messages_are_imported(
    bring: Bring, shoal: Shoal, home: Path, tmp_path: Path
) -> None:
    root = peers.nanobot(tmp_path / "root")
    log = [{"cursor": 1, "timestamp": "2026-03-01 10:00", "content": "Talked of boats."}, {"cursor": 2, "content": "?"}]
    (root / "workspace/memory/history.jsonl").write_text(peers.lines(log))
    (root / "workspace/sessions/cli_x.jsonl").write_text(peers.lines([{"role": "user", "content": "no time"}]))
    lines = bring("nanobot", root)
    assert "Talked of boats." in (home / "data/memory/202603/20260301.md").read_text()
    assert left(lines)["workspace/memory/history.jsonl"] == "1 entry without a date or text"
    assert texts(shoal, "no time") == ["no time"]


def test_names_in_any_script_stay_distinct(bring: Bring, home: Path, tmp_path: Path) -> None:
    root = peers.openwebui(tmp_path / "root")
    with closing(sqlite3.connect(root / "webui.db")) as database:
        for number, name in enumerate(("Помощник", "助手", "Cook!", "cook")):
            prompt = json.dumps({"system": f"You are {name}"})
            database.execute("insert into model values (?, 'u1', 'm', ?, ?, '{}')", (f"m{number}", name, prompt))
            database.execute("insert into skill values (?, 'u1', ?, 'd', ?, null)", (f"s{number}", name, name))
        database.commit()
    lines = bring("openwebui", root)
    assert not [line for line in lines if line.became == "there"]
    prompts = [path.read_text() for path in (home / "agents").glob("openwebui-*/agent.toml")]
    assert len(prompts) == 5
    assert len(list((home / "agents/openwebui/skills-off").iterdir())) == 5
    assert len([line for line in lines if line.what.endswith("(助手)")]) == 2
    assert slug("Tide Table") == "tide-table"
    assert slug("助手") != slug("Помощник")


def test_a_paragraph_sign_does_not_split_an_entry(bring: Bring, home: Path, tmp_path: Path) -> None:
    root = peers.hermes(tmp_path / "root")
    (root / "memories/MEMORY.md").write_text("See § 5 of the law.\n§\nLikes tea.")
    bring("hermes", root)
    assert "- See § 5 of the law. <!-- only owner -->" in (home / "data/MEMORY.md").read_text()


def test_a_token_stored_elsewhere_is_reported_missing_and_ids_lose_their_prefix(
    bring: Bring, home: Path, tmp_path: Path
) -> None:
    root = peers.openclaw(tmp_path / "root")
    config = (root / "openclaw.json").read_text().replace('allowFrom: ["7"]', 'allowFrom: ["tg:7", "telegram:9"]')
    config = config.replace('"${DISCORD}"', '{ source: "exec", provider: "vault", id: "discord" }')
    (root / "openclaw.json").write_text(config)
    lines = bring("openclaw", root, "--keys")
    (discord,) = [line for line in lines if line.what == "channel discord"]
    assert "without a token (none found)" in discord.detail
    assert "channel discord: token" in left(lines)
    assert 'allow = ["7", "9", "8"]' in (home / "shoal.toml").read_text()
    (root / ".env").write_text("BOT=bot-token-from-a-variable\n")
    (root / "openclaw.json").write_text(config.replace("exec", "env").replace('"discord" }', '"BOT" }'))
    lines = bring("openclaw", root, "--keys", "--dry-run")
    assert "channel discord: token" not in left(lines)


# ---- schedules ----


def test_schedules_keep_their_hour(bring: Bring, shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Lima")
    zones: dict[str, tuple[str, str]] = {}
    roots = {product: MAKERS[product](tmp_path / product) for product in ("openclaw", "hermes", "nanobot")}
    jobs = [
        {"id": "a", "name": "local", "schedule": {"kind": "cron", "expr": "0 7 * * *"}, "payload": {"message": "x"}},
        {"id": "b", "name": "own", "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Asia/Tokyo"},
         "payload": {"message": "x"}},
        {"id": "c", "name": "at", "schedule": {"kind": "at", "at": "2199-02-01T16:00:00"}, "payload": {"text": "x"}},
    ]  # fmt: skip
    (roots["openclaw"] / "cron/jobs.json").write_text(json.dumps({"jobs": jobs}))
    (roots["hermes"] / "config.yaml").write_text("model: x/y\ntimezone: Europe/Paris\n")
    config = json.loads((roots["nanobot"] / "config.json").read_text())
    config["agents"]["defaults"]["timezone"] = "Europe/Rome"
    (roots["nanobot"] / "config.json").write_text(json.dumps(config))
    for product, root in roots.items():
        bring(product, root)
    for load in json.loads(shoal("triggers", "list", "--json").out):
        zones[load["name"]] = (load["timezone"], load["schedule"])
    assert zones["local (openclaw)"][0] == "America/Lima"
    assert zones["own (openclaw)"][0] == "Asia/Tokyo"
    assert zones["at (openclaw)"][1] == "2199-02-01T16:00:00+00:00"
    assert {zones[f"{name} (hermes)"][0] for name in ("News", "Two-hourly")} == {"Europe/Paris"}
    assert zones["Walk (nanobot)"][0] == "Europe/Rome"


@pytest.mark.parametrize(
    ("product", "file", "old", "odd"),
    [
        ("openclaw", "cron/jobs.json", "1800000", '"30m"'),
        ("nanobot", "cron/jobs.json", "86400000", '"often"'),
        ("hermes", "cron/jobs.json", "120", '"often"'),
        ("nanobot", "cron/jobs.json", "86400000", "Infinity"),
        ("openclaw", "cron/jobs.json", "1800000", "1e999"),
    ],
)
def test_an_odd_value_affects_only_its_own_schedule(
    bring: Bring, tmp_path: Path, product: str, file: str, old: str, odd: str
) -> None:
    root = MAKERS[product](tmp_path / "root")
    text = (root / file).read_text()
    assert old in text
    (root / file).write_text(text.replace(old, odd, 1))
    lines = bring(product, root)
    assert [
        why
        for what, why in left(lines).items()
        if what.startswith("schedule") and "cannot be written as a cron expression" in why
    ]
    assert any(line.what.startswith("conversation") for line in lines if line.became == "came")


# ---- invalid homes ----


@pytest.mark.parametrize(
    ("product", "name", "content"),
    [
        ("nanobot", "config.json", "[]"),
        ("nanobot", "config.json", '{"name": "another"}'),
        ("openclaw", "openclaw.json", "[1]"),
        ("hermes", "SOUL.md", "I am another."),
        ("hermes", "config.yaml", "theme: dark\n"),
        ("openwebui", "webui.db", "text"),
    ],
)
def test_a_folder_that_only_resembles_a_home_is_refused(
    shoal: Shoal, tmp_path: Path, product: str, name: str, content: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / name).write_text(content)
    ran = shoal("import", product, str(root))
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert " is not a" in ran.err


def test_another_database_is_not_taken_for_open_webui(shoal: Shoal, tmp_path: Path) -> None:
    peers.database(tmp_path / "webui.db", "create table user (id text); create table x (y text)", {"user": [("u",)]})
    ran = shoal("import", "openwebui", str(tmp_path))
    assert (ran.code, "it contains no users" in ran.err) == (1, True)


# ---- arbitrary content ----

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(("\ud800", "a\0b", "~x/y")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
NOISE = b"\x00\xff\xfe{[\x80" * 200


def replaced(value: object, number: int, by: object) -> tuple[object, int]:
    """Replace the part of the value at index `number`. Return the new value and the number of parts left to count."""
    if number == 0:
        return by, -1
    number -= 1
    if isinstance(value, dict):
        for key, one in cast("Mapping[str, object]", value).items():
            changed, number = replaced(one, number, by)
            if number < 0:
                return {**value, key: changed}, number
    if isinstance(value, list):
        items = cast("list[object]", value)
        for place, one in enumerate(items):
            changed, number = replaced(one, number, by)
            if number < 0:
                return [*items[:place], changed, *items[place + 1 :]], number
    return value, number


def change(file: Path, way: str, number: int, by: object) -> None:
    """Damage a file by truncating it, filling it with noise, or replacing one value."""
    data = file.read_bytes()
    if way == "noise":
        file.write_bytes(NOISE)
    elif way == "cut":
        file.write_bytes(data[: number * 37 % (len(data) + 1)])
    elif data.startswith(b"SQLite"):
        with closing(sqlite3.connect(file)) as database:
            tables = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
            table = tables[number % len(tables)]
            columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
            stored = by if isinstance(by, str | int | float | None) and not isinstance(by, bool) else json.dumps(by)
            stored = stored.encode("utf-8", "surrogatepass") if isinstance(stored, str) else stored
            stored = stored % 2**63 if isinstance(stored, int) else stored
            database.execute(f"update or ignore {table} set {columns[number % len(columns)]} = ?", (stored,))
            database.commit()
    else:
        lines = data.decode().splitlines() if file.suffix == ".jsonl" else [data.decode()]
        place = number % max(len(lines), 1)
        try:
            lines[place] = json.dumps(replaced(json.loads(lines[place]), number % 23, by)[0])
        except (ValueError, IndexError):
            lines = [*lines, json.dumps(by)]
        file.write_text("\n".join(lines), "utf-8", "surrogatepass")


def read(product: str, root: Path) -> tuple[Found | None, str]:
    try:
        return cast("Found", import_module(f"shoal_import.{product}").read(root)), ""
    except InvalidInput as error:
        return None, str(error)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("homes")
    for name, make in EVERY.items():
        make(root / name)
    return root


@pytest.mark.parametrize("name", list(EVERY))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_home_with_damaged_content_is_read_or_refused_in_one_line(
    homes: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    product, root = name.partition(" ")[0], tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(homes / name, root)
    there = sorted(path for path in root.rglob("*") if path.is_file())
    way = data.draw(st.sampled_from(("value", "value", "cut", "noise")))
    change(data.draw(st.sampled_from(there)), way, data.draw(st.integers(0, 10_000)), data.draw(VALUES))
    found, problem = read(product, root)
    assert found is not None or len(problem.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EVERY))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_home_with_odd_values_is_imported_or_refused_in_one_line(
    homes: Path, tmp_path: Path, shoal: Shoal, home: Path, name: str, data: st.DataObject
) -> None:
    product, root = name.partition(" ")[0], tmp_path / "root"
    for folder in (root, home):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(homes / name, root)
    there = sorted(path for path in root.rglob("*") if path.is_file())
    change(data.draw(st.sampled_from(there)), "value", data.draw(st.integers(0, 10_000)), data.draw(VALUES))
    ran = shoal("import", product, str(root), "--keys")
    assert ran.code == 0 or len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("name", list(EVERY))
def test_each_file_that_cannot_be_read_is_named(homes: Path, tmp_path: Path, name: str) -> None:
    product = name.partition(" ")[0]
    for file in sorted(path.relative_to(homes / name) for path in (homes / name).rglob("*") if path.is_file()):
        root = tmp_path / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(homes / name, root)
        change(root / file, "noise", 0, None)
        found, problem = read(product, root)
        if found is None:
            assert file.name in problem
            continue
        skills = {name for agent in found.agents for skill in agent.skills for name in skill.files}
        named = [one.what for one in found.left if any(f"{part}" in one.what for part in (file, f"{file.parts[0]}/"))]
        named += [one.what for one in found.left if "other files" in one.what and file.parts[-1] in one.what]
        named += [one.what for one in found.left if "other files" in one.what and file.parts[-2:][0] in one.what]
        assert named or file.name in skills, f"nothing tells of {file}"
