"""Writes the public interface as text: all names of `import shoal` and all classes that packages subclass or receive,
with types.

`python -m tests.tidy.public_api` writes public_api.txt. A difference in that file is a change of the public interface.
"""

import ast
from pathlib import Path

import shoal
from tests.tidy.source import ROOT

PAGE = Path(__file__).with_name("public_api.txt")
MODULES = {
    "src/shoal/kernel/commands.py": ("ChatCommand", "CommandRequest", "CommandSpec", "chat_command"),
    "src/shoal/kernel/hooks.py": ("HookRuling", "Hooks", "PlannedCall", "TurnSummary"),
    "src/shoal/kernel/ports.py": (
        "ChatAdapter", "InboxPort", "Invocation", "Provider", "Sandbox", "Tool", "ToolContext", "ToolOutput",
    ),
    "src/shoal/kernel/traits.py": ("Traits", "Treatment", "Treatments"),
    "src/shoal/tools/functions.py": ("Prepared", "canonical", "tool"),
    "src/shoal/platforms/account.py": ("ChatAccount",),
    "src/shoal/platforms/record.py": ("Platform", "SetupQuestion"),
    "src/shoal/kernel/settings_platforms.py": ("AccountSettings",),
    "src/shoal/app.py": ("open_app",),
    "src/shoal/assembly/overrides.py": ("Overrides",),
    "src/shoal/services.py": ("Services",),
}  # fmt: skip
"""Public names by the file that defines them."""
PRIVATE_TO_SUBCLASSES = "ChatAccount"
"""Class whose methods with one leading underscore are meant for subclasses in packages."""


def lines_of(node: ast.stmt, indent: str = "", *, shows_private: bool = False) -> list[str]:
    match node:
        case ast.ClassDef():
            heads = [*map(ast.unparse, node.bases), *(f"{key.arg}={ast.unparse(key.value)}" for key in node.keywords)]
            inner = [
                line for each in node.body for line in lines_of(each, f"{indent}    ", shows_private=shows_private)
            ]
            return [f"{indent}class {node.name}({', '.join(heads)}):", *inner]
        case ast.FunctionDef() | ast.AsyncFunctionDef() if shows_private or not node.name.startswith("_"):
            kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
            marks = [f"{indent}@{ast.unparse(mark)}" for mark in node.decorator_list]
            return [*marks, f"{indent}{kind} {node.name}({ast.unparse(node.args)}){returns}"]
        case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
            return [f"{indent}{ast.unparse(node)}"]
        case _:
            return []


def public_api() -> str:
    parts: list[str] = [f"shoal: {', '.join(sorted(shoal.__all__))}"]
    for file, names in MODULES.items():
        body = ast.parse((ROOT / file).read_text()).body
        for name in names:
            nodes = [each for each in body if getattr(each, "name", "") == name]
            assert nodes, f"{file} defines no {name}"
            parts.append(f"# {file}")
            for node in nodes:
                parts += lines_of(node, shows_private=name == PRIVATE_TO_SUBCLASSES)
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(public_api())
