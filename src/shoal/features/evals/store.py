"""Database access for comparisons and their answers."""

import msgspec

from shoal.features.evals.answers import STEPS_MAX, Comparison, ModelAnswer, StepLocation, Wanted
from shoal.kernel.ids import ThreadId
from shoal.store.driver import Script, StorePart, dump, query, reader, text, writes

LISTED_MAX = 200
ANSWERS_MAX = 20 * STEPS_MAX

AnswerKey = tuple[ThreadId, int, int]
"""Thread, event sequence number and run number, which together identify an answer."""

_comparison = reader(
    Comparison,
    wanted=msgspec.json.Decoder(Wanted).decode,
    steps=msgspec.json.Decoder(tuple[StepLocation, ...]).decode,
)
_answer = msgspec.json.Decoder(ModelAnswer)


def ceiling_of(comparison: str) -> str:
    """Return the budget scope for a comparison's spending."""
    return f"comparison:{comparison}"


class ComparisonStore(StorePart):
    async def put(self, comparison: Comparison) -> None:
        """Insert a comparison, or update the calls and the cost limit of an existing one."""
        wanted, steps = dump(comparison.wanted), dump(comparison.steps)
        row = {"id": comparison.id, "now": comparison.created_at, "usd_max": comparison.usd_max}
        await self._write("comparison_put", **row, wanted=wanted, steps=steps)

    async def get(self, comparison: str) -> Comparison | None:
        return await self._one(_comparison, "comparison_one", id=comparison)

    async def newest(self) -> list[Comparison]:
        return [_comparison(row) for row in await self._read("comparisons_newest", limit=LISTED_MAX)]

    async def answers(self, comparison: str) -> dict[AnswerKey, ModelAnswer]:
        """Return all stored answers, including those to calls that are no longer part of the comparison."""
        rows = await self._read("answers_of", low=f"{comparison}:", high=f"{comparison};", limit=ANSWERS_MAX)
        answers: dict[AnswerKey, ModelAnswer] = {}
        for key, body in rows:
            thread, seq, run = text(key).partition(":")[2].rsplit(":", 2)
            answers[ThreadId(thread), int(seq), int(run)] = _answer.decode(text(body))
        return answers

    async def keep(self, comparison: str, key: AnswerKey, answer: ModelAnswer) -> None:
        """Store an answer, replacing an earlier failure."""
        thread, seq, run = key
        await self._write("answer_put", key=f"{comparison}:{thread}:{seq}:{run}", thread=thread, answer=dump(answer))

    @writes
    def remove(self, comparison: str) -> Script[bool]:
        """Remove a comparison, its answers and its spending. Return False if it does not exist."""
        if not (yield from query("comparison_delete", id=comparison)):
            return False
        yield from query("answers_delete", low=f"{comparison}:", high=f"{comparison};")
        yield from query("comparison_spent_delete", scope=ceiling_of(comparison))
        return True
