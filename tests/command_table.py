"""Writes the command tables of docs/cli.md from the command definitions.

    python -m tests.command_table     write the page

`tests/tidy/test_command_table.py` compares the page with the code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from shoal.surfaces.cli import main

PAGE = Path(__file__).parents[1] / "docs/cli.md"
BEGIN, END = "<!-- from the commands: python -m tests.command_table -->\n", "<!-- end of the commands -->\n"


def commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None and not inner.hidden:
                yield from commands(inner, (*words, name))


def usage(words: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command)
    parts = ["shoal", *words]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            parts.append(parameter.make_metavar(context))
        elif isinstance(parameter, click.Option) and parameter.name != "as_json":
            name = max(parameter.opts, key=len)
            text = name if parameter.is_flag else f"{name} {value(parameter, context)}"
            parts.append(text if parameter.required else f"[{text}]")
    return " ".join(parts).replace("|", "\\|")


def value(option: click.Option, context: click.Context) -> str:
    if option.metavar or isinstance(option.type, click.Choice):
        return option.make_metavar(context).strip("[]")
    return "N" if option.type.name.startswith("integer") else max(option.opts, key=len).strip("-").upper()


def table(entries: dict[str, main.CommandEntry]) -> str:
    lines = ["| command | what it does |", "|---|---|"]
    context = click.Context(main.shoal)
    for name in entries:
        command = main.shoal.get_command(context, name)
        assert command is not None
        for words, inner in commands(command, (name,)):
            form = usage(words, inner)
            if isinstance(inner, click.Group) and not inner.invoke_without_command:
                if " | " not in inner.subcommand_metavar:
                    continue
                form += " " + inner.subcommand_metavar.partition(" | ")[0]
            text = " ".join((inner.help or "").split()).replace("|", "\\|")
            lines.append(f"| `{form}` | {text} |")
    return "\n".join(lines)


def page(text: str) -> str:
    tables = "\n\n".join(f"### {job}\n\n{table(entries)}" for job, entries in main.JOBS.items())
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{tables}\n\n{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
