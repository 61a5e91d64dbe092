"""Ways to make one command run another: each is detected or must be spelled out in an allow rule."""

from pathlib import Path

import pytest

from shoal.kernel.permissions import Decision
from shoal.kernel.settings import ProfileSettings
from shoal.permissions.actions import FRAGMENTS_MAX, shell_actions
from shoal.permissions.profiles import EVERYTHING, Profile, Profiles, decide_all
from tests.known_tools import TRAITS

CWD = Path("/nowhere/ws")
PLAIN = Profile("plain", [ProfileSettings(allow=("tool:bash:.*", "tool:(read|write):/workspace/.*"))])
"""A profile that allows every transparent command and spells out none."""
NO_RM = Profile("no-rm", [ProfileSettings(deny=("tool:bash:rm( .*)?",), allow=(EVERYTHING,))])


def decided(profile: Profile, command: str) -> Decision:
    return decide_all(profile, shell_actions("bash", command, cwd=CWD))[0]


HIDDEN = [
    "alias ls='rm x'; ls",
    "ls() { rm x; }; ls",
    "rm$IFS-rf${IFS}x",
    "$IFS rm",
    "{rm,-rf,x}",
    "echo $((a[$(rm x)]))",
    "x='a[$(rm y)]'; echo $((x))",
    "x='a[$(rm y)]'; [[ $x -gt 0 ]]",
    "x='a[$(rm y)]'; [[ -v $x ]]",
    "[[ -v a[$(rm x)] ]]",
    "[ -v 'a[$(rm x)]' ]",
    "coproc rm x",
    "coproc FOO { rm x; }",
    "trap 'rm x' EXIT",
    "PROMPT_COMMAND='rm x'",
    "BASH_ENV=./x ls",
    "export BASH_ENV=./x",
    "ENV=./x sh",
    "LD_PRELOAD=./x.so ls",
    "LD_PRELOAD=./x.so",
    "export LD_PRELOAD",
    "GIT_PAGER='rm x' git log",
    "GIT_SSH_COMMAND='rm x' git fetch",
    "rm x\0",
    "cat <<E | bash\nrm x\nE\n",
    "$'\\x72m' x | sh",
]


@pytest.mark.parametrize("command", HIDDEN)
def test_shell_constructs_are_seen_through(command: str) -> None:
    assert decided(PLAIN, command) == "deny"


ASKED_OF_ANOTHER = [
    "git -c core.pager='rm x' log",
    "git -ccore.pager='rm x' log",
    "git --exec-path=. log",
    "git-log",
    "/usr/lib/git-core/git-commit -m x",
    "git grep -O'rm x' foo",
    "git grep --open='rm x' foo",
    "git log --output=.git/hooks/x",
    "git diff --outp=.git/config",
    "git clone ext::'rm x' y",
    "git ls-remote --upload-pack='rm x' .",
    "git ls-remote -u 'rm x' .",
    "git push --rece='rm x'",
    "git foo",
    "git -C y foo",
    "git lfs x",
    "git -C y -c a.b=c log",
    "git $x",
    "git rebase -x 'rm x'",
    "git bisect run rm x",
    "git archive --ex='rm x'",
    "tar --checkpoint-action=exec='rm x' -cf a b",
    "tar --checkpoint=1 --checkpoint-action exec='rm x' -cf a b",
    "tar --use='rm x' -xf a",
    "tar --inf=./x -cf a b",
    "tar --new-=./x -cf a b",
    "tar -I 'rm x' -cf a b",
    "tar --to-comm='rm x' -xf a",
    "find . -exec ./rm {} ';'",
    "find . -execdir rm {} ';'",
    "find . -okdir rm ';'",
    "find . -fprintf /etc/x y",
    "awk 'BEGIN{system(\"rm x\")}'",
    "awk '@load \"x\"'",
    "awk -E x",
    "sed 'e rm x' y",
    "sed 's/x/y/;e rm x' y",
    "sed '1{e rm x\n}' y",
    "sed 's#x#y#e' z",
    "vim -c ':!rm x'",
    "ssh -oProxyCommand='rm x' h",
    "scp -S ./x a b",
    "rsync -ae 'rm x' a b",
    "rsync --rsh='rm x' a b",
    "make SHELL=x",
    "make --eval=x",
    "npm exec x",
    "npm x",
    "npx x",
    "sort --comp='rm x' y",
    "sort --co=rm x",
    "split --filt='rm x' y",
    "zip -TT 'rm x' a b",
    "zip --unz='rm x' a",
    "curl --conf x",
    "curl -sK x",
    "wget --exe 'x=y' http://h",
    "wget --use-a=rm http://h",
    "rg --pre=rm x",
    "ssh-agent rm x",
    "ssh-add -s ./x.so",
    "ssh-keygen -D ./x.so",
    "sqlite3 x '.shell rm y'",
    "m4 x",
    "i386 rm x",
    "linux64 rm x",
    "/lib/x86_64-linux-gnu/ld-2.36.so /bin/rm x",
    "gcc -wrapper rm,x y.c",
    "cc -fplugin=./x.so y.c",
    "gcc @x",
    "nm --plugin ./x.so y",
    "openssl dgst --engine=x y",
    "pandoc --filter rm x",
    "pandoc -F ./x y",
    "pdflatex --shell-escape x",
    "tcpdump -z rm",
    "install --strip-program=rm -s a b",
    "coverage run x",
    "cmake -E rm x",
    "go vet -vettool=rm",
    "apt-get -o APT::Update::Pre-Invoke::=rm update",
    "hg --config alias.x='!rm y' x",
    "fzf",
    "choom -n 1 rm x",
    "svn diff --diff-cmd rm",
    "cpio -i --rsh-command=rm",
    "ag --pager=rm x",
    "bat --pager 'rm x' y",
    "gnuplot -e 'system(\"rm x\")'",
    "ghc -e x",
    "eslint --rulesdir x",
    "pylint --init-hook=x y",
    "man -P 'rm x' ls",
]


@pytest.mark.parametrize("command", ASKED_OF_ANOTHER)
def test_programs_that_run_others_must_be_named(command: str) -> None:
    assert decided(PLAIN, command) == "deny"


@pytest.mark.parametrize(
    "command", ["git-push", "/usr/lib/git-core/git-push origin", "nice git-push", "ls; git-push x"]
)
def test_a_git_program_is_denied_like_its_subcommand(command: str) -> None:
    assert decided(Profiles(TRAITS).get("guarded"), command) == "deny"


@pytest.mark.parametrize(
    "command",
    ["rm\u200b x", "ｒm x", "rм x", "r\u00adm x", "rm\u00a0x", "\u202erm x", "ls\rrm x", "ls\u2028rm x", "ls\x85rm x"],
)
def test_look_alike_names_are_not_plain(command: str) -> None:
    assert decided(PLAIN, command) == "deny"


EVERYDAY = [
    "git status",
    "git -C sub log --oneline -3",
    "git --no-pager diff HEAD~1",
    "git add -A",
    "git commit -qm 'a b'",
    "tar -czf a.tgz src",
    "tar --totals -xf a.tar",
    "sort -k2 -u x",
    "curl -fsSL http://h/x",
    "wget -q http://h",
    "gcc -O2 -Wall x.c -o x",
    "pandoc x.md -o x.html",
    "npm ls",
    "cmake -S . -B build",
    "go build ./...",
    "make all",
    "zip -r a b",
    "split -l 10 x",
    "openssl sha256 x",
    "gs x.ps",
    "apt-get update",
    "python3 x.py",
    "bat x",
]


@pytest.mark.parametrize("command", EVERYDAY)
def test_everyday_uses_of_the_same_programs_are_plain(command: str) -> None:
    assert decided(PLAIN, command) == "allow"


DENIED_INSIDE = [
    "sh -c 'ls; rm x'",
    "((a[$(rm x)]))",
    "coproc FOO { rm x; }",
    "x[$(rm y)]=1",
    "echo $[a[$(rm x)]]",
    "echo ${y:a[$(rm x)]}",
    "for ((i=a[$(rm x)];;)); do :; done",
    "select y in a; do rm x; done",
    "awk 'BEGIN{system(\"rm x\")}'",
    "sed '1e rm x' y",
    "git -c core.pager='rm x' log",
    "git fetch 'ext::rm x'",
    "PROMPT_COMMAND='rm x'",
    "tar --to-command='rm x' -xf a",
    "sort --compress-program=rm x",
    "sqlite3 x '.shell rm y'",
    "vim -c ':!rm x'",
    "ssh -oProxyCommand='rm x' h",
    "ls `echo \\`rm x\\``",
    "find . -exec rm {} ';'",
    "xargs rm",
    "env -S 'rm x'",
    "cat <<E | sh\nrm x\nE\n",
]


@pytest.mark.parametrize("command", DENIED_INSIDE)
def test_denied_commands_are_found_inside_opaque_ones(command: str) -> None:
    assert decided(NO_RM, command) == "deny"


def test_quoted_text_is_not_parsed_as_a_command() -> None:
    for command in ("echo 'rm x'", "git commit -m 'rm x'", "grep 'rm x' y", "ls 'a=rm x'"):
        assert decided(NO_RM, command) == "allow"


def test_views_of_pieces_are_bounded() -> None:
    views = [
        action for action in shell_actions("bash", "eval " + ";".join(map(str, range(5000))), cwd=CWD) if action.whole
    ]
    assert len(views) < FRAGMENTS_MAX + 10
