"""The rows of comparisons, and of what models answered in them."""

import msgspec

from shoal.features.evals.answers import STEPS_MAX, Comparison, ModelAnswer, StepPlace, Wanted
from shoal.kernel.ids import ThreadId
from shoal.store.driver import Script, StorePart, dump, query, reader, text, writes

LISTED_MAX = 200
ANSWERS_MAX = 20 * STEPS_MAX

AnswerKey = tuple[ThreadId, int, int]
"""Of which thread, to which event's call, and in which run."""

_comparison = reader(
    Comparison,
    wanted=msgspec.json.Decoder(Wanted).decode,
    steps=msgspec.json.Decoder(tuple[StepPlace, ...]).decode,
)
_answer = msgspec.json.Decoder(ModelAnswer)


def ceiling_of(comparison: str) -> str:
    """The scope of what a comparison may cost."""
    return f"comparison:{comparison}"


class ComparisonStore(StorePart):
    """Comparisons, until somebody removes them."""

    async def put(self, comparison: Comparison) -> None:
        """Keep one; one with the same id gets its calls and its ceiling."""
        wanted, steps = dump(comparison.wanted), dump(comparison.steps)
        row = {"id": comparison.id, "now": comparison.created_at, "usd_max": comparison.usd_max}
        await self._write("comparison_put", **row, wanted=wanted, steps=steps)

    async def get(self, comparison: str) -> Comparison | None:
        return await self._one(_comparison, "comparison_one", id=comparison)

    async def newest(self) -> list[Comparison]:
        return [_comparison(row) for row in await self._read("comparisons_newest", limit=LISTED_MAX)]

    async def answers(self, comparison: str) -> dict[AnswerKey, ModelAnswer]:
        """What was answered so far, of calls that it no longer asks too."""
        rows = await self._read("answers_of", low=f"{comparison}:", high=f"{comparison};", limit=ANSWERS_MAX)
        answers: dict[AnswerKey, ModelAnswer] = {}
        for key, body in rows:
            thread, seq, run = text(key).partition(":")[2].rsplit(":", 2)
            answers[ThreadId(thread), int(seq), int(run)] = _answer.decode(text(body))
        return answers

    async def keep(self, comparison: str, key: AnswerKey, answer: ModelAnswer) -> None:
        """Keep an answer, in the place of one that failed."""
        thread, seq, run = key
        await self._write("answer_put", key=f"{comparison}:{thread}:{seq}:{run}", thread=thread, answer=dump(answer))

    @writes
    def remove(self, comparison: str) -> Script[bool]:
        """Remove one with its answers and what it has spent; False when there is none."""
        if not (yield from query("comparison_delete", id=comparison)):
            return False
        yield from query("answers_delete", low=f"{comparison}:", high=f"{comparison};")
        yield from query("comparison_spent_delete", scope=ceiling_of(comparison))
        return True
