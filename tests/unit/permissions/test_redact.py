"""Secrets do not pass, other text does."""

import base64
import logging
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain.records import AuditEntry
from shoal.permissions.redact import KNOWN_MAX, Redactor, guard_logging, print_crash

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
def test_shapes_of_secrets_are_taken_out(secret: str, kind: str) -> None:
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
def test_what_stands_around_a_secret_stays(text: str, redacted: str) -> None:
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
def test_other_text_is_the_same_object(text: str) -> None:
    assert Redactor(["a known secret"]).redact(text) is text


SECRET = 'pa"ss wörd/1'


@pytest.mark.parametrize(
    "spelling",
    [SECRET, quote(SECRET, safe=""), 'pa\\"ss w\\u00f6rd/1', base64.b64encode(SECRET.encode()).decode().rstrip("=")],
)
def test_known_values_are_taken_out_in_their_usual_spellings(spelling: str) -> None:
    assert Redactor([SECRET]).redact(f"<{spelling}>") == "<[redacted:secret]>"


def test_short_values_are_left_alone_and_longer_ones_go_first() -> None:
    redactor = Redactor(["abc", "secret-1", "secret-1-longer"])
    assert redactor.redact("abc secret-1-longer secret-1") == "abc [redacted:secret] [redacted:secret]"


def test_learning_adds_and_is_bounded() -> None:
    redactor = Redactor(["first secret"])
    redactor.learn("second secret", "")
    assert redactor.redact("first secret, second secret") == "[redacted:secret], [redacted:secret]"
    redactor.learn(*(f"generated-{n:06}" for n in range(KNOWN_MAX)))
    assert len(redactor._known) == KNOWN_MAX


@given(st.text(), st.text())
def test_a_known_value_never_passes(before: str, after: str) -> None:
    assert "canary-4711-x" not in Redactor(["canary-4711-x"]).redact(f"{before}canary-4711-x{after}")


@pytest.mark.parametrize(
    "text",
    ["-----BEGIN PRIVATE KEY-----" * 20_000, "eyJ" * 100_000, "a://" * 50_000, "M" * 200_000 + ".", "bearer " * 50_000],
)
def test_hostile_text_is_answered(text: str) -> None:
    Redactor(["known value"]).redact(text)


def test_audit_entries_are_cleaned_before_they_are_hashed() -> None:
    redactor = Redactor(["canary-4711"])
    clean = AuditEntry("check", "tool:bash:ls", "allow")
    assert redactor.entry(clean) is clean
    found = redactor.entry(AuditEntry("check", "tool:bash:login canary-4711", "allow", "r", detail="canary-4711"))
    assert found == AuditEntry("check", "tool:bash:login [redacted:secret]", "allow", "r", detail="[redacted:secret]")


class Kept(logging.Handler):
    """Keeps what would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Format and keep it."""
        self.lines.append(self.format(record))


def test_logs_of_every_logger_are_cleaned_with_arguments_and_tracebacks() -> None:
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


def test_fields_of_a_record_are_cleaned_too() -> None:
    logger, handler = logging.Logger("root"), Kept()
    handler.setFormatter(logging.Formatter("%(message)s why=%(why)s"))
    logger.addHandler(handler)
    guard_logging(Redactor(["canary-4711"]), logger)
    logger.warning("refused", extra={"why": "the key canary-4711"})
    assert handler.lines == ["refused why=the key [redacted:secret]"]


def test_a_later_guard_takes_the_place_of_an_earlier_one() -> None:
    logger, handler = logging.Logger("root"), Kept()
    logger.addHandler(handler)
    for secret in ("canary-1111", "canary-2222"):
        guard_logging(Redactor([secret]), logger)
    logger.warning("canary-1111 canary-2222")
    assert handler.lines == ["canary-1111 [redacted:secret]"]


def test_the_password_of_an_address_is_taken_out_alone_too() -> None:
    redactor = Redactor(["postgresql://shoal:hunter%2F22@db/shoal"])
    assert redactor.redact("it is hunter/22 or hunter%2F22") == "it is [redacted:secret] or [redacted:secret]"
    assert Redactor(["http://[broken"]).redact("x") == "x"


def test_what_is_learned_later_counts() -> None:
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
