"""`shoal replay`, `compare`, `cases` and `check`: replay past requests, compare models, and run test cases."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import msgspec

from shoal.features.evals.answers import DIFFERENCES, RUNS_MAX, Wanted
from shoal.features.evals.cases import Expectation
from shoal.features.evals.checks import CaseOutcome
from shoal.features.evals.comparisons import ComparedAnswer, ComparedStep, ComparisonProgress, ComparisonState, total
from shoal.features.evals.routes import CaseView, CheckStart, ComparisonView, ReplayView
from shoal.kernel.errors import ConfigError, HomeLocked, NotFound, ShoalError, StoreError, StoreNewer
from shoal.kernel.ids import ThreadId, parse_thread_id
from shoal.kernel.phrases import counted
from shoal.kernel.schema import refusal
from shoal.kernel.untrusted import UNREADABLE
from shoal.surfaces.cli.client import as_usage, call_api, get, open_client, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command
from shoal.surfaces.cli.output import echo, hours_of, print_json, print_records, print_table, printable, usd
from shoal.surfaces.http.thread_views import ThreadSummary

EXIT_UNREAD = 2
EXIT_INTERRUPTED = 130
USD_MAX = 1.0
PAGE = 500
LAST = datetime.max.replace(tzinfo=UTC)

usd_option = click.option(
    "--usd-max",
    default=USD_MAX,
    show_default=True,
    type=click.FloatRange(0),
    help="Cost limit in US dollars. 0 means no limit.",
)


# ---- replay ----


class ThreadReplay(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result for one thread, which `--json` prints as one line. `error` is set if the thread is unreadable."""

    thread: str
    replay: ReplayView | None = None
    error: str = ""


@command(example="shoal replay terminal:local:main")
@click.argument("id", required=False)
@click.option("--turn", default="", help="Replay only this turn of the thread.")
@click.option("--all", "every", is_flag=True, help="Replay every thread, including archived ones.")
@click.option("--since", help="With --all: replay threads active within this time, such as 12h or 2w. [default: 30d]")
@as_usage()
def replay(context: CommandContext, id: str | None, turn: str, every: bool, since: str | None, as_json: bool) -> int:
    """Rebuild past model requests and compare them with the requests that were sent.

    ID is a thread id. Exits with 1 if a request differs. Exits with 2 if the thread or turn does not exist, or if a
    newer version of Shoal wrote it.
    """
    if every == (id is not None):
        raise click.UsageError("Specify either a thread or --all.")
    if since is not None and not every:
        raise click.UsageError("--since requires --all.")
    lately = timedelta(hours=hours_of(since or "30d"))
    threads = [parse_thread_id(id)] if id is not None else _active(context, lately)
    calls = identical = count = unread = 0
    kinds: Counter[str] = Counter()
    compared = True
    for thread in threads:
        try:
            replay_view = get(context, f"/api/threads/{path_part(thread)}/replay", ReplayView, turn=turn)
        except (NotFound, StoreNewer) as error:
            if id is not None:
                raise
            if isinstance(error, StoreNewer):  # on NotFound, the thread was deleted in the meantime
                unread += 1
                line = msgspec.json.encode(ThreadReplay(thread, error=str(error))).decode()
                print(line if as_json else f"{thread}: {error}")
            continue
        compared, count = compared and replay_view.compares_today, count + 1
        calls, identical = calls + replay_view.calls, identical + replay_view.identical
        kinds.update(difference.kind for difference in replay_view.differences)
        if as_json:
            print(msgspec.json.encode(ThreadReplay(thread, replay_view)).decode())
            continue
        firsts = {difference.kind: difference for difference in reversed(replay_view.differences)}
        for first in sorted(firsts.values(), key=lambda first: first.seq):
            print(f"{thread}, event {first.seq}: {printable(first.detail)}")
        if len(replay_view.differences) > len(firsts):
            print(f"  and {counted(len(replay_view.differences) - len(firsts), 'more differing call')} in this thread")
    if not as_json:
        within = f" in {counted(count, 'thread')}" if id is None else ""
        parts = [f"{identical} identical"]
        if kinds:
            what = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
            parts.append(f"{kinds.total()} different ({what})")
        print(f"{counted(calls, 'request')}{within}: {', '.join(parts)}.")
        if unread:
            print(f"Skipped threads that a newer version wrote: {unread}.")
        if not compared:
            print("Shoal is not running, so the comparison does not include current tools, options and instructions.")
    return EXIT_UNREAD if unread else 1 if kinds else 0


def _active(context: CommandContext, span: timedelta) -> Iterator[ThreadId]:
    """Yield the threads active within `span`, most recent first: all current threads, then the archived ones."""
    oldest = datetime.now(UTC) - span
    for archived in (False, True):
        before: datetime | None = LAST  # without a time, the first page includes pinned threads of any age
        while before is not None:
            page = get(
                context, "/api/threads", list[ThreadSummary],
                limit=PAGE, before=before.isoformat(), archived=archived,
            )  # fmt: skip
            recent = [thread_view for thread_view in page if thread_view.updated_at >= oldest]
            yield from (ThreadId(thread_view.thread) for thread_view in recent)
            before = page[-1].updated_at if page and len(recent) == len(page) else None


@contextmanager
def all_as_usage() -> Generator[None]:
    """Convert a ShoalError to a usage error, except configuration and database errors."""
    try:
        yield
    except (ConfigError, HomeLocked, StoreError):
        raise
    except ShoalError as error:
        raise click.UsageError(str(error)) from error


# ---- compare ----


@command(example="shoal compare --model ollama/qwen3 --last 5")
@click.option("--model", required=True, help="Model to ask, as PROVIDER/MODEL.")
@click.option("--thread", default="", metavar="ID", help="Repeat the calls in this thread.")
@click.option(
    "--last", default=0, type=click.IntRange(0), help="Repeat the calls in the latest N turns across all threads."
)
@click.option("--tag", default="", help="Repeat the calls in threads with #TAG in their title.")
@click.option("--profile", default="", help="Use the tools that this permission profile allows.")
@click.option("--system", type=click.Path(path_type=Path), help="Use the instructions in this file.")
@click.option(
    "--runs",
    default=1,
    show_default=True,
    type=click.IntRange(1, RUNS_MAX),
    help="Number of times to repeat each call.",
)
@usd_option
def compare(
    context: CommandContext,
    model: str,
    thread: str,
    last: int,
    tag: str,
    profile: str,
    system: Path | None,
    runs: int,
    usd_max: float,
    as_json: bool,
) -> int:
    """Send recorded model calls to another model and compare the answers. No tool runs.

    Answers are saved as they arrive. After an interruption, run the same command to continue. Exits with 1 if calls
    remain unanswered.
    """
    text = ""
    if system is not None:
        try:
            text = system.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"Shoal cannot read {system}: {getattr(error, 'strerror', '') or error}.") from error
    wanted = Wanted(model, thread, last, tag.removeprefix("#"), profile, text, runs)
    try:
        return asyncio.run(_compare(context, wanted, usd_max, as_json=as_json))
    except KeyboardInterrupt:
        echo("\nStopped. Answers so far are saved. Run the same command to continue.", sys.stderr)
        return EXIT_INTERRUPTED


async def _compare(context: CommandContext, wanted: Wanted, usd_max: float, *, as_json: bool) -> int:
    shows = sys.stderr.isatty() and not as_json
    stopped, state = "", None
    async with open_client(context) as api:
        body = {"wanted": wanted, "usd_max": usd_max}
        with all_as_usage():
            state = await api.call("POST", "/api/comparisons", body, into=ComparisonState)
        if not as_json:
            print("\n".join(plan_lines(state)), file=sys.stderr, flush=True)
        path = f"/api/comparisons/{state.id}"
        if state.done < state.calls:
            async with aclosing(api.stream(f"{path}/run", "POST")) as stream:
                async for data in stream:
                    progress = msgspec.json.decode(data, type=ComparisonProgress)
                    stopped = progress.stopped
                    if not as_json:
                        cost = "" if progress.usd is None else f", ${progress.usd:.4f}"
                        line = f"{progress.done} of {progress.calls} answered{cost}"
                        print(
                            f"\r\x1b[2K{line}" if shows else line,
                            end="" if shows else "\n",
                            file=sys.stderr,
                            flush=True,
                        )
            if shows:
                print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        view = await api.call("GET", path, into=ComparisonView)
    if as_json:
        print_json(view)
    else:
        print_comparison(view)
        if stopped:
            echo(f"shoal: {stopped}", sys.stderr)
    return 0 if view.state.done >= view.state.calls else 1


def plan_lines(state: ComparisonState) -> list[str]:
    times = f", {state.runs} times each" if state.runs > 1 else ""
    what = f"{counted(state.turns, 'turn')} with {counted(state.steps, 'model call')}"
    lines = [f"{what} of {printable(state.selection)}{times}."]
    if state.done:
        lines.append(f"Already answered: {state.done} of {state.calls}.")
    if state.left_out:
        lines.append(f"Skipped because the thread or its instructions no longer exist: {state.left_out}.")
    if state.done < state.calls:
        cost = "unknown price" if state.estimated_usd is None else f"about ${state.estimated_usd:.4f}"
        ceiling = f"cost limit ${state.usd_max:.4f}" if state.usd_max else "no separate cost limit"
        lines.append(f"Remaining calls: about {state.estimated_tokens:,} tokens, {cost}, {ceiling}.")
    return lines


def print_comparison(view: ComparisonView) -> None:
    turns: dict[tuple[str, str], list[ComparedStep]] = {}
    for step in view.steps:
        turns.setdefault((step.thread, step.turn), []).append(step)
    rows: list[tuple[str, ...]] = []
    for (thread, _), steps in turns.items():
        counts = Counter(answer.difference for step in steps for answer in step.answers)
        changed = (step for step in steps if any(answer.difference not in ("same", "words") for answer in step.answers))
        diverged = next((step.number for step in changed), None)
        timed = [seconds for step in steps if (seconds := step.recorded.seconds) is not None]
        rows.append(
            (
                thread,
                ", ".join(f"{counts[name]} {name}" for name in DIFFERENCES if counts[name]) or "open",
                f"at call {diverged}" if diverged else "",
                step_figures(
                    [step.recorded.usage.output_tokens for step in steps],
                    means(steps, lambda step: step.answer.usage.output_tokens),
                ),
                f"{usd(total(step.recorded.usd for step in steps))} → {usd(cost_of(steps))}",
                step_figures(timed, means(steps, lambda step: step.answer.seconds), " s"),
                steps[0].asked,
            )
        )
    head = ("thread", "answers", "diverged", "tokens out", "usd", "seconds", "asked")
    print_table(head, rows, "Nothing is left to compare.")
    counts = Counter(answer.difference for step in view.steps for answer in step.answers)
    state = view.state
    parts = ", ".join(f"{counts[name]} {WORDS[name]}" for name in DIFFERENCES if counts[name])
    cost = "an unknown price" if state.usd is None else f"${state.usd:.4f}"
    print(f"{state.done} of {state.calls} answered by {printable(state.model)} for {cost}: {parts or 'nothing yet'}.")


WORDS = {
    "same": "the same",
    "words": "with different text",
    "arguments": "with different arguments",
    "calls": "with different calls",
    "refused": "refused",
    "failed": "failed",
}


def means(steps: Sequence[ComparedStep], of: Callable[[ComparedAnswer], float | None]) -> list[float]:
    """Return the average over the runs of each call. Omits calls without a known value."""
    taken = [[value for answer in step.answers if (value := of(answer)) is not None] for step in steps]
    return [sum(column) / len(column) for column in taken if column]


def cost_of(steps: Sequence[ComparedStep]) -> float | None:
    return total(
        answer.answer.usd / len(step.answers) if answer.answer.usd is not None else None
        for step in steps
        for answer in step.answers
    )


def step_figures(before: Sequence[float], after: Sequence[float], unit: str = "") -> str:
    was, now = (f"{sum(values):.3g}{unit}" if values else "–" for values in (before, after))
    return f"{was} → {now}"


# ---- cases ----


cases = click.Group(
    "cases", help="Save turns as test cases for an agent, and list the cases.", epilog="Example: shoal cases list"
)


@command(cases, example="shoal cases save terminal:local:main --name weather --contains Kiel")
@click.option("--name", required=True, help="Name of the case: lowercase letters, digits and hyphens.")
@click.option("--turn", default="", help="The turn to save. [default: the last turn]")
@click.option("--about", default="", help="The case's purpose, in one sentence.")
@click.option("--calls", multiple=True, metavar="TOOL", help="The agent calls this tool.")
@click.option(
    "--arguments",
    multiple=True,
    metavar="JSON",
    help="Arguments that the call must include, as a JSON object. Pass at most one for each --calls.",
)
@click.option("--never", "never_calls", multiple=True, metavar="TOOL", help="The agent never calls this tool.")
@click.option("--contains", multiple=True, metavar="TEXT", help="The answer contains this text.")
@click.option("--matches", multiple=True, metavar="REGEX", help="The answer matches this regular expression.")
@click.option("--lacks", multiple=True, metavar="TEXT", help="The answer does not contain this text.")
@click.option("--judged", multiple=True, metavar="SENTENCE", help="A model judges that this sentence is true.")
@click.option("--sandbox", is_flag=True, help="Run the case's tools in a temporary workspace during the check.")
def save(
    context: CommandContext,
    thread: str,
    name: str,
    turn: str,
    about: str,
    calls: tuple[str, ...],
    arguments: tuple[str, ...],
    sandbox: bool,
    as_json: bool,
    **others: tuple[str, ...],
) -> None:
    """Save a turn of THREAD as a test case for its agent. The file contains the conversation and the expectations."""
    if len(arguments) > len(calls):
        raise click.UsageError("Pass --calls before each --arguments.")
    expect: list[Expectation] = []
    for number, tool in enumerate(calls):
        try:
            given = msgspec.json.decode(arguments[number] if number < len(arguments) else "{}", type=dict[str, object])
        except UNREADABLE as error:
            raise click.UsageError(
                f"--arguments {arguments[number][:80]!r} is not a JSON object: {refusal(error)}."
            ) from error
        expect.append(Expectation(calls=tool, arguments=given))
    for kind in ("never_calls", "contains", "matches", "lacks", "judged"):
        expect += [msgspec.convert({kind: other}, Expectation) for other in others[kind]]
    if not expect:
        raise click.UsageError("Add an expectation: --calls, --never, --contains, --matches, --lacks or --judged.")
    body = {"name": name, "expect": expect, "turn": turn, "about": about, "sandbox": sandbox}
    with all_as_usage():
        made = call_api(context, "POST", f"/api/threads/{path_part(thread)}/cases", body, into=CaseView)
    if as_json:
        print_json(made)
        return
    echo(f"Saved the case as agents/{made.agent}/{made.file}. `shoal check --agent {made.agent}` runs it.")


@command(cases, "list", example="shoal cases list --agent main")
@agent_option("Agent whose cases are listed.", "main")
def list_cases(context: CommandContext, agent: str, as_json: bool) -> None:
    """List an agent's cases and their expectations."""
    with all_as_usage():
        cases = get(context, f"/api/agents/{path_part(agent)}/cases", list[CaseView])
    rows = [(case.name, "; ".join(case.expects), case.about) for case in cases]
    empty = f"{agent} has no cases. `shoal cases save` adds one."
    print_records(cases, as_json, ("case", "expected", "about"), rows, empty)


@command(example="shoal check --agent main")
@click.argument("names", nargs=-1, metavar="[CASE…]")
@agent_option("Agent whose cases are run.", "main")
@click.option("--model", default="", help="Use this model instead of the agent's model.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML to this file.")
@usd_option
def check(
    context: CommandContext,
    names: tuple[str, ...],
    agent: str,
    model: str,
    junit: Path | None,
    usd_max: float,
    as_json: bool,
) -> int:
    """Run an agent's cases and report which pass. CASE limits the run to the named cases.

    Exits with 1 if a case fails or cannot run, and with 2 if a case is invalid.
    """
    if junit is not None and not os.access(junit if junit.exists() else junit.absolute().parent, os.W_OK):
        raise click.UsageError(f"Shoal cannot write {junit}. Specify a file in an existing folder.")
    outcomes = asyncio.run(_check(context, names, agent, model, usd_max, as_json=as_json))
    if as_json:
        print_json(outcomes)
    failed = sum(not outcome.passed and not outcome.error for outcome in outcomes)
    errors = sum(bool(outcome.error) for outcome in outcomes)
    if not as_json:
        spent = total(outcome.usd for outcome in outcomes)
        cost = "at an unknown price" if spent is None else f"for ${spent:.4f}"
        summary = f"{len(outcomes) - failed - errors} passed, {failed} failed, {errors} not run, {cost}"
        nothing = f"{agent} has no cases. `shoal cases save` adds one."
        echo(f"{counted(len(outcomes), 'case')}: {summary}." if outcomes else nothing)
    if junit is not None:
        junit.write_bytes(junit_xml(agent, outcomes))
    return 1 if failed or errors else 0


async def _check(
    context: CommandContext, names: Sequence[str], agent: str, model: str, usd_max: float, *, as_json: bool
) -> list[CaseOutcome]:
    outcomes: list[CaseOutcome] = []
    body = {"cases": names, "model": model, "usd_max": usd_max}
    async with (
        open_client(context) as api,
        aclosing(api.stream(f"/api/agents/{path_part(agent)}/check", "POST", body)) as stream,
    ):
        with all_as_usage():
            msgspec.json.decode(await anext(stream), type=CheckStart)
        async for data in stream:
            outcomes.append(msgspec.json.decode(data, type=CaseOutcome))
            if not as_json:
                print("\n".join(outcome_lines(outcomes[-1])), flush=True)
    return outcomes


def outcome_lines(outcome: CaseOutcome) -> list[str]:
    mark = "error" if outcome.error else "pass" if outcome.passed else "FAIL"
    lines = [f"{mark:5}  {outcome.name}  ({outcome.seconds:.1f} s)"]
    if outcome.error:
        lines.append(f"       {printable(outcome.error)}")
    for failure in outcome.failures:
        lines.append(f"       - {printable(failure.expected)}")
        lines += [f"       + {line}" for line in printable(failure.got).splitlines()]
    return lines


def junit_xml(agent: str, outcomes: Sequence[CaseOutcome]) -> bytes:
    failed = [outcome for outcome in outcomes if not outcome.passed and not outcome.error]
    errors = [outcome for outcome in outcomes if outcome.error]
    counts = {"tests": len(outcomes), "failures": len(failed), "errors": len(errors)}
    seconds = f"{sum(outcome.seconds for outcome in outcomes):.3f}"
    suite = ET.Element("testsuite", {"name": agent, "time": seconds, **{key: str(n) for key, n in counts.items()}})
    for outcome in outcomes:
        case = ET.SubElement(
            suite, "testcase", classname=f"shoal.{agent}", name=outcome.name, time=f"{outcome.seconds:.3f}"
        )
        if outcome.error:
            ET.SubElement(case, "error", message=printable(outcome.error))
        elif outcome.failures:
            message = "; ".join(printable(failure.expected) for failure in outcome.failures)
            lines = [line.strip() for line in outcome_lines(outcome)[1:]]
            ET.SubElement(case, "failure", message=message).text = "\n".join(lines)
    return ET.tostring(suite, encoding="utf-8", xml_declaration=True)
