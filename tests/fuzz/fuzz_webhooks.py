"""Webhooks: no call is accepted without the secret, and the content of a body cannot leave its untrusted block."""

import random
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from shoal.features.triggers.webhooks import render
from shoal.kernel.errors import InvalidInput
from shoal.kernel.webhooks import proofs
from tests.fuzz.inputs import Json, any_text, json_bytes
from tests.fuzz.target import Attempt

SECRET = "0123456789abcdef-secret"
NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
SAMPLES: tuple[Json, ...] = (
    {"action": "opened", "issue": {"number": 7, "labels": ["bug", {"name": "ui"}]}, "a": {"b": "text"}},
)
HEADERS = ("authorization", "x-shoal-signature", "x-hub-signature-256", "x-github-delivery", "webhook-id")
TEMPLATES = ("", "New: {{ a.b }} {{ issue.labels.1.name }}", "{{ body }}", "{{ issue.number }}{{ body }}{{ a.b.c.d }}")
_MARK = re.compile(r"<\s*(/?)\s*untrusted", re.IGNORECASE)


@contextmanager
def target() -> Generator[Attempt]:
    yield attempt


def attempt(source: random.Random) -> None:
    body = json_bytes(source, SAMPLES)
    prefix = source.choice(["", "Bearer ", "t=1767603600,v1=", "sha256="])
    # The HTTP server decodes headers as Latin-1.
    headers = {
        name: prefix + any_text(source, 3).encode().decode("latin-1") for name in HEADERS if source.random() < 0.6
    }
    assert not proofs(headers, body, SECRET, NOW)
    template = source.choice(TEMPLATES)
    try:
        text = render(template, "git", body)
    except InvalidInput:
        return
    marks = [match[1] for match in _MARK.finditer(text)]
    assert marks == ["", "/"] * (len(marks) // 2), text
    assert len(marks) == (2 if "body" in template or not template else 0), text
