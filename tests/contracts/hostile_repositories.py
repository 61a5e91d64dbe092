"""Hostile repositories that run a program when git reads them, and git commands that only read.

The settings are literal text because their exact spelling is part of the attack.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuzz.ground import TRAP, git, repository

RUN = f"sh -c '{TRAP}'"
_ATTRIBUTES = "*.t diff=t filter=t merge=t\n"
_HOOKS = """
applypatch-msg commit-msg post-checkout post-commit post-index-change post-merge post-rewrite pre-auto-gc pre-commit
pre-merge-commit pre-push pre-rebase prepare-commit-msg reference-transaction
""".split()  # noqa: SIM905

SETTINGS: dict[str, str] = {
    "fsmonitor": f"[core]\nfsmonitor = {RUN}\n",
    "fsmonitor in one line": f"[core] fsmonitor = {RUN}\n",
    "fsmonitor in capitals": f"[CORE]\nFSMonitor = {RUN}\n",
    "fsmonitor in two lines": "[core]\nfsmonitor = sh -c \\\n'" + TRAP + "'\n",
    "fsmonitor behind a comment": f"[core] ; x\n# y\n\tfsmonitor={RUN}\n",
    "fsmonitor behind a mark of byte order": f"\ufeff[core]\nfsmonitor = {RUN}\n",
    "fsmonitor with DOS lines": f"[core]\r\nfsmonitor = {RUN}\r\n",
    "fsmonitor behind a known key's second line": f"[user]\nname = a\\\n\n[core]\nfsmonitor = {RUN}\n",
    "fsmonitor in quotes": f"[core]\nfsmonitor = \"sh -c '{TRAP}'\"\n",
    "external": f"[diff]\nexternal = {RUN}\n",
    "command of a driver": f'[diff "t"]\ncommand = {RUN}\n',
    "textconv": f'[diff "t"]\ntextconv = {RUN}\n',
    "textconv of an old section": f"[diff.t]\ntextconv = {RUN}\n",
    "textconv kept": f'[diff "t"]\ntextconv = {RUN}\ncachetextconv = true\n',
    "textconv of a name with quotes": f'[diff "t\\""]\ntextconv = {RUN}\n[diff "t"]\ntextconv = {RUN}\n',
    "clean": f'[filter "t"]\nclean = {RUN}\nrequired = true\n',
    "smudge": f'[filter "t"]\nsmudge = {RUN}\n',
    "process": f'[filter "t"]\nprocess = {RUN}\n',
    "merge driver": f'[merge "t"]\ndriver = {RUN}\n[merge]\ndefault = t\n',
    "pager": f"[core]\npager = {RUN}\n[pager]\nlog = {RUN}\nstatus = {RUN}\ndiff = {RUN}\nshow = {RUN}\n",
    "alias": f'[alias]\nst = "!{RUN}"\nstatus = "!{RUN}"\nl = log --ext-diff\n[diff]\nexternal = {RUN}\n',
    "signatures": "[log]\nshowSignature = true\n[gpg]\nprogram = /workspace/p\n",
    "signatures by ssh": '[log]\nshowSignature = true\n[gpg]\nformat = ssh\n[gpg "ssh"]\nprogram = /workspace/p\n',
    "signatures in a format": "[format]\npretty = %G? %GK\n[gpg]\nprogram = /workspace/p\n",
    "signatures in a named format": "[pretty]\nx = %GG\n[format]\npretty = x\n[gpg]\nprogram = /workspace/p\n",
    "signed commits": "[commit]\ngpgSign = true\n[user]\nsigningKey = x\n[gpg]\nprogram = /workspace/p\n",
    "hooks elsewhere": "[core]\nhooksPath = /workspace/hooks\n",
    "hooks elsewhere by a relative path": "[core]\nhooksPath = ../../hooks\n",
    "include": "[include]\npath = /workspace/hostile.config\n",
    "include of a folder": '[includeIf "gitdir:/workspace/"]\npath = /workspace/hostile.config\n',
    "include of a branch": '[includeIf "onbranch:main"]\npath = ../../../hostile.config\n',
    "include of a remote": '[remote "o"]\nurl = x\n[includeIf "hasconfig:remote.*.url:x"]\n'
    "path = /workspace/hostile.config\n",
    "editor": f"[core]\neditor = {RUN}\n[sequence]\neditor = {RUN}\n",
    "helpers": f'[core]\naskPass = {RUN}\nsshCommand = {RUN}\ngitProxy = {RUN}\n[credential]\nhelper = "!{RUN}"\n',
    "tools": f'[diff]\ntool = t\n[difftool "t"]\ncmd = {RUN}\n[merge]\ntool = t\n[mergetool "t"]\ncmd = {RUN}\n',
    "filter of what is shown": f"[interactive]\ndiffFilter = {RUN}\n[add.interactive]\nuseBuiltin = false\n",
    "trailers": f'[trailer "x"]\ncommand = {RUN}\nkey = x\nifmissing = add\n',
    "alternates": f"[core]\nalternateRefsCommand = {RUN}\n",
    "packing": f"[uploadpack]\npackObjectsHook = {RUN}\n",
    "extension": f'[url "ext::{RUN} "]\ninsteadOf = x\n[protocol "ext"]\nallow = always\n[remote "o"]\nurl = x\n',
    "helper of a remote": '[remote "o"]\nurl = x\nvcs = ../../workspace/p\n',
    "manual": f'[man]\nviewer = t\n[man "t"]\ncmd = {RUN}\n[browser "t"]\ncmd = {RUN}\n[help]\n'
    "format = web\nbrowser = t\n",
    "attributes elsewhere": f'[core]\nattributesFile = /workspace/attributes\n[diff "u"]\ntextconv = {RUN}\n',
    "collecting": "[gc]\nauto = 1\n[maintenance]\nauto = true\n[core]\nhooksPath = /workspace/hooks\n",
    "order from elsewhere": "[diff]\norderFile = /workspace/.env\n[mailmap]\nfile = /workspace/.env\n",
    "revisions from elsewhere": "[blame]\nignoreRevsFile = /workspace/.env\n",
    "another work tree": "[core]\nworktree = /workspace\nbare = false\n",
}
"""Text appended to the `.git/config` that git writes."""


def _hooks(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _HOOKS:
        (folder / name).write_text(f"#!/bin/sh\n{TRAP}\n")
        (folder / name).chmod(0o755)


def _elsewhere(folder: Path, name: str) -> Path:
    hostile = folder.parent / name
    repository(hostile, {"f.t": "one\n", ".gitattributes": _ATTRIBUTES})
    with (hostile / ".git" / "config").open("a") as file:
        file.write(SETTINGS["fsmonitor"] + SETTINGS["textconv"] + SETTINGS["clean"])
    return hostile


def _own_hooks(folder: Path) -> None:
    _hooks(folder / ".git" / "hooks")


def _linked_hooks(folder: Path) -> None:
    (folder / ".git" / "hooks").symlink_to("/workspace/hooks")


def _nearly_linked_hooks(folder: Path) -> None:
    (folder / ".git" / "hooks").symlink_to("../../../hooks")


def _linked_config(folder: Path) -> None:
    (folder / ".git" / "config").unlink()
    (folder / ".git" / "config").symlink_to("/workspace/hostile.config")


def _linked_directory(folder: Path) -> None:
    hostile = _elsewhere(folder, "linked")
    os.rename(folder / ".git", folder / "old")
    (folder / ".git").symlink_to(f"/workspace/r/{hostile.name}/.git")


def _nearly_linked_directory(folder: Path) -> None:
    hostile = _elsewhere(folder, "linked nearly")
    os.rename(folder / ".git", folder / "old")
    (folder / ".git").symlink_to(f"../{hostile.name}/.git")


def _file(folder: Path) -> None:
    hostile = _elsewhere(folder, "by file")
    os.rename(folder / ".git", folder / "old")
    (folder / ".git").write_text(f"gitdir: /workspace/r/{hostile.name}/.git\n")


def _file_with_return(folder: Path) -> None:
    hostile = _elsewhere(folder, "returned")
    os.rename(folder / ".git", hostile / ".git\r")
    (folder / ".git").write_text(f"gitdir: /workspace/r/{hostile.name}/.git\r\n")


def _file_of_bytes(folder: Path) -> None:
    hostile = _elsewhere(folder, "bytes")
    os.rename(folder / ".git", hostile / "\ufffd")
    os.rename(bytes(hostile / ".git"), bytes(hostile) + b"/\xff")
    (folder / ".git").write_bytes(f"gitdir: /workspace/r/{hostile.name}/".encode() + b"\xff\n")


def _relative_file(folder: Path) -> None:
    hostile = _elsewhere(folder, "by a relative file")
    os.rename(folder / ".git", folder / "old")
    (folder / ".git").write_text(f"gitdir: ../{hostile.name}/.git")


def _shared_directory(folder: Path) -> None:
    hostile = _elsewhere(folder, "common")
    (folder / ".git" / "commondir").write_text(f"/workspace/r/{hostile.name}/.git\n")


def _shared_directory_with_return(folder: Path) -> None:
    hostile = _elsewhere(folder, "common returned")
    repository(hostile / "x", {"f.t": "one\n"})
    os.rename(hostile / "x" / ".git", hostile / ".git\r")
    (folder / ".git" / "commondir").write_text(f"/workspace/r/{hostile.name}/.git\r\n")


def _own_worktree(folder: Path) -> None:
    git(folder, "config", "extensions.worktreeConfig", "true")
    (folder / ".git" / "config.worktree").write_text(SETTINGS["fsmonitor"] + SETTINGS["textconv"])


def _worktree(folder: Path) -> None:
    hostile = folder.parent / "with a tree"
    repository(hostile, {"f.t": "one\n", ".gitattributes": _ATTRIBUTES})
    git(hostile, "worktree", "add", "-q", "-b", "t", "../with a tree 2")
    with (hostile / ".git" / "config").open("a") as file:
        file.write(SETTINGS["fsmonitor"] + SETTINGS["textconv"])
    for name in (".git", "f.t", ".gitattributes"):
        os.rename(folder / name, folder / f"old {name}")
    text = (folder.parent / "with a tree 2" / ".git").read_text()
    (folder / ".git").write_text(text.replace(str(folder.parent.parent), "/workspace"))
    (folder / "f.t").write_text("one\nchanged again\n")


def _bare(folder: Path) -> None:
    os.rename(folder / ".git", folder.parent / "moved")
    for path in (folder.parent / "moved").iterdir():
        os.rename(path, folder / path.name)
    text = (folder / "config").read_text().replace("[core]", f"[core]\n\tworktree = /workspace/r/{folder.name}")
    (folder / "config").write_text(text + SETTINGS["fsmonitor"] + SETTINGS["textconv"])


def _submodule(folder: Path) -> None:
    inner = folder / "inner"
    repository(inner, {"g.t": "one\n", ".gitattributes": _ATTRIBUTES})
    git(folder, "add", "inner")
    git(folder, "commit", "-q", "-m", "three")
    with (inner / ".git" / "config").open("a") as file:
        file.write(SETTINGS["fsmonitor"] + SETTINGS["textconv"] + SETTINGS["clean"])


def _linked_index(folder: Path) -> None:
    _submodule(folder)
    os.rename(folder / ".git" / "index", folder / "an index")
    (folder / ".git" / "index").symlink_to(f"/workspace/r/{folder.name}/an index")


def _split_index(folder: Path) -> None:
    _submodule(folder)
    git(folder, "-c", "core.fsmonitor=", "update-index", "--split-index")


def _update_of_submodule(folder: Path) -> None:
    _submodule(folder)
    (folder / ".gitmodules").write_text(f'[submodule "inner"]\npath = inner\nurl = ./inner\nupdate = !{RUN}\n')
    git(folder, "config", "submodule.inner.update", f"!{RUN}")
    git(folder, "config", "submodule.inner.url", "./inner")


def _lazy(folder: Path) -> None:
    """Make a partial clone: remove objects and name a remote that can provide them."""
    git(folder, "config", "core.repositoryformatversion", "1")
    git(folder, "config", "extensions.partialClone", "o")
    for key, value in (("url", "/workspace/r/lazy"), ("promisor", "true"), ("uploadpack", RUN)):
        git(folder, "config", f"remote.o.{key}", value)
    _lose(folder)


def _lazy_of_the_first_format(folder: Path) -> None:
    git(folder, "config", "extensions.partialClone", "o")
    for key, value in (("url", "ext::/workspace/p"), ("promisor", "true")):
        git(folder, "config", f"remote.o.{key}", value)
    git(folder, "config", "protocol.ext.allow", "always")
    _lose(folder)


def _lose(folder: Path) -> None:
    objects = git(folder, "rev-list", "--objects", "--no-object-names", "--filter=blob:none", "--all")
    packs = folder / ".git" / "objects" / "pack"
    old = list(packs.iterdir())
    name = git(folder, "pack-objects", "-q", str(packs / "pack"), text=objects).strip()
    (packs / f"pack-{name}.promisor").touch()
    for path in old:
        if name not in path.name:
            path.unlink()


def _signed(folder: Path) -> None:
    """Sign the last commit, so git runs a verification program when asked to check signatures."""
    header, body = git(folder, "cat-file", "commit", "HEAD").split("\n\n", 1)
    signature = "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n"
    commit = git(folder, "hash-object", "-t", "commit", "-w", "--stdin", text=header + signature + body)
    git(folder, "update-ref", "refs/heads/main", commit.strip())


CHANGES: Mapping[str, Callable[[Path], None]] = {
    "hooks": _own_hooks,
    "hooks by a link": _linked_hooks,
    "hooks by a relative link": _nearly_linked_hooks,
    "configuration by a link": _linked_config,
    "directory by a link": _linked_directory,
    "directory by a relative link": _nearly_linked_directory,
    "directory by a file": _file,
    "directory by a file with a return": _file_with_return,
    "directory by a file of other bytes": _file_of_bytes,
    "directory by a relative file": _relative_file,
    "common directory": _shared_directory,
    "common directory with a return": _shared_directory_with_return,
    "configuration of a work tree": _own_worktree,
    "work tree of another": _worktree,
    "bare": _bare,
    "submodule": _submodule,
    "index by a link": _linked_index,
    "index in two files": _split_index,
    "update of a submodule": _update_of_submodule,
    "lazy": _lazy,
    "lazy of the first format": _lazy_of_the_first_format,
}

HOMES: dict[str, dict[str, str]] = {
    "user's": {".gitconfig": SETTINGS["fsmonitor"] + SETTINGS["textconv"] + SETTINGS["clean"]},
    "user's in a folder": {".config/git/config": SETTINGS["fsmonitor"] + SETTINGS["external"]},
    "user's hooks": {".gitconfig": SETTINGS["hooks elsewhere"]},
    "user's include": {".gitconfig": "[include]\npath = hostile.config\n"},
    "user's alias": {".gitconfig": SETTINGS["alias"]},
    "user's by a link": {".gitconfig": "-> /workspace/hostile.config"},
    "user's folder by a link": {".config": "-> /workspace/config"},
    "user's folder by a relative link": {".config": "-> config"},
    "user's attributes": {".config/git/attributes": "* diff=u\n", ".gitconfig": f'[diff "u"]\ntextconv = {RUN}\n'},
}
"""Files of the home directory, which is the workspace, or their link targets. The repository next to them is
harmless.
"""

LOOKS = """
status;status -s;status --porcelain;diff;diff --stat;diff HEAD~1;diff --cached;diff --no-index f.t .gitattributes;log
log -p;log --stat -1;log --oneline;log -S one;log -L1,1:f.t;log --follow -p f.t;log -g;show;show --stat;show HEAD:f.t
grep one;grep one HEAD;blame f.t;ls-files;ls-files -m;rev-parse HEAD;rev-parse --show-prefix;branch;branch -a;branch -v
describe --always --dirty;shortlog HEAD;cat-file -p HEAD;cat-file -p HEAD:f.t;ls-tree HEAD;rev-list HEAD;for-each-ref
diff-tree -p HEAD;diff-index -p HEAD;diff-files -p;whatchanged -p;reflog;name-rev HEAD;merge-base HEAD HEAD~1;show-ref
check-ignore f.t;check-attr -a f.t;count-objects;fsck;add f.t;add -A;commit -qam x;branch x;hash-object f.t;config -l
remote -v;worktree list;submodule status;stash list;stash show -p;notes list;range-diff HEAD~1 HEAD HEAD;st;cherry
diff --submodule=diff;log --format=%GK;log --show-signature;log -p --ext-diff;tag x;stash;commit -qm x f.t
checkout -q -b y
""".replace("\n", ";").strip(";").split(";")  # fmt: skip


SPRINGS_NOT_HERE = frozenset({
    "merge driver", "pager", "signatures by ssh", "editor", "helpers", "tools", "filter of what is shown", "trailers",
    "alternates", "packing", "extension", "helper of a remote", "manual",
})  # fmt: skip
"""Attacks that no command in `LOOKS` triggers with the git versions tested, with and without a terminal."""
HOSTILE = (*SETTINGS, *CHANGES, *HOMES)
PLACE = "r/it"


def make_hostile(folder: Path, name: str) -> None:
    """Create the hostile repository `name`, or a harmless repository with the hostile home directory `name`."""
    place = folder / PLACE
    place.parent.mkdir()
    _shared(folder)
    unusual = "* diff=u\n" if "attributes" in name else ""
    repository(place, {"f.t": "one\n", ".gitattributes": _ATTRIBUTES + unusual})
    if "sign" in name:
        _signed(place)
    if name in CHANGES:
        CHANGES[name](place)
    for file, text in HOMES.get(name, {}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            (folder / file).symlink_to(text.removeprefix("-> "))
        else:
            (folder / file).write_text(text)
    config = place / ".git" / "config"
    if name in SETTINGS:
        text = config.read_text()
        config.write_text(SETTINGS[name] + text if "byte order" in name else text + SETTINGS[name])


def _shared(folder: Path) -> None:
    hostile = SETTINGS["fsmonitor"] + SETTINGS["textconv"] + SETTINGS["external"]
    (folder / "hostile.config").write_text(hostile)
    (folder / "config" / "git").mkdir(parents=True)
    (folder / "config" / "git" / "config").write_text(hostile)
    (folder / "attributes").write_text("* diff=u\n")
    (folder / ".env").write_text("TOKEN=one\n")
    (folder / "p").write_text(f"#!/bin/sh\n{TRAP}\n")
    (folder / "p").chmod(0o755)
    _hooks(folder / "hooks")
