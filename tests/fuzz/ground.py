"""A workspace full of traps: file names that are options, scripts for sed and awk, and repositories that run programs.

Every trap runs `factor` or a file of the workspace. Random commands never name either.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

TRAP = "factor 7"

HOSTILE_NAMES = [
    f"-e1e {TRAP}", f"-e{TRAP}", f"--expression=1e {TRAP}", "-frun.sed", "-f", "--file=run.awk", "-i", "-i.sh", "-nf",
    f"--checkpoint-action=exec={TRAP}", "--checkpoint=1", f"--use-compress-program={TRAP}", f"-I{TRAP}", "-Ip",
    f"--to-command={TRAP}", f"--compress-program={TRAP}", "--files0-from=list0", "-o.envrc", "-oMakefile", "-exec",
    f"--diff-program={TRAP}", f"--pre={TRAP}", "--output=x.sh", f"-O{TRAP}", f"--open-files-in-pager={TRAP}",
    "--ext-diff", "--textconv", f"--upload-pack={TRAP}", f"--exec={TRAP}", "-delete", "-fprint", "-la", "--", "-", "-v",
    "-rf", f"--filter={TRAP}", "--in-place", "-C", "-S", f"a[$({TRAP})]", f"x[`{TRAP}`]", f"$({TRAP})", f"`{TRAP}`",
    f";{TRAP}", f"x\n{TRAP}", "a b", "*", "'", '"', "BEGIN{system(\"" + TRAP + "\")}", f"1e {TRAP}", "w x.sh", "}", ")",
    "=", "!", "[", "]", "-a", "-n", "-z", "-eq", "~", "#x", "PATH=.", f"BASH_ENV={TRAP}", "-w.env", "--stdin",
]  # fmt: skip

SCRIPTS = {
    "p": f"#!/bin/sh\n{TRAP}\n",
    "x.sh": f"#!/bin/bash\n{TRAP}\n",
    "ls": f"#!/bin/sh\n{TRAP}\n",
    "test": f"#!/bin/sh\n{TRAP}\n",
    "1/id": f"#!/bin/sh\n{TRAP}\n",
}
FILES = {
    "a.txt": "one 1\ntwo 2\nthree 3\n",
    "b.txt": "one 1\n2 two\n",
    "data.csv": "name,size\na,1\nb,2\n",
    "x.json": '{"a": [1, 2], "b": {"c": "one"}}\n',
    "notes.md": "# Notes\n\none\n",
    "build.py": "print(1)\n",
    "conftest.py": "import os\n",
    "Makefile": f"all:\n\t{TRAP}\n",
    "package.json": f'{{"scripts": {{"test": "{TRAP}"}}}}\n',
    ".envrc": f"{TRAP}\n",
    ".env": "TOKEN=of-the-owner\n",
    ".gitignore": ".env\n",
    ".bashrc": f"{TRAP}\n",
    "run.sed": f"1e {TRAP}\n",
    "run.awk": f'BEGIN {{ system("{TRAP}") }}\n',
    "list0": ".env\0a.txt\0",
    "names.txt": f"-e1e {TRAP}\na.txt\n-v\na[$({TRAP})]\n",
    "expression": f"a[$({TRAP})]\n",
    "ed.diff": f"1d\n!{TRAP}\n",
    "sub/c.txt": "one\n",
    "sub/d/e.md": "two\n",
    "sub/.env": "TOKEN=two\n",
    "src/main.py": "def main():\n    return 1\n",
    "src/lib.js": "module.exports = 1\n",
    "src/README": "read me\n",
}
ONLY: dict[str, list[str]] = {
    "sed": [f"-e1e {TRAP}", "a.txt"],
    "tar": ["--checkpoint=1", f"--checkpoint-action=exec={TRAP}", "a.txt"],
    "sort": ["--compress-program=..p", "-S1b", "a.txt"],
    "split": [f"--filter={TRAP}", "a.txt"],
    "xargs": [f"-e1e {TRAP}", "a.txt"],
    "find": ["-exec", "a.txt", ";", "p"],
    "awk": ["-frun.awk", "a.txt", "run.awk"],
    "git": [f"-O{TRAP}", "one"],
    "env": ["factor", "7"],
    "wc": ["--files0-from=list0", "list0"],
    "grep": ["-f.env", "a.txt"],
    "digest": ["-c", "sums"],
    "diff": ["--from-file=.env", "a.txt"],
    "strings": ["@options"],
    "jq": ["--rawfile", "a", "b"],
    "touch": ["-f.env"],
    "uniq": ["a.txt", "x.sh"],
    "xxd": ["a.txt", "x.sh"],
    "tee": ["a.txt", "x.sh"],
    "sortout": ["-o.envrc", "a.txt"],
    "code": ["a.txt", "conftest.py"],
}
"""Folders whose file names form one trap each, for a glob as the words of a program."""
LINKS = {"link": "a.txt", "door": "sub", "out": "/etc", "to-git": ".git", "to-env": ".env", "to-script": "x.sh"}

_RUN = f"sh -c '{TRAP}'"
REPOSITORIES: dict[str, dict[str, str]] = {
    "fsmonitor": {"core.fsmonitor": _RUN},
    "textconv": {"diff.t.textconv": _RUN},
    "external": {"diff.external": _RUN},
    "driver": {"diff.t.command": _RUN},
    "filter": {"filter.t.clean": _RUN, "filter.t.smudge": _RUN, "filter.t.process": _RUN},
    "pager": {"core.pager": _RUN, "pager.log": _RUN, "pager.status": _RUN, "pager.diff": _RUN},
    "alias": {"alias.st": f"!{_RUN}", "alias.l": "log --ext-diff"},
    "signature": {"gpg.program": "/workspace/p", "log.showSignature": "true"},
    "hooks": {"core.hooksPath": "/workspace/evil/hooks/there"},
    "include": {"include.path": "/workspace/evil/external/.git/config"},
    "lazy": {
        "extensions.partialClone": "o", "remote.o.url": "/workspace/bare.git", "remote.o.promisor": "true",
        "remote.o.uploadpack": _RUN,
    },
    "editor": {"core.editor": _RUN, "sequence.editor": _RUN, "core.askPass": _RUN, "credential.helper": f"!{_RUN}"},
}  # fmt: skip

_AUTHOR = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TEMPLATE_DIR": "",
}  # fmt: skip


def git(folder: Path, *arguments: str, text: str = "") -> str:
    environment = {"PATH": os.environ["PATH"], **_AUTHOR}
    argv = ["git", "-C", str(folder), *arguments]
    return subprocess.run(argv, env=environment, check=True, capture_output=True, text=True, input=text).stdout


def repository(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", ".")
    with (folder / ".git" / "config").open("a") as file:
        file.write("[user]\n\tname = a\n\temail = a@b\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A", ".")
    git(folder, "commit", "-q", "-m", "one")
    first = next(iter(files))
    (folder / first).write_text(files[first] + "changed\n")
    git(folder, "commit", "-q", "-a", "-m", "two")
    git(folder, "repack", "-q", "-a", "-d")
    git(folder, "prune-packed")
    (folder / first).write_text(files[first] + "changed again\n")


def make_ground(folder: Path) -> None:
    for name, text in (FILES | SCRIPTS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in SCRIPTS:
        (folder / name).chmod(0o755)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for packing, name in (("w", "a.tar"), ("w:gz", "a.tgz")):
        with tarfile.open(folder / name, packing) as archive:  # type: ignore[call-overload]
            for inner in ("a.txt", ".envrc", "x.sh"):
                archive.add(folder / inner, inner)
    (folder / "traps").mkdir()
    for name in HOSTILE_NAMES:
        (folder / "traps" / name).write_text("one 1\n")
        if name.startswith(("-e1e", "a[")):
            (folder / name).write_text("one 1\n")
    for name, files in ONLY.items():
        (folder / "only" / name).mkdir(parents=True)
        for file in (*files, ".env"):
            (folder / "only" / name / file).write_text(FILES.get(file, "one 1\n"))
    (folder / "only" / "digest" / "sums").write_text(f"{'0' * 32}  .env\n")
    (folder / "only" / "strings" / "@options").write_text("")
    (folder / "only" / "strings" / "options").write_text("-n 1 .env\n")
    repository(folder, {"kept.txt": "one\n"})
    _make_repositories(folder)


def _make_repositories(folder: Path) -> None:
    first, *others = REPOSITORIES
    repository(folder / "evil" / first, {"f.t": "one\n", ".gitattributes": "*.t diff=t filter=t merge=t\n"})
    for name in others:
        shutil.copytree(folder / "evil" / first, folder / "evil" / name)
    for name, settings in REPOSITORIES.items():
        for key, value in settings.items():
            git(folder / "evil" / name, "config", key, value)
    hooks = folder / "evil" / "hooks" / "there"
    hooks.mkdir()
    for name in ("pre-commit", "post-index-change", "post-checkout", "reference-transaction", "prepare-commit-msg"):
        (hooks / name).write_text(SCRIPTS["p"])
        (hooks / name).chmod(0o755)
    git(folder, "init", "-q", "--bare", "bare.git")
    git(folder / "bare.git", "config", "core.fsmonitor", _RUN)
    git(folder / "bare.git", "config", "core.worktree", "/workspace/sub")
    git(folder / "bare.git", "config", "core.bare", "false")
    (folder / "by-file").mkdir()
    (folder / "by-file" / ".git").write_text("gitdir: /workspace/evil/fsmonitor/.git\n")
