"""`shoal audit`, `usage`, `models` and `skills`: the audit log, costs, models and skills."""

import asyncio
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import click
import msgspec

from shoal.config import default_model, open_catalog
from shoal.files.deep_folders import walk
from shoal.kernel.clock import SystemClock
from shoal.kernel.errors import NotFound
from shoal.kernel.records import AuditRow
from shoal.models.catalog import ModelListing
from shoal.models.quirks import Change
from shoal.surfaces.cli.client import as_usage, call_api, get, path_part
from shoal.surfaces.cli.completion import agent_option
from shoal.surfaces.cli.context import CommandContext, command, json_option
from shoal.surfaces.cli.output import echo, print_json, print_records, print_table, usd
from shoal.surfaces.http.routes_agents import SkillsView
from shoal.surfaces.http.routes_operations import CeilingView, UsageView

# ---- audit ----

KINDS = {"check": "permission check", "self_edit": "self-edit", "mcp": "MCP server"}
"""Display names for entry kinds with unclear stored names."""


audit = click.Group(
    "audit",
    help="The audit log: checks, decisions and actions. Hash chains reveal any change to it.",
    epilog="Example: shoal audit tail --limit 20",
)


@command(audit, example="shoal audit tail --limit 20")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--chain", default="", help="Show only this chain: a thread id, or system.")
def tail(context: CommandContext, limit: int, chain: str, as_json: bool) -> None:
    """Print the latest entries of the audit log, newest last."""
    audit_rows = get(context, "/api/audit", list[AuditRow], limit=limit, chain=chain)
    rows = [
        (
            row.at,
            KINDS.get(row.entry.kind, row.entry.kind),
            row.entry.decision,
            f"{row.entry.user} ({row.entry.token})" if row.entry.token else row.entry.user,
            row.entry.rule,
            row.entry.action,
        )
        for row in audit_rows
    ]
    head = ("time (UTC)", "kind", "decision", "user (token)", "rule", "action")
    print_records(audit_rows, as_json, head, rows, "The audit log is empty.")


@command(audit, example="shoal audit verify")
def verify(context: CommandContext, as_json: bool) -> int:
    """Check every chain. Exits with 1 and names the first changed entry of each broken chain."""
    report = context.read(lambda store: store.audit.verify())
    problems = [chain.shown for chain in report.broken]
    if as_json:
        print_json({"chains": report.chains, "entries": report.entries, "broken": problems})
    elif problems:
        for problem in problems:
            print(f"broken: {problem}")
    else:
        print(f"ok: the audit log is intact (entries: {report.entries}, chains: {report.chains}).")
    return 1 if report.broken else 0


# ---- usage ----


@click.group(invoke_without_command=True, epilog="Example: shoal usage --days 7")
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 3660))
@json_option
@click.pass_context
def usage(click_context: click.Context, days: int, as_json: bool) -> None:
    """Show model usage and cost, newest day first."""
    if click_context.invoked_subcommand is not None:
        return
    context = click_context.ensure_object(CommandContext)
    views = get(context, "/api/usage", list[UsageView], days=days)
    rows = [
        (
            row.day,
            row.agent,
            row.model,
            row.calls,
            row.usage.input_tokens,
            row.usage.cached_tokens,
            row.usage.output_tokens,
            usd(row.usd),
            row.usage.estimated or "",
        )
        for row in views
    ]
    head = (
        *("day", "agent", "model", "calls", "tokens in", "of which cached", "tokens out", "US dollars"),
        "estimated calls",
    )
    print_records(views, as_json, head, rows, "No model calls in this period.")
    ceilings = [] if as_json else get(context, "/api/usage/ceilings", list[CeilingView])
    if ceilings:
        print()
        spent = [
            (
                ceiling.scope,
                f"{ceiling.usd:.4f} of {ceiling.usd_max:.2f}" if ceiling.usd_max else f"{ceiling.usd:.4f}",
                f"{ceiling.tokens} of {ceiling.tokens_max}" if ceiling.tokens_max else ceiling.tokens,
            )
            for ceiling in ceilings
        ]
        print_table(("today's limit", "US dollars", "tokens"), spent, "")
    if any(ceiling.is_suspended for ceiling in ceilings):
        print("Budget limits are suspended until midnight.")


@command(usage, example="shoal usage lift")
def lift(context: CommandContext) -> None:
    """Suspend all budget limits until midnight in the time zone of shoal.toml."""
    day = call_api(context, "POST", "/api/usage/lift", into=dict[str, str])["day"]
    print(f"Budget limits are suspended until the end of {day}.")


# ---- models ----


models = click.Group("models", help="Models, named PROVIDER/MODEL.", epilog="Example: shoal models list")


@command(models, "list", example="shoal models list")
def list_models(context: CommandContext, as_json: bool) -> None:
    """List the known models. 'models refresh' asks the providers again."""
    config = context.config()
    chosen, catalog = default_model(config), open_catalog(config, os.environ, SystemClock())
    views: list[dict[str, str | int]] = []
    for name in dict.fromkeys([*catalog.names(), chosen]):
        route = catalog.route(name)
        known = {"name": name, "provider": route.provider.name, "context_tokens": route.context_tokens}
        views.append({**known, "is_default": name == chosen})
    rows = [
        (view["name"], view["context_tokens"] or "unknown", "default" if view["is_default"] else "") for view in views
    ]
    print_records(views, as_json, ("model", "context window (tokens)", ""), rows, "No models.")


@command(models, example="shoal models refresh")
def refresh(context: CommandContext, as_json: bool) -> int:
    """Ask every provider for its models, which also checks its key. Exits with 1 if a provider fails."""
    catalog = open_catalog(context.config(), os.environ, SystemClock())

    async def ask() -> Mapping[str, ModelListing]:
        try:
            return await catalog.refresh()
        finally:
            await catalog.close()

    results = asyncio.run(ask())
    views = [
        {"provider": name, "valid": row.valid, "models": len(row.models), "error": row.error}
        for name, row in results.items()
    ]
    rows = [(name, "failed" if row.error else "ok", len(row.models), row.error) for name, row in results.items()]
    empty = "No provider is configured. Shoal uses the built-in `demo`."
    print_records(views, as_json, ("provider", "", "models", "why"), rows, empty)
    return 1 if any(row.error for row in results.values()) else 0


@command(models, example="shoal models quirks")
def quirks(context: CommandContext, as_json: bool) -> None:
    """List how requests to each known model differ from the standard format, and the error that revealed each
    difference.
    """
    config = context.config()
    chosen, catalog = default_model(config), open_catalog(config, os.environ, SystemClock())
    learned, views = catalog.memory.all(), list[dict[str, str]]()
    for name in dict.fromkeys([*catalog.names(), chosen, *learned]):
        quirks = learned.get(name)
        known = _listed(msgspec.to_builtins(catalog.known_quirks(name)))
        if known:
            views.append({"name": name, "quirks": known, "from": "known service", "refusal": ""})
        if quirks is not None:
            source = f"learned on {quirks.at:%Y-%m-%d}"
            views.append({"name": name, "quirks": _listed(quirks.changes), "from": source, "refusal": quirks.refusal})
    rows = [(view["name"], view["quirks"], view["from"], view["refusal"][:120]) for view in views]
    empty = "Every known model accepts the standard request format."
    print_records(views, as_json, ("model", "quirks", "from", "refusal"), rows, empty)


def _listed(changes: Mapping[str, Change]) -> str:
    words_of_values = {
        name: ("yes" if value else "no") if isinstance(value, bool) else value for name, value in changes.items()
    }
    return " ".join(f"{name}={value or 'none'}" for name, value in sorted(words_of_values.items()))


@command(models, "forget", example="shoal models forget ollama/qwen3")
def forget_quirks(context: CommandContext, name: str) -> None:
    """Forget the quirks of the model NAME (PROVIDER/MODEL). Shoal learns them again if they still apply."""
    if not open_catalog(context.config(), os.environ, SystemClock()).memory.forget(name):
        raise NotFound(f"No quirks are known for {name!r}. Run `shoal models quirks` to list all known quirks.")
    echo(f"Shoal forgot the quirks of {name}. The next request uses the standard format.")


# ---- skills ----


SCOPE = click.option(
    "--scope",
    type=click.Choice(["global", "platform", "channel", "agent"]),
    default="global",
    show_default=True,
    help="Scope of the skill.",
)
OF_AGENT = agent_option("Agent that the skill belongs to, for --scope agent.", "main")
AS_AGENT = agent_option("List the skills available to this agent.", "main")
AS_IN_THREAD = click.option("--thread", default="", help="List the skills available in this thread.")
IN_THREAD = click.option(
    "--thread", default="", help="A thread on that platform or in that channel, for --scope platform or channel."
)


skills = click.Group(
    "skills", help="Skills: instructions that agents read when a task needs them.", epilog="Example: shoal skills list"
)


@command(skills, "list", example="shoal skills list")
@AS_AGENT
@AS_IN_THREAD
def list_skills(context: CommandContext, agent: str, thread: str, as_json: bool) -> None:
    """List the skills. If several have the same name, the narrowest scope wins."""
    skills = get(context, "/api/skills", SkillsView, agent=agent, thread=thread).skills
    rows = [(skill.name, skill.scope, skill.description) for skill in skills]
    empty = f"No skills. Install a skill with `shoal skills install`, or add one to {context.home.data}/skills/."
    print_records(skills, as_json, ("name", "scope", "description"), rows, empty)


@command(skills, example="shoal skills check")
@AS_AGENT
@AS_IN_THREAD
def check(context: CommandContext, agent: str, thread: str, as_json: bool) -> int:
    """Report problems in skills. Exits with 1 if it finds any. The JSON output is a list of {"path", "problem"}."""
    view = get(context, "/api/skills", SkillsView, agent=agent, thread=thread)
    if as_json:
        print_json(view.problems)
        return 1 if view.problems else 0
    for problem in view.problems:
        echo(f"fail: {problem.problem} ({problem.path})")
    for skill in view.shadowed:
        print(
            f"warn: {skill.name} in scope {skill.scope} is overridden by a skill with a narrower scope. ({skill.path})"
        )
    print(f"Valid skills: {len(view.skills)}.")
    return 1 if view.problems else 0


@command(skills, example="shoal skills install ./release-notes")
@SCOPE
@OF_AGENT
@IN_THREAD
def install(context: CommandContext, source: str, scope: str, agent: str, thread: str) -> None:
    """Install the skills in SOURCE: a folder, a zip archive, a SKILL.md, or the https URL of an archive or a SKILL.md.

    Agents follow skills, so install only skills that you trust. Existing skills are not replaced.
    """
    where, content = {"scope": scope, "agent": agent, "thread": thread}, b""
    if "://" in source:
        where["url"] = source
    else:
        try:
            content = _archive_of(Path(source).resolve())
        except OSError as error:
            raise click.UsageError(f"Shoal cannot read {source}: {error.strerror}.") from error
    with as_usage():
        view = call_api(context, "POST", f"/api/skills?{urlencode(where)}", content, into=SkillsView)
    print(f"Installed {', '.join(view.installed)}. This takes effect on the next turn.")


def _archive_of(path: Path) -> bytes:
    if not path.is_dir():
        return path.read_bytes()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(place / name for place, _, names in walk(path) for name in names):
            name = file.relative_to(path.parent)
            if any(part.startswith(".") for part in file.relative_to(path).parts):
                continue
            if file.is_symlink():
                raise click.UsageError(f"{name} is a link. Replace it with the file itself.")
            if file.is_file():
                archive.write(file, name)
    return made.getvalue()


@command(skills, example="shoal skills remove release-notes")
@SCOPE
@OF_AGENT
@IN_THREAD
def remove(context: CommandContext, name: str, scope: str, agent: str, thread: str) -> None:
    """Delete the SKILL.md of skill NAME. Other files in its folder are kept."""
    where = urlencode({"scope": scope, "agent": agent, "thread": thread})
    with as_usage():
        call_api(context, "DELETE", f"/api/skills/{path_part(name)}?{where}")
    print(f"Removed {name}. This takes effect on the next turn.")
