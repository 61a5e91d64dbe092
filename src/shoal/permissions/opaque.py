"""Which commands hide what they run, as data: for these an allow rule has to name the command itself.

Everything here errs to the safe side: a command that is listed without need is asked for, not refused.
"""

import re
from collections.abc import Sequence

from shoal.permissions.words import Word

# What comes after the name is, or decides on, another command; or it changes what later commands mean.
ALWAYS = frozenset(
    """
    . source eval exec command builtin trap alias unalias enable hash bind complete compgen compopt fc shopt let coproc
    declare typeset local readonly caller suspend
    sh bash dash zsh ksh mksh ash fish csh tcsh rbash elvish nu xonsh busybox toybox
    env xargs parallel sudo sudoedit doas su runuser pkexec setpriv capsh nohup nice ionice chrt taskset timeout watch
    time setsid stdbuf unbuffer script chroot unshare nsenter flock strace ltrace gdb lldb valgrind perf setarch
    linux32 linux64 i386 x86_64 numactl cgexec prlimit rlwrap fakeroot proot bwrap firejail xvfb-run dbus-run-session
    systemd-run start-stop-daemon daemonize run-parts entr expect ssh rsh slogin mosh autossh sshpass telnet ftp lftp
    sftp socat nc ncat netcat tmux screen at batch crontab anacron docker-compose
    vi vim nvim view vimdiff ex ed red emacs emacsclient nano pico joe less more most pg man info
    sqlite3 psql mysql mariadb redis-cli mongosh dc m4 nmap logrotate lua luajit tclsh wish osascript pwsh powershell
    npx bunx uvx pipx nix-shell direnv dotenv op varlock doppler chpst softlimit setuidgid gosu su-exec tini dumb-init
    catchsegv ld.so busctl gdbus dbus-send xdg-open open start make-shell nix guix cpulimit torsocks proxychains
    proxychains4 ssh-agent ssh-add ssh-copy-id choom uclampset aa-exec fakechroot dtach abduco hyperfine fzf sk gio
    sshfs lynx w3m links elinks mutt neomutt mail mailx libreoffice soffice git-shell rake gmake gnumake vboxmanage
    qemu-system-x86_64 aria2c zless zmore xterm gnome-terminal
    """.split()  # noqa: SIM905 - a list of 150 quoted words would be harder to read
)

# They run the program that is their first argument's file, and anything if it is an option or missing.
INTERPRETERS = frozenset(
    """
    python pypy perl ruby node nodejs php rscript r julia octave ghci ocaml scala groovy jshell guile racket
    sbcl clisp erl elixir iex swift kotlin ts-node tsx java pwsh-preview gnuplot maxima gp sage ipython bpython pudb
    runghc ghc
    """.split()  # noqa: SIM905
)

# An argument like this makes the command run another one, read commands from a file, or mean something else. An
# argument that only the shell will know may be like this, so it counts as well; `_NOTHING` is for commands with which
# only that matters, since their first words say what they do.
_NOTHING = re.compile(r"(?!)")
_RUNNERS = re.compile(r"run|exec|x|dlx|shell|script|run-script|start|test|install|i|ci|add|create|init|do|console")
_PAGER = re.compile(r"--(pager|config-file|diff-args).*")
_TEX = re.compile(r"--?(shell|enable-write18|e|pdflatex|output-dir).*")
_COMPILER = re.compile(r"-(wrapper|B|fplugin|specs|Xclang|load|fuse-ld).*|--specs.*|@.*")
_LINKER = re.compile(r"-plugin.*|--pl.*|@.*")
_APT = re.compile(r"-[oc].*|--(option|config).*")
WATCHED: dict[str, re.Pattern[str]] = {
    "find": re.compile(r"-(exec|execdir|ok|okdir|fprint0?|fprintf|fls|files0-from)"),
    "fd": re.compile(r"-[a-zA-Z]*[xX].*|--exec.*"),
    "fdfind": re.compile(r"-[a-zA-Z]*[xX].*|--exec.*"),
    "rg": re.compile(r"--pre.*|--hostname-bin.*"),
    "git": re.compile(
        r"-c.*|--config-e.*|--ex.*|-[xuO].*|--up.*|--rece.*|--op.*|--ou.*|--textc.*"
        r"|foreach|run|filter-branch|config|alias|difftool|mergetool|bisect|daemon|instaweb|web--browse|hook|shell"
        r"|ext::.*|fd::.*|--te.*|--separate-git-dir.*|--git-dir.*|--work-tree.*|-i|--interactive|--edit-.*"
        r"|credential.*|send-email|maintenance|for-each-repo|rebase|archimport|cvs.*|svn|p4|gui|citool"
    ),
    # GNU programs take the beginning of a long option for all of it.
    "tar": re.compile(r"--(to-c|ch|us|inf|new-|rm|rs|files|F|T).*|-?[a-zA-Z]*[IF].*"),
    "bsdtar": re.compile(r"--use.*|-?[a-zA-Z]*I.*"),
    "cpio": re.compile(r"--rs.*"),
    "install": re.compile(r"--strip-p.*"),
    "rsync": re.compile(r"-[a-zA-Z0-9]*e.*|--rsh.*|--rsync-path.*"),
    "scp": re.compile(r"-[a-zA-Z0-9]*[SoFJD].*"),
    "zip": re.compile(r"-[a-zA-Z]*T.*|--(un|te).*"),
    "sort": re.compile(r"--co.*|--files.*"),
    "split": re.compile(r"--fi.*"),
    "curl": re.compile(r"-[a-zA-Z#:0-9]*K.*|--conf.*|--eng.*"),
    "wget": re.compile(r"--(use|conf|exe|post|body|inp).*|-e.*|-[a-zA-Z]*i.*"),
    "ip": re.compile(r"exec|-b.*|vrf"),
    "openssl": re.compile(r"engine|--?(engine|config|provider).*"),
    "ssh-keygen": re.compile(r"-.*[DPw].*"),
    "tcpdump": re.compile(r"-.*z.*"),
    "ag": re.compile(r"--pager.*"),
    "bat": _PAGER, "batcat": _PAGER, "delta": _PAGER,
    "pandoc": re.compile(r"-[FLd].*|--(fi|lu|pdf-engine|def).*"),
    "pdflatex": _TEX, "latex": _TEX, "xelatex": _TEX, "lualatex": _TEX, "tex": _TEX, "pdftex": _TEX, "latexmk": _TEX,
    "gs": re.compile(r"-d(NO|DELAY)SAFER.*|-c|@.*"),
    "gcc": _COMPILER, "g++": _COMPILER, "cc": _COMPILER, "c++": _COMPILER, "clang": _COMPILER, "clang++": _COMPILER,
    "ld": _LINKER, "nm": _LINKER, "ar": _LINKER, "ranlib": _LINKER, "objdump": _LINKER, "strip": _LINKER,
    "cmake": re.compile(r"-[PE]"),
    "coverage": _RUNNERS, "pyenv": _RUNNERS, "rbenv": _RUNNERS, "asdf": _RUNNERS, "mise": _RUNNERS, "rustup": _RUNNERS,
    "pylint": re.compile(r"--(init-hook|load-plugins|rcfile).*"),
    "eslint": re.compile(r"--(rulesdir|plugin|resolve-plugins|config|format|parser).*|-[cf].*"),
    "prettier": re.compile(r"--(plugin|config).*"),
    "mocha": re.compile(r"-r.*|--(require|config|import|loader).*"),
    "make": re.compile(r".*=.*|--eval.*|-f.*|--file.*|--makefile.*|-C.*|-I.*|-"),
    "jobs": re.compile(r"-.*x.*"),
    "wait": re.compile(r"-.*p.*"),
    "mapfile": re.compile(r"-.*C.*"),
    "readarray": re.compile(r"-.*C.*"),
    "pip": re.compile(r"--(python|prefix|config).*|-r.*|--requirement.*|-e.*"),
    "uv": re.compile(rf"{_RUNNERS.pattern}|--.*config.*|tool"),
    "npm": _RUNNERS,
    "deno": re.compile(rf"{_RUNNERS.pattern}|eval|repl|task|serve|-.*"),
    "bun": re.compile(rf"{_RUNNERS.pattern}|-.*"),
    "pnpm": _RUNNERS,
    "yarn": _RUNNERS,
    "cargo": re.compile(r"run|r|--config.*|\+.*|install"),
    "go": re.compile(r"run|generate|tool|--?(toolexec|exec|overlay|vettool).*|env"),
    "poetry": _RUNNERS,
    "pdm": _RUNNERS,
    "hatch": _RUNNERS,
    "rye": _RUNNERS,
    "conda": _RUNNERS,
    "mamba": _RUNNERS,
    "bundle": _RUNNERS,
    "gh": re.compile(r"extension|alias|ext|codespace|cs|api|-X.*|--exec.*"),
    "docker": re.compile(r"run|exec|compose|build|buildx|container|-H.*|--host.*|--config.*|plugin"),
    "podman": re.compile(r"run|exec|compose|build|container|unshare|--.*url.*|--hooks-dir.*|play|kube"),
    "kubectl": re.compile(r"exec|run|debug|plugin|edit|cp|attach|--kubeconfig.*|krew|proxy"),
    "gpg": re.compile(r"--(exec-path|photo-viewer|options|homedir).*"),
    "jq": re.compile(r"-[a-zA-Z]*[fL].*|--from-file.*"),
    "yq": re.compile(r".*(load|env|system).*"),
    "helm": _NOTHING, "terraform": _NOTHING, "twine": _NOTHING, "apt": _APT, "apt-get": _APT, "gem": _NOTHING,
    "aws": _NOTHING, "gcloud": _NOTHING, "az": _NOTHING, "glab": _NOTHING, "hub": _NOTHING,
    "hg": re.compile(r"--config.*|-R.*|--repo.*"), "svn": re.compile(r"--(diff-cmd|diff3-cmd|editor-cmd|config).*"),
    "systemctl": _NOTHING, "launchctl": _NOTHING,
}  # fmt: skip

RESERVED = frozenset(
    "! { } [[ ]] if then elif else fi for while until do done case esac in function select coproc".split()  # noqa: SIM905
)

# What git does itself; any other word is an alias or a program beside git.
_GIT_COMMANDS = frozenset(
    """
    add am annotate apply archive blame branch bundle cat-file check-attr check-ignore checkout cherry cherry-pick
    clean clone commit count-objects describe diff diff-files diff-index diff-tree fetch for-each-ref format-patch
    fsck gc grep hash-object help init log ls-files ls-remote ls-tree merge merge-base merge-file mv name-rev notes
    patch-id prune pull push range-diff read-tree reflog remote repack reset restore rev-list rev-parse revert rm
    shortlog show show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag update-index
    update-ref verify-commit verify-tag version whatchanged worktree write-tree
    """.split()  # noqa: SIM905
)
_GIT_WITH_VALUE = frozenset({"-C", "--namespace", "--super-prefix", "--attr-source"})

# Builtins whose arguments are names of variables that they set.
SETTERS = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "export"})

_SPECIAL_VARIABLES = re.compile(
    r"(?:PATH|IFS|ENV|BASH.*|LD_.*|DYLD_.*|PS[0-4]|PROMPT_.*|SHELL.*|CDPATH|OLDPWD|PWD|GLOBIGNORE|HOME|.*EDITOR|VISUAL"
    r"|.*PAGER|BROWSER|GIT_.*|PYTHON.*|NODE_.*|NPM_.*|PERL.*|RUBY.*|_?JAVA.*|.*_?PROXY|LESS.*|MAN.*|TAR_.*|.*_COMMAND"
    r"|.*OPTIONS|.*OPTS?|.*FLAGS|TMPDIR|TEMP|TMP|XDG_.*|SSH_.*|.*ASKPASS|CC|CXX|LD|AR|AS|MAKE.*|OPENSSL.*|SSL_.*|CURL.*"
    r"|WGET.*|RSYNC_.*|ZIP.*|GZIP|BZIP.*|XZ_.*|COMP_.*|FCEDIT|HIST.*|EXECIGNORE|POSIXLY_CORRECT|TIMEFORMAT|INPUTRC"
    r"|MAIL.*|GCONV_PATH|LOCPATH|NLSPATH|HOSTALIASES|MALLOC_.*|GLIBC_.*|TERM.*|DOCKER_.*|KUBE.*|AWS_.*|GO[A-Z]*|RUST.*"
    r"|CARGO.*|NIX.*|PIP_.*|UV_.*|VIRTUAL_ENV|CONDA.*|GEM_.*|BUNDLE_.*|COMPOSER_.*|PHP.*|LUA.*|R_.*|GREP_.*|POSIX.*"
    r"|USER|LOGNAME|LANGUAGE|CONFIG_.*|ACLOCAL.*|AUTOMAKE.*|PKG_.*|CMAKE.*|DEBUGINFOD.*|SYSTEMD_.*|SUDO_.*|QT_.*|GTK_.*"
    r"|.*_proxy|npm_config_.*|histchars|auto_resume|FUNCNEST|OPTIND|OPTARG|REPLY|MAPFILE|RANDOM|SECONDS|LINENO|DIRSTACK|_"
    r"|EUID|UID|PPID|GROUPS|CHILD_MAX|COLUMNS|LINES)"
)
_HARMLESS_VARIABLES = re.compile(
    r"LC_[A-Z]+|LANG|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|CI|DEBIAN_FRONTEND|COLUMNS|LINES|VERBOSE"
)

_WITH_MESSAGE = frozenset({"commit", "tag", "merge"})  # of git: what follows -m is text, whatever it holds
_VERSION = re.compile(r"(?<=[a-z])-?[0-9.]+$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET_OPTION = re.compile(r"[-+](e|u|x|eu|ue|ex|ux|eux|euo|eo|uo|exo|euxo|o)|pipefail|errexit|nounset|xtrace")
_SED_ADDRESS = r"(?:[0-9]+|\$|/(?:\\.|[^/\\\n])*/)"
_SED_SAFE = re.compile(
    rf"\s*(?:{_SED_ADDRESS}(?:,\s*(?:{_SED_ADDRESS}|\+[0-9]+))?\s*!?)?\s*"
    r"(?:[pdqDGHghxNn=]|s/(?:\\.|[^/\\\n])*/(?:\\.|[^/\\\n])*/[gIip0-9]*|s\|(?:\\.|[^|\\\n])*\|(?:\\.|[^|\\\n])*\|[gIip0-9]*)"
    r"\s*;?\s*"
)
_SED_OPTION = re.compile(r"-[nErsuz]+|-[nErsuz]*i[a-z.~]*|--(?:quiet|silent|regexp-extended|in-place)")
_AWK_HIDES = re.compile(r"[|>@]|system|getline")
_AWK_OPTION = re.compile(r"-F.*|-v")
_TEST_OPERATOR = re.compile(r"-[a-zA-Z]|-(eq|ne|lt|le|gt|ge|nt|ot|ef)|==?|!=|[<>]")
_LINKERS = re.compile(r"ld-linux.*|ld-musl.*|ld-?[0-9.]*\.so.*")


_LISTED = ALWAYS | INTERPRETERS | WATCHED.keys()


def special_variable(name: str) -> bool:
    """Whether the shell or common programs act on a variable of this name."""
    return _SPECIAL_VARIABLES.fullmatch(name) is not None


def harmless_variable(name: str) -> bool:
    """Whether a program that gets this variable in its environment still does the same."""
    return _HARMLESS_VARIABLES.fullmatch(name) is not None


def base_name(command: str) -> str:
    """The name a command is listed by: without directory and version, lower-case."""
    name = command.rsplit("/", 1)[-1].lower()
    return name if name in _LISTED else _VERSION.sub("", name) or name


def opaque_until(words: Sequence[Word]) -> int | None:
    """How many words an allow rule has to name before it may allow this command; None when what it does is plain."""
    name = words[0].value
    if not name or not name.isascii() or name.startswith("-"):
        return len(words)
    base = base_name(name)
    if base in ALWAYS or name in RESERVED or base.startswith("git-") or _LINKERS.fullmatch(base):
        return 1
    if base in INTERPRETERS:
        plain = len(words) > 1 and words[1].certain and words[1].begins[:1] != "-"
        return None if plain else min(2, len(words))
    if base in ("sed", "gsed"):
        return None if _sed_is_plain(words[1:]) else len(words)
    if base in ("awk", "gawk", "mawk", "nawk"):
        return None if _awk_is_plain(words[1:]) else len(words)
    if base in SETTERS or base == "printf":
        return None if _sets_plainly(base, words[1:]) else len(words)
    if base == "set":
        return None if all(_SET_OPTION.fullmatch(word.value or "") for word in words[1:]) else 1
    if base in ("test", "["):
        return None if _tests_plainly(words) else len(words)
    until = _watched_until(WATCHED.get(base), words)
    return until or (_unknown_to_git(words) if base == "git" else None)


def _watched_until(offending: re.Pattern[str] | None, words: Sequence[Word]) -> int | None:
    if offending is None:
        return None
    for number, word in enumerate(words[1:], 2):
        if not word.splits and number > 3 and words[1].value in _WITH_MESSAGE and words[number - 2].value == "-m":
            continue
        if not word.certain or (word.value is not None and offending.fullmatch(word.value)):
            return number
    return None


def _unknown_to_git(words: Sequence[Word]) -> int | None:
    """How many words name a subcommand that is not git's own; None when it is."""
    skip = False
    for number, word in enumerate(words[1:], 2):
        if skip or word.begins.startswith("-"):
            skip = not skip and word.value in _GIT_WITH_VALUE
        else:
            return None if word.value in _GIT_COMMANDS else number
    return None


def _tests_plainly(words: Sequence[Word]) -> bool:
    """Whether a test has no `-v`, which evaluates its operand, written or in a variable where an operator may stand."""
    for number, word in enumerate(words[1:], 1):
        if word.value in ("-v", "-R"):
            return False
        before, after = words[number - 1].value, words[number + 1].value if number + 1 < len(words) else None
        beside = (before is not None and _TEST_OPERATOR.fullmatch(before)) or (
            after and _TEST_OPERATOR.fullmatch(after)
        )
        if not word.certain and (word.splits or not beside):
            return False
    return True


def _sed_is_plain(arguments: Sequence[Word]) -> bool:
    """Whether a sed script only prints, deletes and replaces; others can run commands and write files."""
    scripts: list[str] = []
    expected = False
    for word in arguments:
        if not word.certain and not (scripts and not expected):
            return False
        value = word.value or word.begins
        if expected:
            scripts.append(word.value or "?")
            expected = False
        elif value in ("-e", "-ne", "-En", "-nE", "-rn", "-nr", "--expression"):
            expected = value in ("-e", "-ne", "--expression")
        elif value.startswith("-"):
            if not _SED_OPTION.fullmatch(value):
                return False
        elif not scripts:
            scripts.append(word.value or "?")
    return bool(scripts) and all(_SED_SAFE.fullmatch(script) for script in scripts)


def _awk_is_plain(arguments: Sequence[Word]) -> bool:
    """Whether an awk program runs nothing and writes to no file."""
    skip = False
    for word in arguments:
        if word.value is None:
            return False
        if skip:
            skip = False
        elif _AWK_OPTION.fullmatch(word.value):
            skip = word.value in ("-v", "-F")
        elif word.value.startswith("-"):
            return False
        else:
            return _AWK_HIDES.search(word.value) is None
    return False


def _sets_plainly(base: str, arguments: Sequence[Word]) -> bool:
    """Whether a builtin that sets variables sets none that matters; `a[$(…)]` as a name would even run something."""
    if base == "printf":
        return not arguments or (arguments[0].certain and not arguments[0].begins.startswith("-"))
    for word in arguments:
        name = word.value
        if name is None:
            return False
        if base == "getopts" and word is arguments[0]:
            continue
        if base == "export" and not harmless_variable(name.split("=")[0]):
            return False
        plain = _NAME.fullmatch(name.split("=")[0] if base == "export" else name)
        if name.startswith("-"):
            if not re.fullmatch(r"-[rtes]+|-v", name):
                return False
        elif not plain or (special_variable(name) and name != "REPLY"):
            return False
    return True
