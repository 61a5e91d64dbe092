"""The Grafana dashboard queries existing metrics and uses only fields that Grafana's types preserve."""

import json
import re
from datetime import UTC, datetime
from typing import TypeAlias, Union

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.tidy.source import ROOT

from shoal.kernel.records import Backlog
from shoal.surfaces.http.routes_operations import Counters

Json: TypeAlias = Union[dict[str, "Json"], list["Json"], str, int, float, bool, None]  # noqa: UP007 (refers to itself)

FILE = ROOT / "deploy" / "grafana" / "shoal.json"


def lost(written: Json, taken: Json, at: str = "") -> list[str]:
    if isinstance(written, dict) and isinstance(taken, dict):
        return [one for key, value in written.items() for one in lost(value, taken.get(key, "gone"), f"{at}/{key}")]
    if isinstance(written, list) and isinstance(taken, list) and len(written) == len(taken):
        pairs = enumerate(zip(written, taken, strict=True))
        return [one for number, (value, other) in pairs for one in lost(value, other, f"{at}/{number}")]
    return [] if written == taken else [at]


def test_the_dashboard_uses_only_fields_that_grafana_knows() -> None:
    plugins.register_default_plugins()
    written = json.loads(FILE.read_text(encoding="utf-8"))
    taken = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(written)))
    assert lost(written, taken) == []
    assert lost({**written, "tittle": "x"}, taken) == ["/tittle"]


def test_the_dashboard_queries_exactly_the_exported_metrics() -> None:
    asked = set(re.findall(r"shoal_\w+", FILE.read_text(encoding="utf-8")))
    shown = Counters().render(Backlog(0, None, 0), 0, 0, datetime.now(UTC))
    assert asked == set(re.findall(r"^# TYPE (\w+)", shown, re.MULTILINE))
