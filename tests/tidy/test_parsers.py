"""Parsers of untrusted text are bounded: each is used only in known files, which catch all of its errors.

Very deeply nested documents raise RecursionError, and numbers with thousands of digits raise ValueError, instead of
the parser's own error.
"""

import ast

import pytest

from tests.tidy.source import GROUP, PACKAGE, nodes, package_files, tree

pytestmark = pytest.mark.xdist_group(GROUP)

READERS = {
    "agents/skill_files.py": {"zipfile", "zlib"},  # ARCHIVE_BYTES_MAX, UNPACKED_BYTES_MAX, FILES_MAX, DEPTH_MAX
    "features/backups/archive.py": {"gzip", "tarfile", "zlib"},  # the owner's own archives, read entry by entry
    "platforms/tokens.py": {"jwt"},  # tokens from a header, and keys of up to KEYS_BYTES_MAX
    "features/push/service.py": {"jwt"},  # only creates signatures
    "files/images.py": {"zlib"},  # only checksums
    "kernel/commands.py": {"zlib"},  # only a checksum
    "kernel/untrusted.py": {"tomllib"},  # TOML_CHARS_MAX, TOML_PARTS_MAX
    "net/http.py": {"zlib"},  # UNPACKED_BYTES_MAX at a time, BODY_BYTES_MAX in total
    "models/odd_json.py": {"json_repair"},  # REPAIRED_CHARS_MAX
    "surfaces/cli/reports.py": {"zipfile"},  # only writes
    "surfaces/cli/setup_checks.py": {"plistlib"},  # output of macOS itself
    "surfaces/export.py": {"latex2mathml", "xml"},  # FORMULA_CHARS_MAX
    "features/evals/cli.py": {"xml"},  # only writes
    "tools/attachments.py": {"PIL"},  # AREA_MAX according to the header, in a thread
    "tools/builtin/web.py": {"turbohtml"},  # FETCH_BYTES_MAX, in linear time at any depth
    # in a process with limited resources
    "tools/document_readers.py": {"email", "pypdf", "turbohtml", "xml", "zipfile"},
    "turn/tokens.py": {"gzip"},  # a file that the package itself contains
    "turn/front_matter.py": {"yaml"},  # EVENTS_MAX, DEPTH_MAX, no anchors
}
"""Modules that load parsers which can exhaust time or memory, with their bounds."""
HEAVY = {
    "PIL", "bz2", "defusedxml", "docx", "email", "gzip", "html.parser", "json_repair", "jwt", "latex2mathml", "lxml",
    "lzma", "marshal", "openpyxl", "pickle", "plistlib", "pypdf", "shelve", "tarfile", "tomllib", "turbohtml", "xml",
    "yaml", "zipfile", "zlib", "zstandard",
}  # fmt: skip
HARMLESS = {"email.utils", "email.message"}
DECODERS = {"msgspec.json.decode", "decode_toml", "json.loads", "ast.parse"}
WIDE = {"UNREADABLE", "BAD_TOML", "RecursionError", "Exception"}
HANDED_ON = {"kernel/events.py", "kernel/untrusted.py"}
"""Modules that catch one kind of error and raise the others on purpose."""


def test_heavy_parsers_have_known_bounds() -> None:
    parsers: dict[str, set[str]] = {}
    for path in package_files():
        loaded = {name for node in nodes(tree(path)) for name in _loaded(node)}
        if loaded and "testing" not in path.parts:
            parsers[path.relative_to(PACKAGE).as_posix()] = loaded
    assert parsers == READERS


def _loaded(node: ast.AST) -> set[str]:
    match node:
        case ast.Import(names=names):
            modules = [name.name for name in names]
        case ast.ImportFrom(module=str(module), level=0):
            modules = [module]
        case _:
            return set()
    return {
        heavy
        for module in modules
        if module not in HARMLESS
        for heavy in HEAVY
        if module == heavy or module.startswith(f"{heavy}.")
    }


def test_handlers_of_parser_errors_catch_all_of_them() -> None:
    narrow: list[str] = []
    for path in package_files():
        name = path.relative_to(PACKAGE).as_posix()
        for node in nodes(tree(path)):
            if not isinstance(node, ast.Try) or name in HANDED_ON or name.startswith("testing/"):
                continue
            inside = [child for statement in node.body for child in ast.walk(statement) if isinstance(child, ast.Call)]
            caught = {name for handler in node.handlers if handler.type for name in _names(handler.type)}
            expects = caught & {"DecodeError", "ValidationError", "MsgspecError", "TOMLDecodeError", "JSONDecodeError"}
            if expects and not caught & WIDE and any(ast.unparse(call.func) in DECODERS for call in inside):
                narrow.append(f"{name}:{node.lineno} catches {', '.join(sorted(caught))}")
    assert not narrow, "catch UNREADABLE or BAD_TOML of kernel/untrusted.py"


def _names(node: ast.expr) -> set[str]:
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name | ast.Attribute)]
    return {one.id if isinstance(one, ast.Name) else one.attr for one in names}
