"""The subcommands of git that are known, as data, each with its safe options; any other word is an alias or a program.

Left out on purpose: what runs a program (`-O`, `--ext-diff`, `--textconv`, `--exec`, `--upload-pack`, `--edit`, `-i`,
`--show-signature`, `bisect run`, `submodule foreach`) or writes elsewhere (`--output`, `--git-dir`).
"""

from shoal.permissions.options import Program as P  # noqa: N817

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
