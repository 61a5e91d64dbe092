"""Counters of what this process did, and gauges of what waits, in Prometheus's text form."""

from collections import Counter
from datetime import datetime

from shoal.domain.events import AssistantSaid, Event, ToolFinished, TurnFinished
from shoal.domain.records import Backlog


class Counters:
    """Counts journal events as they happen; restarting the process starts them anew, as Prometheus expects."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()
        self._tool_calls: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._model_calls = 0

    def count(self, event: Event) -> None:
        """Take one event in; never waits, never fails."""
        match event.data:
            case TurnFinished(outcome=outcome):
                self._turns[outcome] += 1
            case ToolFinished(is_error=is_error):
                self._tool_calls["error" if is_error else "done"] += 1
            case AssistantSaid(usage=usage):
                self._model_calls += 1
                self._tokens["input"] += usage.input_tokens
                self._tokens["cached"] += usage.cached_tokens
                self._tokens["output"] += usage.output_tokens
            case _:
                pass

    def render(self, backlog: Backlog, outbox_depth: int, advancing: int, now: datetime) -> str:
        """All figures as text. Ages are seconds; `advancing` is of this process, what waits or is open is of all."""
        age = max((now - backlog.oldest_at).total_seconds(), 0.0) if backlog.oldest_at else 0.0
        turns = {outcome: self._turns[outcome] for outcome in ("done", "aborted", "failed", "limit")}
        calls = {result: self._tool_calls[result] for result in ("done", "error")}
        tokens = {kind: self._tokens[kind] for kind in ("input", "cached", "output")}
        return "".join(
            (
                _labelled("shoal_turns_total", "Turns that ended, by outcome.", "outcome", turns),
                _labelled("shoal_tool_calls_total", "Tool calls that ended, by result.", "result", calls),
                _plain("shoal_model_calls_total", "counter", "Model calls that ended.", self._model_calls),
                _labelled("shoal_tokens_total", "Tokens used; input includes cached.", "kind", tokens),
                _plain("shoal_outbox_depth", "gauge", "Posts on their way to platforms.", outbox_depth),
                _plain("shoal_prompts_queued", "gauge", "Messages that no turn has taken yet.", backlog.prompts),
                _plain("shoal_turns_running", "gauge", "Turns that are open, waiting ones included.", backlog.turns),
                _plain("shoal_threads_advancing", "gauge", "Threads that this process works on now.", advancing),
                _plain("shoal_oldest_prompt_seconds", "gauge", "Age of the longest waiting message.", age),
            )
        )


def _plain(name: str, kind: str, text: str, value: float) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value:.15g}\n"


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> str:
    lines = "".join(f'{name}{{{label}="{key}"}} {value}\n' for key, value in values.items())
    return f"# HELP {name} {text}\n# TYPE {name} counter\n{lines}"
