"""The HTTP API: for any input, the running application conforms to the OpenAPI document that it serves."""

import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from tests.fuzz.http_app import TOKEN, AppThread
from tests.fuzz.target import Attempt

LEFT_OUT = [
    ignored_auth,  # sends so many wrong tokens that the rate limit applies (see test_http_access)
    positive_data_acceptance,  # a schema cannot require that a text is not blank or that an agent exists
]
# an oversized body may be rejected with 413
REFUSALS = {"negative_data_rejection": {"expected-statuses": ["4xx", "5xx"]}}
CONFIG = SchemathesisConfig.from_dict({"checks": REFUSALS})
ENDLESS = "/api/events"
EXAMPLES = 5


@contextmanager
def target() -> Generator[Attempt]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with tempfile.TemporaryDirectory() as home, AppThread(Path(home)) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=headers, config=CONFIG)
        operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
        calls = [call for call in operations if call.path != ENDLESS]

        def attempt(source: random.Random) -> None:
            @seeded(source.getrandbits(64))
            @settings(
                max_examples=EXAMPLES,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            )
            @given(case=source.choice(calls).as_strategy())
            def tried(case: schemathesis.Case) -> None:
                case.call_and_validate(base_url=address, headers=headers, excluded_checks=LEFT_OUT, timeout=20)

            tried()

        yield attempt
