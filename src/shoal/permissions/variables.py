"""Variables and words with a meaning of their own: those that the shell or common programs act on."""

import re

RESERVED = frozenset(
    "! { } [[ ]] if then elif else fi for while until do done case esac in function select coproc".split()  # noqa: SIM905
)

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
# A program that gets one of these does the same, or runs the workspace's code as it does without.
_HARMLESS_VARIABLES = re.compile(
    r"LC_[A-Z]+|LANG|TZ|(NO|FORCE|CLI)_?COLOR|CI|DEBIAN_FRONTEND|COLUMNS|LINES|VERBOSE|NODE_ENV|RUST_BACKTRACE|RUST_LOG"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONIOENCODING|PYTHONUTF8|PYTHONHASHSEED|PYTHONPATH|PYTHONWARNINGS"
    r"|DJANGO_SETTINGS_MODULE|FLASK_(APP|ENV|DEBUG)|CGO_ENABLED|GOOS|GOARCH|CARGO_TERM_COLOR|GIT_TERMINAL_PROMPT|DEBUG"
    r"|APP_ENV|RAILS_ENV|PORT|HOST|LOG_LEVEL"
)


def special_variable(name: str) -> bool:
    """Whether the shell or common programs act on a variable of this name."""
    return _SPECIAL_VARIABLES.fullmatch(name) is not None


def harmless_variable(name: str) -> bool:
    """Whether a program that gets this variable in its environment runs nothing else for it."""
    return _HARMLESS_VARIABLES.fullmatch(name) is not None
