"""Redaction removes secrets and leaves other text alone."""

import base64
import json
import logging
from collections.abc import Callable
from random import Random
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.config.secrets import learned_from
from shoal.kernel.records import AuditEntry
from shoal.kernel.secret import Secret
from shoal.permissions.redact import Redactor, guard_logging, print_crash

LETTERS = "Abcd1234Efgh5678Ijkl9012Mnop3456Qrst7890"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        ("sk-" + LETTERS, "api-key"),
        ("sk-ant-api03-" + LETTERS, "api-key"),
        ("sk_live_" + LETTERS, "api-key"),
        ("ghp_" + LETTERS, "github-token"),
        ("github_pat_" + LETTERS, "github-token"),
        ("glpat-" + LETTERS[:20], "gitlab-token"),
        ("xoxb-1234567890-" + LETTERS, "slack-token"),
        ("xapp-1-" + LETTERS, "slack-token"),
        ("AKIA" + "ABCDEFGH12345678", "aws-key"),
        ("AIza" + LETTERS[:35], "google-key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + LETTERS, "jwt"),
        ("123456789:AA" + LETTERS[:33], "telegram-token"),
        ("M" + LETTERS[:25] + ".Gabcde." + LETTERS[:30], "discord-token"),
        ("syt_" + LETTERS, "matrix-token"),
        ("hf_" + LETTERS, "model-key"),
        ("npm_" + LETTERS, "package-token"),
        ("SG." + LETTERS[:22] + "." + LETTERS, "mail-key"),
        (PEM, "private-key"),
        (PEM[:60], "private-key"),
    ],
)
def test_secret_formats_are_redacted(secret: str, kind: str) -> None:
    redactor = Redactor()
    assert redactor.redact(f"it is {secret} there") in (
        f"it is [redacted:{kind}] there",
        f"it is [redacted:{kind}]",
    )
    assert redactor.redact(f'{{"key": "{secret}"}}').startswith(f'{{"key": "[redacted:{kind}]')


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"Authorization: Bearer {LETTERS}", "Authorization: Bearer [redacted:bearer]"),
        (f"authorization: BEARER {LETTERS}", "authorization: BEARER [redacted:bearer]"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic [redacted:basic-auth]"),
        ("postgresql://me:s3cret@db/x", "postgresql://me:[redacted:password]@db/x"),
        ("redis://:s3cret@db", "redis://:[redacted:password]@db"),
        ("http://h/x?token=0123456789&y=1", "http://h/x?token=[redacted:token]&y=1"),
        (
            "https://hooks.slack.com/services/T0/B0/abcdefgh",
            "https://hooks.slack.com/services/[redacted:slack-webhook]",
        ),
    ],
)
def test_text_around_a_secret_is_unchanged(text: str, redacted: str) -> None:
    assert Redactor().redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "nothing to see here",
        "the task-force and sk-ill",
        "http://example.org:8080/path?x=1@2",
        "git@github.com:a/b.git",
        "bearer of news",
        "basic training",
        "1.2.3 a.b.c M.x.y",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "12:30 AAaaAA",
    ],
)
def test_text_without_secrets_is_returned_as_is(text: str) -> None:
    assert Redactor(["a known secret"]).redact(text) is text


SECRET = 'pa"ss wörd/1'


@pytest.mark.parametrize(
    "spelling",
    [SECRET, quote(SECRET, safe=""), 'pa\\"ss w\\u00f6rd/1', base64.b64encode(SECRET.encode()).decode().rstrip("=")],
)
def test_known_values_are_redacted_in_their_usual_spellings(spelling: str) -> None:
    assert Redactor([SECRET]).redact(f"<{spelling}>") == "<[redacted:secret]>"


def test_short_values_are_kept_and_longer_ones_redacted_first() -> None:
    redactor = Redactor(["abc", "canary-1", "canary-1-longer"])
    assert redactor.redact("abc canary-1-longer canary-1") == "abc [redacted:secret] [redacted:secret]"


def test_learned_values_are_added_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.permissions.redact.KNOWN_MAX", 20)
    redactor = Redactor(["first secret"])
    redactor.learn("second secret", "")
    assert redactor.redact("first secret, second secret") == "[redacted:secret], [redacted:secret]"
    generated = [f"generated-{number:02}" for number in range(40)]
    redactor.learn(*generated)
    spelled = "\n".join([*generated, *(base64.b64encode(value.encode()).decode() for value in generated)])
    assert 0 < redactor.redact(spelled).count("[redacted:secret]") <= 20


ORDINARY = """
production development true false 8080 1.2.3 v2.10.3-beta github.com api.openai.com:443 localhost:8080 127.0.0.1:80 ::1
/usr/bin/python ~/notes ./a/b src/main.py owner/repo C:\\Users\\me https://api.github.com/v3 application/json */*
text/event-stream application/vnd.github.v3+json text/html;charset=utf-8 application/json,text/plain;q=0.9 Asia/Shanghai
ollama none dummy not-needed EMPTY lm-studio changeme sk-xxxxxxxxxxxxxxxx xxxxxxxxxxxx your-api-key-here <token>
${TOKEN} sk-no-key-required sk-1234 test123 password ******** X-Api-Key applicationJson ada@example.org 2026-01-31
AKIAXXXXXXXXXXXXXXXX
""".split()  # noqa: SIM905


@pytest.mark.parametrize("value", ORDINARY)
def test_ordinary_values_are_not_redacted_even_under_secret_settings(value: str) -> None:
    text = f"env: {value}, https://host/{value}/x?y={value} and basic {value} bearer {value}"
    assert Redactor([value]).redact(text) == text


def _letters(rand: Random, count: int) -> str:
    return "".join(rand.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", k=count))


KEYS: dict[str, Callable[[Random], str]] = {
    "OpenAI": lambda rand: f"sk-proj-{_letters(rand, 48)}",
    "Anthropic": lambda rand: f"sk-ant-api03-{_letters(rand, 90)}",
    "GitHub": lambda rand: f"ghp_{_letters(rand, 36)}",
    "GitHub, fine-grained": lambda rand: f"github_pat_{_letters(rand, 22)}_{_letters(rand, 59)}",
    "GitLab": lambda rand: f"glpat-{_letters(rand, 20)}",
    "Slack": lambda rand: f"xoxb-123456789012-1234567890123-{_letters(rand, 24)}",
    "AWS id": lambda rand: "AKIA" + "".join(rand.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=16)),
    "AWS id of letters": lambda rand: "ASIA" + "".join(rand.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=16)),
    "AWS id that ends in digits": lambda rand: (
        "AKIA" + "".join(rand.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=12)) + "2345"
    ),
    "AWS secret": lambda rand: base64.b64encode(rand.randbytes(30)).decode(),
    "Google": lambda rand: f"AIza{_letters(rand, 35)}",
    "Mistral": lambda rand: _letters(rand, 32),
    "hexadecimal": lambda rand: rand.randbytes(16).hex(),
    "URL-safe": lambda rand: base64.urlsafe_b64encode(rand.randbytes(32)).decode().rstrip("="),
    "Hugging Face": lambda rand: f"hf_{_letters(rand, 34)}",
    "Groq": lambda rand: f"gsk_{_letters(rand, 52)}",
    "xAI": lambda rand: f"xai-{_letters(rand, 80)}",
    "Telegram": lambda rand: f"123456789:AA{_letters(rand, 33)}",
    "SendGrid": lambda rand: f"SG.{_letters(rand, 22)}.{_letters(rand, 43)}",
    "Stripe": lambda rand: f"sk_live_{_letters(rand, 24)}",
    "Perplexity": lambda rand: f"pplx-{_letters(rand, 48)}",
    "Tavily": lambda rand: f"tvly-dev-{_letters(rand, 32)}",
    "NVIDIA": lambda rand: f"nvapi-{_letters(rand, 64)}",
    "npm": lambda rand: f"npm_{_letters(rand, 36)}",
    "DigitalOcean": lambda rand: f"dop_v1_{rand.randbytes(32).hex()}",
    "Notion": lambda rand: f"ntn_{_letters(rand, 46)}",
}


@pytest.mark.parametrize("kind", KEYS)
@given(seed=st.integers(0, 1_000_000))
@example(169)  # a GitLab key that looks like a word
@settings(max_examples=10, derandomize=True)  # one random key in 4,000 looks like words
def test_keys_of_any_service_are_redacted_under_any_name(kind: str, seed: int) -> None:
    key, told = KEYS[kind](Random(seed)), list[str]()
    learned_from("SOME_API_KEY", Secret("value", key), told.append)(key)
    learned_from("OTHER", Secret("env", "OTHER"), told.append)(key)
    assert told == [key, key]
    assert key not in Redactor(told).redact(f"it is {key}")
    shown = json.dumps({"a": base64.b64encode(b"xy" + key.encode() + b"z").decode()})
    assert key[3:-3] not in Redactor(told).redact(shown)
    assert "[redacted:" in Redactor(told).redact(shown)


WORDS = st.sampled_from(
    [*ORDINARY, "the", "Basic", "basic", "Bearer", "authentication", "token=", "key:", "https://", "{}", "\n"]
)


@given(
    st.dictionaries(st.sampled_from(["NODE_ENV", "GITHUB_HOST", "Content-Type", "api_key"]), st.sampled_from(ORDINARY))
)
def test_ordinary_settings_alter_no_text(chosen: dict[str, str]) -> None:
    redactor = Redactor()
    for name, value in chosen.items():
        for source in (Secret("value", value), Secret("env", name)):
            learned_from(name, source, redactor.learn)(value)
    text = " ".join(ORDINARY)
    assert redactor.redact(text) is text


@given(st.lists(WORDS, max_size=12))
def test_ordinary_prose_is_unchanged(words: list[str]) -> None:
    text = " ".join(words)
    assert Redactor(ORDINARY).redact(text) == text


@pytest.mark.parametrize(
    ("name", "value", "is_learned"),
    [
        ("NODE_ENV", "staging-2", False),
        ("Accept", "application/json", False),
        ("TENANT", "8b1e9a5c-1f2d-4c3b-9a7e-0d1c2b3a4f5e", False),
        ("REGION", "eu-central-1", False),
        ("AUTHOR", "Ada Lovelace", False),
        ("KEYBOARD", "dvorak-programmer", False),
        ("DATABASE", "postgres://app:tr0ub4dor&3@db/x", True),
        ("githubToken", "hunter22", True),
        ("X-Auth", "correct-horse-battery", True),
        ("PLAIN", "c2VjcmV0LXZhbHVlLTQ3MTEx9Qz0", True),
    ],
)
def test_a_value_is_secret_by_its_name_or_its_form(name: str, value: str, is_learned: bool) -> None:
    redactor = Redactor()
    learned_from(name, Secret("value", value), redactor.learn)(value)
    assert (redactor.redact(f"<{value}>") != f"<{value}>") is is_learned


def test_keys_inside_headers_cookies_addresses_and_multi_line_files_are_redacted() -> None:
    key = "Zx81Kq92Lm03Np14"
    for value in (
        f"Bearer {key}",
        f"session={key}; theme=dark",
        f"https://hooks.example.org/{key}/in",
        f"https://h.example.org/?k={key}",
        f'{{\n "kind": "account",\n "id": "{key}"\n}}',
    ):
        assert Redactor([value]).redact(f"    12\t{key}!") == "    12\t[redacted:secret]!"


@given(st.text(), st.text())
def test_a_known_value_is_redacted_in_any_context(before: str, after: str) -> None:
    assert "canary-4711-x" not in Redactor(["canary-4711-x"]).redact(f"{before}canary-4711-x{after}")


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN PRIVATE KEY-----" * 20_000, "eyJ" * 100_000, "a://" * 50_000, "M" * 200_000 + ".", "bearer " * 50_000],
)
def test_hostile_text_is_redacted_quickly(text: str) -> None:
    Redactor(["known value"]).redact(text)


def test_audit_entries_are_redacted_before_hashing() -> None:
    redactor = Redactor(["canary-4711"])
    clean = AuditEntry("check", "tool:bash:ls", "allow")
    assert redactor.entry(clean) is clean
    found = redactor.entry(AuditEntry("check", "tool:bash:login canary-4711", "allow", "r", detail="canary-4711"))
    assert found == AuditEntry("check", "tool:bash:login [redacted:secret]", "allow", "r", detail="[redacted:secret]")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def test_logs_are_redacted_including_arguments_and_tracebacks() -> None:
    root, handler = logging.Logger("root"), Kept()
    child = logging.Logger("child")
    child.parent = root
    root.addHandler(handler)
    guard_logging(Redactor(["canary-4711"]), root)
    child.warning("using %s and %d", "canary-4711", 7)
    try:
        raise ValueError("with canary-4711")
    except ValueError:
        child.exception("failed", stack_info=True)
    child.warning("wrong %d %d", "canary-4711")
    assert handler.lines[0] == "using [redacted:secret] and 7"
    assert "ValueError: with [redacted:secret]" in handler.lines[1]
    assert "canary" not in "".join(handler.lines)


def test_fields_of_a_log_record_are_redacted() -> None:
    logger, handler = logging.Logger("root"), Kept()
    handler.setFormatter(logging.Formatter("%(message)s why=%(why)s"))
    logger.addHandler(handler)
    guard_logging(Redactor(["canary-4711"]), logger)
    logger.warning("refused", extra={"why": "the key canary-4711"})
    assert handler.lines == ["refused why=the key [redacted:secret]"]


def test_a_later_guard_replaces_an_earlier_one() -> None:
    logger, handler = logging.Logger("root"), Kept()
    logger.addHandler(handler)
    for secret in ("canary-1111", "canary-2222"):
        guard_logging(Redactor([secret]), logger)
    logger.warning("canary-1111 canary-2222")
    assert handler.lines == ["canary-1111 [redacted:secret]"]


def test_the_password_of_an_address_is_redacted_separately() -> None:
    redactor = Redactor(["postgresql://shoal:hunter%2F22@db/shoal"])
    assert redactor.redact("it is hunter/22 or hunter%2F22") == "it is [redacted:secret] or [redacted:secret]"
    assert Redactor(["http://[broken"]).redact("x") == "x"


def test_values_learned_later_are_redacted() -> None:
    redactor = Redactor()
    redactor.learn("canary-4711")
    redactor.learn("canary-4711")
    assert redactor.redact("canary-4711") == "[redacted:secret]"


def test_a_crash_is_printed_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("with canary-4711")
    except ValueError as error:
        print_crash(Redactor(["canary-4711"]), type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert printed.endswith("ValueError: with [redacted:secret]\n")
    assert "Traceback" in printed
