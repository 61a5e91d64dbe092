"""Sample homes of other products, based on their documentation."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

SKILL = "---\nname: tide-table\ndescription: Tells high and low water.\n---\n\nRun fetch.sh.\n"
RULE = "FREQ=DAILY;BYHOUR=17;BYMINUTE=30"
AT = 1_767_603_600  # 2026-01-05 09:00 UTC


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def lines(entries: Iterable[object]) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries)


def _spoken(number: int, role: str, text: str, parent: str = "") -> dict[str, object]:
    return {
        "type": "message", "id": f"e{number}", "parentId": parent or (f"e{number - 1}" if number > 1 else "s"),
        "timestamp": f"2026-01-05T09:0{number}:00.000Z",
        "message": {"role": role, "content": [{"type": "text", "text": text}]},
    }  # fmt: skip


def openclaw(root: Path) -> Path:
    config = """{
      // how it was set up
      agents: {
        defaults: { workspace: "~/.openclaw/workspace",
                    model: { primary: 'anthropic/claude-sonnet-4-5', fallbacks: ["openai/gpt-5.2"] } },
        list: [{ id: "main", default: true }, { id: "work", identity: { name: "Quill", emoji: "🪶" } }],
      },
      channels: {
        telegram: { enabled: true, botToken: "123456:AAOpenclawTokenForTestsOnly", dmPolicy: "pairing",
                    allowFrom: ["7"], groups: { "-100": { requireMention: true } } },
        whatsapp: { allowFrom: ["+15555550123"] },
        discord: { token: "${DISCORD}", dm: { allowFrom: ["*"] } },
      },
      models: { providers: { lmstudio: { baseUrl: "http://127.0.0.1:1234/v1", api: "openai-completions" } } },
      env: { vars: { ANTHROPIC_API_KEY: "sk-ant-openclaw" } },
      gateway: { port: 18789, auth: { token: "gateway" } },
    }"""
    branch = [
        {"type": "session", "id": "s", "timestamp": "2026-01-05T09:00:00.000Z", "cwd": "/home/ada"},
        _spoken(1, "user", "When is high water in Husum?"),
        _spoken(2, "assistant", "At ten."),
        {**_spoken(9, "user", "asked in another way"), "parentId": "e2"},
        _spoken(3, "toolResult", "10:04", "e2"),
        _spoken(4, "assistant", "To be exact, at 10:04."),
        _spoken(5, "user", "Thanks"),
        _spoken(6, "user", "and tomorrow?"),
        _spoken(7, "assistant", "At 10:51."),
    ]
    index = {
        "agent:main:main": {"sessionId": "aaaa", "displayName": "Tides", "chatType": "direct"},
        "agent:main:cron:j1:run:x": {"sessionId": "bbbb"},
    }
    jobs = [
        {"id": "j1", "name": "Morning brief", "enabled": True, "sessionTarget": "isolated",
         "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Berlin"},
         "payload": {"kind": "agentTurn", "message": "Summarise the night."},
         "delivery": {"mode": "announce", "channel": "telegram", "to": "7"}},
        {"id": "j2", "name": "Often", "schedule": {"kind": "every", "everyMs": 1_800_000},
         "payload": {"kind": "systemEvent", "text": "Look at the door."}},
        {"id": "j3", "name": "Odd", "schedule": {"kind": "every", "everyMs": 7_000},
         "payload": {"kind": "systemEvent", "text": "Too often."}},
        {"id": "j4", "name": "Past", "schedule": {"kind": "at", "at": "2026-02-01T16:00:00Z"},
         "payload": {"kind": "systemEvent", "text": "Over."}},
    ]  # fmt: skip
    write(root, {
        "openclaw.json": config,
        "workspace/AGENTS.md": "Be brief.", "workspace/SOUL.md": "You like the sea.", "workspace/USER.md": "Ada.",
        "workspace/MEMORY.md": "# Facts\n\n- Ada sails.\n- Her boat is Merle.\n",
        "workspace/memory/2026-01-05.md": "- Asked about tides.\n",
        "workspace/HEARTBEAT.md": "- look at the door\n",
        "workspace/skills/tide-table/SKILL.md": SKILL, "workspace/skills/tide-table/fetch.sh": "echo 10:04\n",
        "workspace/projects/plan.txt": "a file of hers",
        "workspace-work/AGENTS.md": "Work.",
        "agents/main/sessions/sessions.json": json.dumps(index),
        "agents/main/sessions/aaaa.jsonl": lines(branch), "agents/main/sessions/bbbb.jsonl": lines(branch[:3]),
        "agents/main/agent/auth-profiles.json": json.dumps(
            {"profiles": {"anthropic:me": {"type": "oauth", "provider": "anthropic", "access": "x"}}}),
        "credentials/telegram-allowFrom.json": json.dumps({"version": 1, "allowFrom": ["8"]}),
        "credentials/whatsapp/creds.json": "{}",
        "cron/jobs.json": json.dumps({"version": 1, "jobs": jobs}), "cron/runs/j1.jsonl": "{}\n",
        "logs/gateway.log": "started\n", "surprise.bin": "?",
    })  # fmt: skip
    return root


def hermes(root: Path) -> Path:
    config = """_config_version: 50
model:
  default: "anthropic/claude-opus-4.6"   # the big one
  provider: "openrouter"
  base_url: "https://openrouter.ai/api/v1"
terminal:
  backend: local
  env_passthrough:
    - HOME
    - PATH
providers:
  my-proxy:
    base_url: "http://127.0.0.1:4000/v1"
    key_env: MY_PROXY_KEY
"""
    env = "OPENROUTER_API_KEY=sk-or-hermes\nTELEGRAM_BOT_TOKEN='123456:AAHermesTokenForTestsOnly1'\n"
    env += "TELEGRAM_ALLOWED_USERS=7,8\n# a remark\nEXA_API_KEY=exa\nMY_PROXY_KEY=proxy-key\n"
    jobs = [
        {"id": "a1", "name": "News", "prompt": "Tell the news.", "enabled": True, "deliver": "telegram:7",
         "schedule": {"kind": "cron", "expr": "0 9 * * *", "display": "0 9 * * *"}},
        {"id": "a2", "name": "Two-hourly", "prompt": "Look.", "schedule": {"kind": "interval", "minutes": 120}},
        {"id": "a3", "name": "Backup", "prompt": "", "script": "backup.sh",
         "schedule": {"kind": "interval", "minutes": 60}},
    ]  # fmt: skip
    write(root, {
        "config.yaml": config, ".env": env, "SOUL.md": "You are precise.",
        "memories/MEMORY.md": "The server runs Debian.\n§\nAda uses zsh,\nwith vi keys.\n",
        "memories/USER.md": "Ada, engineer.\n§\nLikes short answers.",
        "skills/.bundled_manifest": "shipped-one:abc\n",
        "skills/sea/tide-table/SKILL.md": SKILL, "skills/misc/shipped-one/SKILL.md": SKILL,
        "cron/jobs.json": json.dumps({"jobs": jobs}), "logs/errors.log": "", "profiles/coder/SOUL.md": "You code.",
    })  # fmt: skip
    with closing(sqlite3.connect(root / "state.db")) as database:
        database.executescript(
            "create table sessions (id text primary key, source text not null, user_id text, title text,"
            " parent_session_id text, started_at real not null);"
            "create table messages (id integer primary key, session_id text, role text not null, content text,"
            " tool_calls text, timestamp real not null, active integer default 1, compacted integer default 0);"
        )
        sessions = [("s1", "telegram", "7", "Debian", None, AT), ("s2", "cron", None, "News run", None, AT)]
        database.executemany("insert into sessions values (?, ?, ?, ?, ?, ?)", sessions)
        said = [
            ("s1", "user", "Which kernel?", 1, 0), ("s1", "assistant", None, 1, 0), ("s1", "tool", "6.12", 1, 0),
            ("s1", "assistant", '[{"type": "text", "text": "6.12."}]', 1, 0), ("s1", "user", "taken back", 0, 0),
            ("s2", "user", "Tell the news.", 1, 0), ("s2", "assistant", "None.", 1, 0),
        ]  # fmt: skip
        database.executemany(
            "insert into messages (session_id, role, content, active, compacted, timestamp) values (?, ?, ?, ?, ?, ?)",
            [(*one, AT + number) for number, one in enumerate(said)],
        )
        database.commit()
    return root


def nanobot(root: Path) -> Path:
    config = {
        "agents": {"defaults": {"workspace": "~/.nanobot/workspace", "model": "anthropic/claude-opus-4-5"}},
        "providers": {"anthropic": {"apiKey": "sk-ant-nanobot"}, "groq": {"apiKey": "gsk-x"}},
        "channels": {
            "telegram": {"enabled": True, "token": "123456:AANanobotTokenForTestsOnly", "allowFrom": ["7|ada", "8"]},
            "email": {"enabled": True, "imapHost": "mail"}, "qq": {"enabled": False, "appId": "1"},
        },
        "gateway": {"port": 18790}, "tools": {"restrictToWorkspace": True},
    }  # fmt: skip
    session = [
        {"_type": "metadata", "key": "telegram:7", "created_at": "2026-01-05T09:00:00"},
        {"role": "user", "content": "hello", "timestamp": "2026-01-05T09:00:00"},
        {"role": "tool", "content": "x", "timestamp": "2026-01-05T09:00:01"},
        {"role": "assistant", "content": "Hello, Ada.", "timestamp": "2026-01-05T09:00:02"},
    ]
    jobs = [
        {"id": "n1", "name": "Walk", "enabled": True, "schedule": {"kind": "every", "everyMs": 86_400_000},
         "payload": {"kind": "agent_turn", "message": "Remind me to walk.", "channel": "telegram", "to": "7"}},
    ]  # fmt: skip
    write(root, {
        "config.json": json.dumps(config), "workspace/SOUL.md": "You are small.", "workspace/TOOLS.md": "none",
        "workspace/memory/MEMORY.md": "# Long-term Memory\n\n- Ada has a dog.\n",
        "workspace/memory/HISTORY.md": "[2026-01-05 09:00] Ada said hello.\n\n[2026-01-06 10:00] A walk.\n",
        "workspace/skills/tide-table/SKILL.md": SKILL, "workspace/sessions/telegram_7.jsonl": lines(session),
        "cron/jobs.json": json.dumps({"version": 1, "jobs": jobs}),
    })  # fmt: skip
    return root


def openwebui(root: Path) -> Path:
    root.mkdir(parents=True)

    def chat(*texts: str) -> str:
        messages = {
            str(number): {"id": str(number), "parentId": str(number - 1) if number else None,
                          "role": ("user", "assistant")[number % 2], "content": text, "timestamp": AT + number}
            for number, text in enumerate(texts)
        }  # fmt: skip
        messages["other"] = {"id": "other", "parentId": "0", "role": "assistant", "content": "another answer"}
        return json.dumps({"title": "Soup", "history": {"messages": messages, "currentId": str(len(texts) - 1)}})

    with closing(sqlite3.connect(root / "webui.db")) as database:
        database.executescript(
            """
            create table user (id text, name text, role text, created_at integer);
            create table chat (id text, user_id text, title text, chat text, created_at integer, archived integer);
            create table memory (id text, user_id text, content text, created_at integer);
            create table model (id text, user_id text, base_model_id text, name text, params text, meta text);
            create table skill (id text, user_id text, name text, description text, content text, data text);
            create table automation (id text, user_id text, name text, data text, is_active integer);
            create table knowledge (id text, user_id text, name text);
            create table config (id integer, data text);
            """
        )
        rows = {
            "user": [("u1", "Ada", "admin", 1), ("u2", "Bob", "user", 2)],
            "chat": [
                ("c1", "u1", "Soup", chat("How long does soup boil?", "<details>hm</details>An hour."), AT, 0),
                ("c2", "u2", "Private", chat("secret of Bob", "kept"), AT, 0), ("c3", "u1", "Empty", "{}", AT, 0),
            ],
            "memory": [("m1", "u1", "Ada cooks.", AT), ("m2", "u2", "Bob sings.", AT)],
            "model": [("cook", "u1", "llama3:8b", "The Cook", '{"system": "You cook."}', '{"description": "Cooks."}')],
            "skill": [("k1", "u1", "Tide Table", "Tells high water", "Run it.", None)],
            "automation": [
                ("a1", "u1", "Dinner", json.dumps({"prompt": "What is for dinner?", "rrule": RULE}), 1)
            ],
            "knowledge": [("d1", "u1", "Recipes")],
            "config": [(1, '{"openai": {"api_base_urls": ["https://api.openai.com/v1"], "api_keys": ["sk-webui"]}}')],
        }  # fmt: skip
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            database.executemany(f"insert into {table} values ({marks})", values)
        database.commit()
    return root


def database(file: Path, schema: str, rows: Mapping[str, Iterable[tuple[object, ...]]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(schema)
        for table, values in rows.items():
            for value in values:
                connection.execute(f"insert into {table} values ({', '.join('?' * len(value))})", value)
        connection.commit()


def openclaw_2026_9(root: Path) -> Path:
    """Create the OpenClaw home in the format of version 2026.9, which stores most of its data in databases."""
    openclaw(root)
    config = (root / "openclaw.json").read_text()
    config = config.replace(
        'list: [{ id: "main", default: true }, { id: "work", identity', "entries: { main: {}, work: { identity"
    )
    (root / "openclaw.json").write_text(config.replace('emoji: "🪶" } }],', 'emoji: "🪶" } } },'))
    sessions = root / "agents/main/sessions"
    events = {name: (sessions / f"{name}.jsonl").read_text().splitlines() for name in ("aaaa", "bbbb")}
    keys = json.loads((sessions / "sessions.json").read_text())
    database(
        root / "agents/main/agent/openclaw-agent.sqlite",
        """
        create table session_nodes (session_key text, current_session_id text, entry_json text, label text,
            display_name text);
        create table session_windows (session_id text, session_key text, created_at integer,
            display_name text);
        create table transcript_events (session_id text, seq integer, event_json text, created_at integer,
            event_zstd blob);
        create table transcript_event_identities (session_id text, event_id text, seq integer, parent_id text);
        create table session_transcript_index_state (session_id text, leaf_event_id text);
        create table session_transcript_archives (session_id text, reason text, encoding text, archive_blob blob);
        create table auth_profile_store (store_key text, store_json text, updated_at integer);
        """,
        {
            "session_nodes": [(key, one["sessionId"], json.dumps(one), None, one.get("displayName"))
                              for key, one in keys.items()],
            "session_windows": [(one["sessionId"], key, AT * 1000, None) for key, one in keys.items()],
            "transcript_events": [(name, number, text, AT * 1000, None) for name, texts in events.items()
                                  for number, text in enumerate(texts)],
            "session_transcript_index_state": [("aaaa", "e7")],
            "auth_profile_store": [("primary", (root / "agents/main/agent/auth-profiles.json").read_text(), AT)],
        },
    )  # fmt: skip
    jobs = json.loads((root / "cron/jobs.json").read_text())["jobs"]
    database(
        root / "state/openclaw.sqlite",
        """
        create table cron_jobs (store_key text, job_id text, name text, agent_id text, schedule_kind text,
            schedule_expr text, schedule_tz text, every_ms integer, at text, payload_message text,
            delivery_channel text, delivery_to text, job_json text);
        create table channel_pairing_allow_entries (channel_key text, account_id text, entry text);
        """,
        {
            "cron_jobs": [
                ("cron", job["id"], job["name"], None, job["schedule"]["kind"], job["schedule"].get("expr"),
                 job["schedule"].get("tz"), job["schedule"].get("everyMs"), job["schedule"].get("at"),
                 job["payload"].get("message") or job["payload"]["text"], job.get("delivery", {}).get("channel"),
                 job.get("delivery", {}).get("to"), "{}") for job in jobs
            ],
            "channel_pairing_allow_entries": [("telegram", "default", "8")],
        },
    )  # fmt: skip
    for name in ("sessions.json", "aaaa.jsonl", "bbbb.jsonl"):
        (sessions / name).unlink()
    for name in ("agents/main/agent/auth-profiles.json", "cron/jobs.json", "credentials/telegram-allowFrom.json"):
        (root / name).unlink()
    return root
