"""git: its subcommands that are known, and whether a repository lets it run anything.

Left out of the table on purpose: what runs a program (`-O`, `--ext-diff`, `--textconv`, `--exec`, `--upload-pack`,
`--edit`, `-i`, `--show-signature`, `bisect run`, `submodule foreach`) or writes elsewhere (`--output`, `--git-dir`).
Any word that is not in it is an alias or a program.

What git runs beside itself comes from configuration (`diff.*.textconv`, `core.fsmonitor`, `gpg.program`, aliases …) and
from hooks. So a repository is inert only if it can be found, every key of every configuration that it uses is on a list
of keys that run nothing, and no hook is active. Anything unusual (an include, a bare repository, submodules, a split
index) makes it not inert. The configuration files and the folder of hooks are what an approval has to cover.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator

import msgspec

from shoal.permissions.options import Program as P  # noqa: N817

CONFIG_BYTES_MAX = 65_536
INDEX_BYTES_MAX = 67_108_864
FILES_KEPT_MAX = 256
FOLDERS_MAX = 1_000
SETTLED_NS = 2_000_000_000

INERT = re.compile(
    r"core\.(repositoryformatversion|filemode|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|safecrlf"
    r"|quotepath|abbrev|compression|longpaths|preloadindex|untrackedcache|checkstat|trustctime|sharedrepository)"
    r"|user\.(name|email|useconfigonly|signingkey)|author\.(name|email)|committer\.(name|email)"
    r"|remote\.[^\n]*\.(url|pushurl|fetch|push|tagopt|prune|mirror)|branch\.[^\n]*\.(remote|merge|rebase|description)"
    r"|color\.[a-z.]+|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote|followtags)|advice\.[a-z]+"
    r"|fetch\.(prune|prunetags)|merge\.(ff|conflictstyle)|rebase\.(autostash|autosquash)|commit\.verbose|tag\.sort"
    r"|status\.(short|branch|showuntrackedfiles|relativepaths)|log\.(date|decorate|follow|abbrevcommit)"
    r"|diff\.(renames|renamelimit|algorithm|mnemonicprefix|noprefix|context|interhunkcontext|colormoved|statgraphwidth)"
    r"|blame\.(date|showemail|coloring)|column\.[a-z]+|gc\.(auto|reflogexpire)|index\.version"
    r"|submodule\.[^\n]*\.(url|active)|http\.(postbuffer|sslverify)|safe\.directory|i18n\.[a-z]+|grep\.[a-z]+"
)
"""The keys, in lower case, whose values make git run nothing and write nothing elsewhere."""
_VALUES = {"core.repositoryformatversion": re.compile(r"0")}
_HEADER = re.compile(r'\[([A-Za-z0-9-]+)(?: "((?:[^"\\\n]|\\["\\])*)")?\]\s*(?:[#;].*)?')
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(?:\s*=\s*([^\\\r\x00]*))?")
_HEAD = re.compile(r"ref: refs/[A-Za-z0-9._/@+-]+\n|[0-9a-f]{40}\n")
_SAMPLE = ".sample"
_GITLINK = b"\x00\x00\xe0\x00"  # the mode of an entry of the index that is another repository
_BARE = ("HEAD", "objects", "refs")


class Repository(msgspec.Struct, frozen=True):
    """What was found, as host paths: the files that decide what git runs, whether they let it run nothing, the top of
    the work tree, and the folders that git reads."""

    files: tuple[str, ...] = ()
    inert: bool = False
    top: str = ""
    read: tuple[str, ...] = ()


def repository_at(
    folder: str, home: str | None, outside: Callable[[str], bool], to_host: Callable[[str], str | None]
) -> Repository:
    """The repository that git uses in a folder; asks the file system.

    `home` has the user's configuration, `outside` says that a folder is beyond what commands can see, and `to_host`
    turns an absolute path that git reads in a file into one of the host (None: there is no telling).
    """
    top, git_dir = _find(folder, outside, to_host)
    if git_dir is None:
        return Repository()
    common = _shared_dir(git_dir, to_host)
    configs = [f"{path}/config" for path in dict.fromkeys((git_dir, common or git_dir))]
    above: tuple[str, ...] = ()
    if home is not None:
        configs += [f"{home}/.gitconfig", f"{home}/.config/git/config"]
        above = (f"{home}/.config", f"{home}/.config/git")
    hooks = f"{common or git_dir}/hooks"
    read = tuple(path for path in (top, git_dir, common) if path)
    inert = common is not None and all(_config_is_inert(path) for path in configs)
    inert = inert and not any(os.path.islink(path) for path in (*above, *configs, hooks, f"{git_dir}/index"))
    inert = inert and not os.path.lexists(f"{common}/objects/info/alternates")
    return Repository((*configs, hooks), inert and not _has_hooks(hooks) and not _has_more(git_dir), top or "", read)


def holds_repository(top: str) -> bool:
    """Whether another repository lies in a work tree, or there are too many folders to tell."""
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        if number > FOLDERS_MAX or (folder != top and (".git" in folders or ".git" in files)):
            return True
        folders[:] = [name for name in folders if name != ".git"]
    return False


def _find(
    folder: str, outside: Callable[[str], bool], to_host: Callable[[str], str | None]
) -> tuple[str | None, str | None]:
    """The top of the work tree that holds a folder, and the repository's directory; None for that where there is none,
    or one that git may pass over."""
    place: str = folder
    while not outside(place) and not all(os.path.lexists(f"{place}/{name}") for name in _BARE):
        dot = f"{place}/.git"
        if os.path.isdir(dot) or os.path.islink(dot):
            return place, dot if _is_git_dir(dot, _shared_dir(dot, to_host)) else None
        if os.path.lexists(dot):
            text = _text(dot).rstrip("\n")
            found = to_host(os.path.join(place, text.removeprefix("gitdir: "))) if text.startswith("gitdir: ") else None
            return place, found if found is not None and _is_git_dir(found, _shared_dir(found, to_host)) else None
        if place in ("", "/"):
            break
        place = os.path.dirname(place)
    return None, None


def _is_git_dir(git_dir: str, common: str | None) -> bool:
    """Whether git takes the directory for a repository beyond doubt."""
    return (
        common is not None
        and not any(os.path.islink(path) for path in (git_dir, common, f"{git_dir}/HEAD"))
        and os.path.isdir(f"{common}/objects")
        and os.path.isdir(f"{common}/refs")
        and _HEAD.fullmatch(_text(f"{git_dir}/HEAD")) is not None
    )


def _shared_dir(git_dir: str, to_host: Callable[[str], str | None]) -> str | None:
    if not os.path.lexists(f"{git_dir}/commondir"):
        return git_dir
    text = _text(f"{git_dir}/commondir").rstrip("\n")
    return to_host(os.path.join(git_dir, text)) if text else None


def _config_is_inert(path: str) -> bool:
    """Whether every line of a configuration file is of a known form, with a key that is on the list."""
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    if not stat.S_ISREG(info.st_mode):
        return False
    stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return _kept((path, stamp), lambda: all(_keys(_text(path))) and (info.st_size == 0 or bool(_text(path))))


_judged: dict[tuple[str, tuple[int, ...]], bool] = {}


def _kept(key: tuple[str, tuple[int, ...]], judge: Callable[[], bool]) -> bool:
    """What was found about a file, kept while it is the same; a new one could change within a tick of the clock."""
    found = _judged.get(key)
    if found is None:
        found = judge()
        if time.time_ns() - key[1][-1] < SETTLED_NS:
            return found
        while len(_judged) >= FILES_KEPT_MAX:
            _judged.pop(next(iter(_judged)))
        _judged[key] = found
    return found


def _keys(text: str) -> Iterator[bool]:
    """Whether each line is known to be inert."""
    section = ""
    for line in text.split("\n"):
        stripped = line.strip(" \t")
        if not stripped or stripped[0] in "#;":
            continue
        header, entry = _HEADER.fullmatch(stripped), _ENTRY.fullmatch(stripped)
        if header is not None:
            section = header[1].lower() + (f".{header[2].lower()}" if header[2] is not None else "")
        elif entry is not None and section:
            key, value = f"{section}.{entry[1].lower()}", (entry[2] or "").strip().lower()
            yield _is_inert(key, value)
        else:
            yield False


def _is_inert(key: str, value: str) -> bool:
    if key == "core.bare":
        return value == "false"
    wanted = _VALUES.get(key)
    return INERT.fullmatch(key) is not None and (wanted is None or wanted.fullmatch(value) is not None)


def _has_hooks(folder: str) -> bool:
    try:
        return any(not name.endswith(_SAMPLE) for name in os.listdir(folder))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _has_more(git_dir: str) -> bool:
    """Whether other repositories belong to it (their configuration counts as well), or its index is in pieces."""
    index = f"{git_dir}/index"
    try:
        if any(name.startswith("sharedindex") for name in os.listdir(git_dir)):
            return True
        info = os.stat(index)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    stamp = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return _kept((index, stamp), lambda: _index_has_links(index))


def _index_has_links(path: str) -> bool:
    """Whether the index may have an entry that is a repository."""
    try:
        with open(path, "rb") as file:
            content = file.read(INDEX_BYTES_MAX + 1)
    except OSError:
        return True
    return len(content) > INDEX_BYTES_MAX or _GITLINK in content


def _text(path: str) -> str:
    """The text of a small plain file; empty for anything else, a question mark where programs read it otherwise."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError:
        return ""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "?"
    return "?" if len(content) > CONFIG_BYTES_MAX or "\r" in text or "\0" in text else text


_DIFF = (
    " -puzwbRaDWs -U=? -S= -G= -M=? -C=? -B=? -l= --patch --no-patch --unified=? --raw --patch-with-stat --stat=?"
    " --numstat --shortstat --dirstat=? --summary --name-only --name-status --color=? --no-color --color-words=?"
    " --word-diff=? --word-diff-regex= --color-moved=? --no-renames --find-renames=? --find-copies=? --check"
    " --full-index --binary --abbrev=? --diff-filter= --pickaxe-regex --pickaxe-all --relative=? --text"
    " --ignore-space-at-eol --ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-cr-at-eol"
    " --function-context --exit-code --quiet --no-ext-diff --no-textconv --no-prefix --src-prefix= --dst-prefix="
    " --minimal --patience --histogram --diff-algorithm= --compact-summary --inter-hunk-context="
    " --ignore-submodules=? --indent-heuristic --cc -m --combined-all-paths --cumulative --stat-width= --stat-count="
)
_LOG = (
    _DIFF
    + " -n= -L= -# -gitEFPcq --max-count= --skip= --since= --after= --until= --before= --author= --committer= --grep="
    " --all --branches=? --tags=? --remotes=? --oneline --graph --decorate=? --no-decorate --decorate-refs="
    " --merges --no-merges --first-parent --reverse --date= --format=? --pretty=? --abbrev-commit"
    " --no-abbrev-commit --follow --topo-order --date-order --author-date-order --left-right --cherry"
    " --cherry-pick --cherry-mark --left-only --right-only --full-history --simplify-merges"
    " --simplify-by-decoration --ancestry-path=? --no-walk=? --walk-reflogs --invert-grep --regexp-ignore-case"
    " --extended-regexp --fixed-strings --perl-regexp --all-match --source --boundary --parents --children"
    " --glob= --exclude= --no-notes --notes=? --mailmap --use-mailmap --relative-date --log-size --min-parents=?"
    " --max-parents=? --dense --sparse --remove-empty --not --count --objects --show-pulls --encoding= --stdin=!"
    " --ignore-missing --diff-merges= --no-diff-merges --expand-tabs=? --no-expand-tabs --no-mailmap"
)
_FETCH = (
    " -aqvftpnk46 -j= --all --append --depth= --deepen= --unshallow --update-shallow --prune --prune-tags --force"
    " --tags --no-tags --quiet --verbose --progress --no-progress --dry-run --jobs= --ipv4 --ipv6 --shallow-since="
    " --no-recurse-submodules --multiple --porcelain --set-upstream"
)
_MERGE = (
    " --ff --no-ff --ff-only --squash --no-squash --no-edit --no-commit --commit --stat --no-stat --abort --quit"
    " --continue -nqv -m= -X= --strategy-option= --allow-unrelated-histories --autostash --no-verify --no-autostash"
    " --signoff --quiet --verbose --progress --no-progress"
)


def _reads(options: str, *, free: bool = False) -> P:
    return P("r*", options, check="git", free=free)


def _changes(options: str, operands: str = ":*") -> P:
    return P(operands, options, kind="outside", check="git")


_CHECKOUT = (
    "-qftlmd -b= -B= --quiet --force --detach --track=? --no-track --orphan= --ours --theirs --merge --conflict="
    " --progress --no-progress --guess --no-guess --ignore-other-worktrees --no-overlay --overlay"
    " --pathspec-from-file=!"
)

GIT = P(
    options="-C=d -c= -P --no-pager --no-optional-locks --literal-pathspecs --glob-pathspecs --icase-pathspecs"
        " --no-replace-objects --version --html-path --man-path --info-path",
    style="posix",
    subs={
        "status": _reads("-sbvz -u=? --short --branch --show-stash --porcelain=? --long --verbose --untracked-files=?"
            " --ignore-submodules=? --ignored=? --column=? --no-column --ahead-behind --no-ahead-behind --renames"
            " --no-renames --find-renames=? --null"),
        "diff": _reads("--cached --staged --merge-base --no-index" + _DIFF),
        "log": _reads(_LOG),
        "show": _reads(_LOG),
        "whatchanged": _reads(_LOG),
        "reflog": P(options="", check="git", subs={"show": _reads(_LOG), "exists": _reads("")}),
        "shortlog": _reads("-nsec -w=? --numbered --summary --email --committer --group= --since= --until="
            " --no-merges --all --author="),
        "rev-list": _reads(_LOG + " --disk-usage --max-age= --min-age= --header --timestamp --use-bitmap-index"),
        "diff-tree": _reads("-rtmcz --root --no-commit-id --pretty=? --format=?" + _DIFF),
        "diff-index": _reads("-m --cached --merge-base" + _DIFF),
        "diff-files": _reads("-0123cq --base --ours --theirs" + _DIFF),
        "range-diff": _reads("--creation-factor= --no-dual-color --left-only --right-only" + _DIFF),
        "grep": P("x r*", "-aiIwvhHEGFPnrlLzocpqWR -e= -f=r -A= -B= -C= -m= -# --cached --no-index --untracked"
            " --exclude-standard --no-exclude-standard --text --ignore-case --word-regexp --invert-match --full-name"
            " --extended-regexp --basic-regexp --perl-regexp --fixed-strings --line-number --column"
            " --files-with-matches --name-only --files-without-match --null --only-matching --count --color=?"
            " --no-color --break --heading --show-function --after-context= --before-context= --context="
            " --function-context --max-depth= --recursive --no-recursive --threads= --and --or --not --all-match"
            " --quiet --max-count=", check="git"),
        "blame": _reads("-bcfnsetwlpM -L= -C=? -S=r --incremental --porcelain --line-porcelain --show-name"
            " --show-number --show-email --date= --root --show-stats --since= --abbrev=? --minimal --reverse"
            " --first-parent --ignore-rev= --score-debug --color-lines --color-by-age"),
        "annotate": _reads("-L= -w --porcelain"),
        "ls-files": _reads("-cdmoiskuzvtf -x= -X=r --cached --deleted --modified --others --ignored --stage"
            " --unmerged --killed --directory --no-empty-directory --exclude= --exclude-from=r --exclude-standard"
            " --error-unmatch --full-name --abbrev=? --eol --deduplicate --format= --debug --sparse"
            " --exclude-per-directory="),
        "ls-tree": _reads("-drtlz --name-only --name-status --object-only --full-name --full-tree --abbrev=? --long"
            " --format="),
        "ls-remote": P(":*", "-hqt --heads --tags --refs --quiet --exit-code --get-url --sort= --symref",
        kind="outside",
                       check="git"),
        "cat-file": _reads("-tspe --batch-all-objects --batch-check=? --batch=? --buffer --unordered"),
        "rev-parse": _reads("-q --abbrev-ref=? --short=? --verify --quiet --show-toplevel --show-prefix --show-cdup"
            " --git-dir --absolute-git-dir --git-common-dir --is-inside-work-tree --is-inside-git-dir"
            " --is-bare-repository --is-shallow-repository --symbolic-full-name --symbolic --all --branches=?"
            " --tags=? --remotes=? --show-superproject-working-tree --sq --flags --revs-only --no-revs --git-path="
            " --show-object-format --local-env-vars --show-ref-format"),
        "merge-base": _reads("-a --all --octopus --independent --is-ancestor --fork-point"),
        "name-rev": _reads("--tags --refs= --exclude= --all --name-only --no-undefined --always"),
        "describe": _reads("--all --tags --contains --abbrev=? --candidates= --exact-match --debug --long --match="
            " --exclude= --always --first-parent --dirty=? --broken=?"),
        "show-ref": _reads("-dsqh --head --heads --tags --dereference --hash=? --verify --abbrev=? --quiet"),
        "show-branch": _reads("-arg --all --remotes --current --topo-order --sparse --list --no-name --sha1-name"),
        "for-each-ref": _reads("--count= --sort= --format= --points-at= --merged=? --no-merged=? --contains=?"
            " --no-contains=? --ignore-case --exclude= --color=?"),
        "count-objects": _reads("-vH --verbose --human-readable"),
        "check-ignore": _reads("-qvnz --quiet --verbose --non-matching --no-index"),
        "check-attr": _reads("-az --all --cached"),
        "cherry": _reads("-v --abbrev=?"),
        "verify-pack": _reads("-vs"),
        "fsck": _reads("--full --strict --unreachable --dangling --no-dangling --no-reflogs --verbose --progress"
            " --no-progress --connectivity-only"),
        "hash-object": _reads("-t= --stdin --no-filters --path="),
        "var": _reads(""),
        "version": _reads("--build-options"),
        "help": P("", "-ag --all --guides", check="git"),
        "symbolic-ref": P(":*", "-q --short --quiet", kind="outside", check="git"),
        "branch": _reads("-avrqlifdDmMcCt -u= --all --remotes --list --verbose --quiet --delete --force --move --copy"
            " --show-current --merged=? --no-merged=? --contains=? --no-contains=? --sort= --points-at= --format="
            " --track=? --no-track --set-upstream-to= --unset-upstream --color=? --no-color --column=? --no-column"
            " --abbrev=? --no-abbrev --ignore-case --create-reflog"),
        "tag": _changes("-lafdq -m= -F=r -n=? --list --annotate --message= --file=r --delete --sort= --format="
            " --force --contains=? --no-contains=? --merged=? --no-merged=? --points-at= --column=? --no-sign"
            " --ignore-case --cleanup="),
        "remote": P(options="-v --verbose", kind="outside", check="git", subs={
            "show": _changes("-n"), "get-url": _changes("--push --all"), "add": _changes("-f -m= -t= --tags"
                " --no-tags"),
            "remove": _changes(""), "rm": _changes(""), "rename": _changes(""), "set-url": _changes("--push --add"
                " --delete"),
            "set-head": _changes("-ad --auto --delete"), "prune": _changes("-n --dry-run"),
            "update": _changes("-p --prune"), "set-branches": _changes("--add"),
        }),
        "stash": P(options="-qku -m= --keep-index --include-untracked --all --message=", kind="outside", check="git",
        subs={
            "list": _reads(_LOG), "show": _reads("-u --include-untracked --only-untracked" + _DIFF), "push": _changes(
                "-quka -m= --keep-index --no-keep-index --include-untracked --all --message= --quiet --staged"),
            "save": _changes("-qkua --keep-index --include-untracked"), "pop": _changes("-q --index --quiet"),
            "apply": _changes("-q --index --quiet"), "drop": _changes("-q --quiet"), "clear": _changes(""),
            "branch": _changes(""), "create": _changes(""),
        }),
        "worktree": P(kind="outside", check="git", subs={
            "list": _reads("-vz --porcelain --verbose --expire="), "add": _changes(
                "-fdq -b= -B= --force --detach --checkout --no-checkout --track --no-track --lock --quiet --orphan"),
            "remove": _changes("-f --force"), "prune": _changes("-nv --dry-run --verbose"),
            "lock": _changes("--reason="),
            "unlock": _changes(""), "move": _changes("-f"),
        }),
        "submodule": P(options="-q --quiet", kind="outside", check="git", subs={
            "status": _changes("--cached --recursive"), "init": _changes(""), "sync": _changes("--recursive"),
            "update": _changes("-fN --init --recursive --force --no-fetch --depth= --jobs= --progress --single-branch"
                " --remote --recommend-shallow"),
            "add": _changes("-f -b= --force --name= --depth="), "summary": _changes(""), "deinit": _changes("-f --all"
                " --force"),
        }),
        "config": P(":*", "-lz --global --local --system --get --get-all --get-regexp --list --show-origin"
            " --show-scope --name-only --null --bool --int --path --type= --default= --includes", kind="outside",
                    style="posix", check="git config"),
        "add": _reads("-nvfAuN --dry-run --verbose --force --all --no-all --update --intent-to-add --refresh"
            " --ignore-errors --ignore-removal --sparse --chmod= --renormalize", free=True),
        "commit": _reads("-aqvsno -u=? -m= -F=r -C= -t=r --all --quiet --verbose --signoff --no-signoff --no-verify"
            " --message= --file=r --reuse-message= --author= --date= --amend --no-edit --allow-empty"
            " --allow-empty-message --dry-run --short --branch --porcelain --long --null --fixup= --squash="
            " --reset-author --cleanup= --no-status --status --only --include --no-post-rewrite --no-gpg-sign"
            " --untracked-files=?"),
        "checkout": _changes(_CHECKOUT),
        "switch": _changes("-qfd -c= -C= -t --create= --force-create= --detach --guess --no-guess --force"
            " --discard-changes --merge --quiet --track=? --no-track --orphan= --progress"),
        "restore": _changes("-q -W -S -m -s= --source= --staged --worktree --quiet --ours --theirs --merge"
            " --no-overlay --overlay --ignore-unmerged --progress"),
        "reset": _changes("-qN --mixed --soft --hard --merge --keep --quiet --no-refresh"),
        "rm": _changes("-fnrq --force --dry-run --cached --ignore-unmatch --quiet --sparse"),
        "mv": _changes("-fknv --force --dry-run --verbose"),
        "clean": _changes("-dfnqxX -e= --force --dry-run --quiet --exclude="),
        "merge": _changes(_MERGE),
        "pull": _changes("-r --rebase=? --no-rebase" + _MERGE + _FETCH),
        "fetch": _changes(_FETCH.strip()),
        "clone": _changes("-lqvn46 -b= -o= -j= --depth= --branch= --single-branch --no-single-branch --recursive"
            " --recurse-submodules=? --shallow-submodules --quiet --verbose --progress --no-checkout --bare --mirror"
            " --origin= --no-tags --local --no-local --no-hardlinks --sparse --jobs= --shallow-since="
            " --reject-shallow"),
        "push": _changes("-fqvnd46u --all --tags --follow-tags --force --force-with-lease=? --delete --dry-run"
            " --quiet --set-upstream --verbose --progress --no-verify --prune --porcelain --atomic"),
        "rebase": _changes("-qvf -X= --onto= --continue --abort --skip --quit --autostash --no-autostash --root"
            " --keep-empty --strategy-option= --quiet --verbose --stat --no-stat --no-verify --update-refs"
            " --rebase-merges=? --fork-point --no-fork-point --show-current-patch --committer-date-is-author-date"
            " --empty="),
        "cherry-pick": _changes("-nxs -m= -X= --no-commit --signoff --mainline= --strategy-option= --continue --abort"
            " --skip --quit --allow-empty --keep-redundant-commits --ff"),
        "revert": _changes("-ns -m= --no-edit --no-commit --mainline= --signoff --continue --abort --skip --quit"),
        "apply": _changes("-R3qvz -p= -C= --check --stat --numstat --summary --index --cached --3way --reverse"
            " --reject --whitespace= --exclude= --include= --directory= --recount --verbose --unidiff-zero"
            " --ignore-whitespace --ignore-space-change --allow-empty"),
        "am": _changes("-3qsk --3way --abort --continue --skip --quit --signoff --keep --keep-cr --quiet"),
        "format-patch": _changes("-nN -o= -# --stdout --output-directory= --numbered --cover-letter --subject-prefix="
            " --start-number= --root -v=" + _DIFF),
        "archive": _changes("-lv -o= --format= --prefix= --output= --list --verbose --worktree-attributes"),
        "bundle": P(kind="outside", check="git", subs={"create": _changes("-q --all --progress"),
        "verify": _changes("-q"),
                                                      "list-heads": _changes(""), "unbundle": _changes("")}),
        "bisect": P(kind="outside", check="git", subs=dict.fromkeys(
            ("start", "good", "bad", "old", "new", "skip", "reset", "log", "next", "terms"), _changes(""))),
        "init": _changes("-q -b= --quiet --bare --initial-branch="),
        "gc": _changes("-q --aggressive --auto --prune=? --quiet --no-prune --force"),
        "prune": _changes("-nv --dry-run --verbose --progress --expire="),
        "repack": _changes("-adAflqk --window= --depth="),
        "notes": P(kind="outside", check="git", subs={"list": _reads(""), "show": _reads(""), "add": _changes(
            "-f -m= -F= --message=", ), "append": _changes("-m= --message="), "remove": _changes("")}),
        "sparse-checkout": P(kind="outside", check="git", subs=dict.fromkeys(
            ("list", "set", "add", "init", "reapply", "disable"), _changes("--cone --no-cone --sparse-index"))),
        "update-index": _changes("-q --refresh --really-refresh --assume-unchanged --no-assume-unchanged"
            " --skip-worktree --no-skip-worktree --add --remove --force-remove --chmod="),
        "merge-file": _changes("-p -q -L= --ours --theirs --union --diff3 --stdout"),
        "merge-tree": _changes("--write-tree --name-only --messages --no-messages -z --stdin"),
        "read-tree": _changes("-mu --reset --empty --prefix="),
        "write-tree": _changes("--missing-ok"),
        "commit-tree": _changes("-p= -m= -F="),
        "update-ref": _changes("-d -m= --no-deref"),
        "patch-id": _changes("--stable --unstable --verbatim"),
    },
)  # fmt: skip
