"""The programs that are known, read from `programs.txt`, which says what stands there and why."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import msgspec

from shoal.permissions.options import Kind, Program, Style

_ENTRY = re.compile(r"^(?:@(?P<list>\w+)|\[(?P<paths>[^\]]+)\]) *(?P<words>.*(?:\n[ ]+.*)*)", re.MULTILINE)


def _programs(text: str) -> Mapping[str, Program]:
    """The table by name. Programs of one entry are one object, so what is said of one's subcommands holds for all."""
    lists: dict[str, list[str]] = {}
    top = Program()
    entries: list[tuple[list[str], Program]] = []
    for entry in _ENTRY.finditer(text):
        words: list[str] = []
        for word in entry["words"].split():
            words += lists[word[1:]] if word.startswith("@") else [word]
        if entry["list"]:
            lists[entry["list"]] = words
            continue
        first, *others = " ".join(entry["paths"].split()).split(" | ")
        texts: dict[str, list[str]] = {"operands": [], "options": [], "startup": []}
        said: dict[str, object] = {"kind": _above(top, first).kind}
        for word in words:
            if word.startswith("-"):
                texts["options"].append(word)
            elif word.startswith("~"):
                texts["startup"].append(word)
            elif word.startswith("check="):
                said["check"] = word.removeprefix("check=")
            elif word in ("free", "here", "rest"):
                said[word] = True
            elif word in get_args(Kind):
                said["kind"] = word
            elif word in get_args(Style):
                said["style"] = word
            else:
                texts["operands"].append(word)
        program = msgspec.convert(said | {name: " ".join(text) for name, text in texts.items()}, Program)
        _above(top, first).subs.update(dict.fromkeys(first.split(" / ")[-1].split(), program))
        entries.append((others, program))
    for others, program in entries:  # they may stand before what is above them
        for path in others:
            _above(top, path).subs.update(dict.fromkeys(path.split(" / ")[-1].split(), program))
    return top.subs


def _above(program: Program, path: str) -> Program:
    """The program of which a path names subcommands."""
    for names in path.split(" / ")[:-1]:
        program = program.subs[names.split()[0]]
    return program


PROGRAMS = _programs(Path(__file__).with_name("programs.txt").read_text("utf-8"))
