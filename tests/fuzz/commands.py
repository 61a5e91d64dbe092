"""Random shell commands for real programs, with words that may become options, all spellings of options, and traps.

`options.txt` lists the options of each program from its own help, and further options that are known to be dangerous.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tests.fuzz.ground import HOSTILE_NAMES, ONLY, TRAP

NAMES = ("rev", "tac", "nl", "seq")
"""Programs that stand for any program in the pieces below."""

TOKENS = [
    "rev", "tac", "nl", "seq", " ", " ", " ", " ", "\n", ";", "&", "&&", "||", "|", "(", ")", "{ ", " }", "$(", ")",
    "`",
    '"', '"', "'", "'", "\\", "\\\n", "#", "$X", "${X}", "$((1))", "<<E\n", "\nE\n", "<<'E'\n", "<<-E\n", "<<<", ">f",
    "<", ">&", "2>&1", "if ", "then ", "fi", "else ", "for i in ", "; do ", "; done", "while ", "case ", " in ",
    "esac", ";;", "!", "[[ ", " ]]", "=", "A=", "[ ", " ]", "*", "{", "}", ",", "..", "<(", ">(", "$", '$"', "$'",
    "\t", "\r", "time ", "coproc ", "function f ", "f() ", "f", "eval ", "é", "\xa0", "\x0b", "~", "@", "%", "^", "-",
    "+", ":", "?", "${X:-", "${", "$((", "))", "((", '\\"', "\\$", "E", "|&", "&>", ">|", "<>", ";&", "in", "then",
    "select ", "until ", "exec ", "#x", "\n#", "1", "X", "-n", '"$(rev)"', "$(rev)", "`rev`", '"`rev`"', "${X:-$(tac)}",
    '"${X:-`tac`}"', "${X:-'}'}", '"${X:-"}"}"', "$[1]", "$(( $(rev) ))", "a[$(rev)]=", "=(", '"\\\n', "{rev,x}", ",x}",
    "rev <<E\n$(tac)\nE\n", "rev <<\\E\n$(tac)\nE\n", 'rev <<"E"\n$(tac)\nE\n', ">&'$(rev)'", "\ufeff", "echo ", "}\n",
    "x=(", "['a']=", "${X/a/", "${!X", "${X@P}", "${X[", "a[0]", "test -v ", " -o ", " -a ", "\n}\n", "\nfi\n", "!!",
]  # fmt: skip
SEGMENTS = [
    "rev", "tac x", 'nl "y z"', "seq 'q'", "rev $X", "A=1 tac", "rev <<E\nx $(tac)\nE\n", "{ rev; }", "(tac)",
    "$(echo rev)",
    "rev $(tac)", "rev `tac`", "if rev; then tac; fi", "for i in 1 2; do rev $i; done",
    "case rev in a*) tac;; *) nl;; esac",
    "rev # tac", "rev \\\n x", '"r"ev', "r\\ev", "rev >f", "<f rev", "2>&1 rev", "! rev", "rev | tac", "rev && tac",
    "rev || nl",
    "rev & tac", "rev;tac", "rev\ntac", "rev <(tac)", 'rev <<< "$(nl)"', "[[ x == x ]] && rev", "[ x = y ] || tac",
    "f() { rev; }; f", "rev ${X:-tac}", 'rev "${X:-$(nl)}"', "rev $((1+2))", "rev {x,y}",
    "while rev; do tac; break; done",
    "cd sub", "cd ..", "cd door", ">../f1", ">door/f2 rev", "rev >f3", "(cd sub; rev >f4)", "{ rev; } >f5 2>&1",
    "rev &>f6", "rev >>f7 tac", ">|f8", "rev 2>f9 >&f10", "for i in 1; do cd sub; done", "rev >$X", "rev <>f11",
]  # fmt: skip
GLUE = [" ; ", " | ", " && ", "\n", " & ", "; ", "", " ", " || ", ";;", " #c\n", "\t", "\\\n", " \\\n"]
UNFINISHED = [
    "\n}", "\n)", "\nfi", "\ndone", "\nesac", "\n;;", "\n'", '\n"', "\n`", "\n$(", "\ncat <<E", "\nthen", "\n&&", "\n|",
    "\n{", "\n((", "\nfor", "\ncase x in", "\nfunction", "\n[[ a", "\nx=(", "\n;", "\n!", "\nif rev", "\n${", "\n\\",
    " }", " )", "\n<<", "\n>&", "\n{rev,\n", "\nin", "\nelse rev", "\ndo rev", "\n]]", "\n[[ a == (b ]]", "\n((1",
    "\n&",
]  # fmt: skip

_FILES = [
    "a.txt", "b.txt", "data.csv", "x.json", "notes.md", "build.py", "x.sh", "Makefile", ".env", ".envrc", "run.sed",
    "p", "run.awk", "list0", "names.txt", "expression", "sub", "sub/c.txt", "sub/d", "traps", "link", "door", "out",
    "to-git",
    "to-env", "a.tar", "a.tgz", "evil/textconv", "evil/filter/f.t", "bare.git", "by-file", ".", "..", "/", "-", "--",
    "kept.txt", ".git/config", ".git/hooks/pre-commit", ".git", "new.txt", "new.sh", "sub/new.txt", "/tmp/new", "HEAD",
    "main", "HEAD~1", "../x", "/etc/passwd", "/proc/self/environ", "/workspace/a.txt", "/workspace/.env", "~/a.txt",
    "$HOME/.env", "$PWD/a.txt", "/proc/self/cwd/.env", "./ls", "/workspace/ls", "package.json", "src", "src/README",
    "/dev/null", "/dev/stdin", "/dev/stdout", "/dev/tcp/127.0.0.1/1", "to-script", "conftest.py", ".bashrc", "nothing",
]  # fmt: skip
_VALUES = [
    TRAP, "./p", "p", f"sh -c {TRAP}", "1", "2", "0", "1,2p", "s/a/b/", f"1e {TRAP}", f"e {TRAP}", "w x.sh", "r .env",
    "s/a/b/w x.sh", "s/one/factor 7/e", f'BEGIN{{system("{TRAP}")}}', f'{{print | "{TRAP}"}}', '{print > "x.sh"}',
    '{ print $1 }', f"a[$({TRAP})]", "x", "one", ".*", ",", "%s", "[a-z]", f'BEGIN{{"{TRAP}" | getline x}}', "=1",
    "a=1",
    "@include \"run.awk\"", "BEGIN{while((getline l < \".env\")>0) print l}", "env", "input_line_number", "$ENV", ".a",
    f"exec={TRAP}", f"ext::{TRAP}", "HEAD", "main", "core.pager=p", "u+x", "%H", "1d", "$!N", "q", "n;d", "/one/p",
    "/one/,/two/{p;d}", "s|a|b|g", "y/a/b/", "1r .env", "$p", "NR==1", "{}", "+", ";", "!", "(", ")", "'a'", "-x", "=",
]  # fmt: skip
_UNCERTAIN = [
    "*", "-*", "?*", "[-]*", "*e*", "traps/*", "{-v,x}", "{-e1e\\ factor\\ 7,a.txt}", "{a,b}.txt", "$A", '"$A"', "$X",
    "${A}", "${A:-x}", "$(echo -n)", "`echo -n`", '"$(echo -n)"', "~", "~+", "$1", "$@", '"$@"', "$*", "${A[@]}", "$?",
    "$((1+1))", "$((A))", "${A[0]}", "sub/*", "**/*", "*.txt", ".e*", "{.e,x}nv", "/proc/self/envir?n", "$IFS",
    "a$IFS-v",
    "@(-v|x)", "$'-v'", "\\-v", '"-"v', "<(echo x)", "$v.txt", "${PWD}/a.txt", "{f,-f}run.sed", "--", "{1..3}", "$-",
    "${A#x}", "${A/x/-v}", "$A$A", "x$A", "./*", "--*", "{,-}f", "/workspace/*", "src/*", "$OLDPWD", "$_", "$BASH",
]  # fmt: skip
_OF_A = ["$A", '"$A"', '"$A"', "${A}", "x$A", '-- "$A"', "-- $A", "./$A", '"./$A"']


@cache
def options() -> dict[str, list[str]]:
    """Return the options of each program. The key for a git subcommand is `git NAME`."""
    lines = (Path(__file__).parent / "options.txt").read_text().splitlines()
    return {name: rest.split(" ") for name, _, rest in (line.partition("\t") for line in lines)}


@cache
def _names(*, git: bool) -> list[str]:
    return [name for name in options() if name.startswith("git ") == git]


def random_command(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.08:
        return "".join(source.choice(TOKENS) for _ in range(source.randint(2, 14)))
    if kind < 0.2:
        text = "".join(source.choice(SEGMENTS) + source.choice(GLUE) for _ in range(source.randint(1, 4)))
        return _damaged(source, text)
    text = source.choice(_SHAPES)(source)
    if source.random() < 0.2:
        text += source.choice(["; ", " | ", " && ", "\n", " || ", " & "]) + source.choice(_SHAPES)(source)
    if source.random() < 0.12:
        text += source.choice(UNFINISHED)
    return _damaged(source, text) if source.random() < 0.12 else text


def _damaged(source: random.Random, text: str) -> str:
    for _ in range(source.randint(0, 3)):
        at = source.randrange(len(text) + 1)
        kind = source.random()
        if kind < 0.4:
            text = text[:at] + source.choice(TOKENS) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + 1 :]
        else:
            other = source.randrange(len(text) + 1)
            text = text[:at] + text[other : other + 4] + text[at:]
    return text


def _quoted(source: random.Random, word: str) -> str:
    if source.random() < 0.1 and word.isascii() and word.isprintable():
        return "$'" + "".join(f"\\x{ord(char):02x}" for char in word) + "'"
    if word and word.replace("/", "").replace(".", "").replace("-", "").replace("=", "").replace(",", "").isalnum():
        return word if source.random() < 0.9 else f'"{word}"'
    return "'" + word.replace("'", "'\\''") + "'"


def _value(source: random.Random) -> str:
    kind = source.random()
    chosen = _VALUES if kind < 0.55 else _FILES if kind < 0.9 else HOSTILE_NAMES
    return source.choice(chosen)


def _option(source: random.Random, name: str) -> list[str]:
    known = options()[name]
    option = source.choice(known)
    value = _value(source)
    if option.startswith("--"):
        spelled = option.rstrip("=")
        if source.random() < 0.35 and len(spelled) > 4:
            spelled = spelled[: source.randint(3, len(spelled))]
        if option.endswith("=") or source.random() < 0.15:
            return [f"{spelled}={value}"] if source.random() < 0.6 else [spelled, value]
        return [spelled]
    if option.startswith("-") and len(option) == 2:
        shorts = [other for other in known if len(other) == 2 and other[0] == "-"]
        while source.random() < 0.35:
            option += source.choice(shorts)[1]
        kind = source.random()
        if kind < 0.2:
            return [option + value]
        return [option, value] if kind < 0.4 else [option]
    return [option] if source.random() < 0.5 else [option, value]


def _word(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.45:
        file = source.choice(_FILES)
        return file if file[0] in "~$" else _quoted(source, file)
    if kind < 0.72:
        return source.choice(_UNCERTAIN)
    return _quoted(source, _value(source))


def _program(source: random.Random) -> list[str]:
    git = source.random() < 0.15
    name = source.choice(_names(git=git))
    if source.random() < 0.02:
        name = source.choice(["/bin/", "./", "/workspace/", "\\"]) + name
    if name.startswith("git ") and source.random() < 0.3:
        before = source.choice(
            [
                "-C evil/external",
                "-C by-file",
                "-C bare.git",
                "--git-dir=bare.git",
                "-c a.b=c",
                "--no-pager",
                "-p",
                "-P",
            ]
        )
        return ["git", before, *name.split()[1:]]
    return name.split()


def _simple(source: random.Random, last: str = "") -> str:
    words = _program(source)
    listed = " ".join(word for word in words if not word.startswith("-"))
    listed = listed if listed in options() else words[0].lstrip("\\").rsplit("/", 1)[-1]
    while source.random() < 0.55:
        pieces = _option(source, listed) if listed in options() else [_value(source)]
        words += [_quoted(source, piece) for piece in pieces]
    if source.random() < 0.15:
        words.append("--")
    while source.random() < 0.6:
        words.append(_word(source))
    if last:
        words.append(last)
    elif source.random() < 0.1:
        words += [_quoted(source, piece) for piece in (_option(source, listed) if listed in options() else ["x"])]
    text = " ".join(words)
    if source.random() < 0.15:
        text += source.choice([" > ", " >> ", " < ", " 2>", " &> ", " >| ", " <> "]) + _word(source)
    return text


def _loop(source: random.Random) -> str:
    words = " ".join(source.choice([_word(source), _quoted(source, _value(source))]) for _ in range(2))
    return f"for A in {words}; do {_simple(source, source.choice(_OF_A))}; done"


def _assigned(source: random.Random) -> str:
    return f"A={_quoted(source, _value(source))}; {_simple(source, source.choice(_OF_A))}"


def _array(source: random.Random) -> str:
    key = _quoted(source, source.choice(HOSTILE_NAMES + _VALUES))
    item = _word(source)
    begin = source.choice(["A=(", "A+=(", "declare -a A=(", "declare -A A=(", "export A=(", "local A=("])
    literal = source.choice([f"[{key}]={item}", f"{item} {item}", f"[0]={item}", f"[A]={item}", "[$A]=1", f"{key}"])
    rest = source.choice(["", "; " + _simple(source, '"${A[@]}"'), '; echo "${A[0]}"', "; echo ${A[*]}", "; echo $A"])
    return f"{begin}{literal}){rest}"


def _braces(source: random.Random) -> str:
    words = [word.replace(" ", "\\ ") for word in _simple(source).split(" ") if word]
    return "{" + ",".join(words) + source.choice(["}", ",}", "} ", "}\n}", ";}"])


def _runner(source: random.Random) -> str:
    runner = source.choice(
        ["time ", "timeout 1 ", "nice ", "nice -n 1 ", "nohup ", "env ", "env A=1 ", "command ", "! ", "builtin ",
         "xargs ", "xargs -0 ", "xargs -n1 ", "xargs -I{} ", "stdbuf -o0 ", "setsid ", "LC_ALL=C ", "A=1 ", "exec ",
         "timeout -k 1 1 ", "env -i ", "env -- ", "xargs -r ", "time -p ", "time -- ", "command -v ", "env -u A ",
         "PATH=. ",
         "TZ=x "]
    )  # fmt: skip
    inner = _runner(source) if source.random() < 0.2 else runner + (_simple(source) if source.random() < 0.9 else "")
    return source.choice(["", "ls | ", "cat names.txt | ", "find . -print0 | "]) + inner


def _found(source: random.Random) -> str:
    inner = _simple(source, "{}")
    action = source.choice(["-exec", "-execdir", "-ok", "-exec", "-exec"])
    end = source.choice(["+", "\\;", "';'", ";", "{} +"])
    return f"find {_word(source)} -maxdepth 1 {action} {inner} {end}"


def _read(source: random.Random) -> str:
    begin = source.choice(
        ["while read -r A; do", "while IFS= read -r A; do", "while read A B; do", "read A;", "A=a.txt; read A;"]
    )
    begin = begin.replace(
        "read", source.choice(["", "", "", "", "command ", "time ", "time -p ", "time -- ", "builtin ", "! "]) + "read"
    )
    end = "; done" if begin.startswith("while") else ""
    file = source.choice(["names.txt", "expression", "a.txt", "traps/*"])
    return f"{begin} {_simple(source, source.choice(_OF_A))}{end} < {file}"


def _tested(source: random.Random) -> str:
    words = [source.choice([_word(source), *options()["test"]]) for _ in range(source.randint(1, 6))]
    open_, close = source.choice([("test", ""), ("[", " ]"), ("[[", " ]]")])
    return f"{source.choice(['', 'A=-v; ', 'A=-o; '])}{open_} {' '.join(words)}{close}"


def _builtin(source: random.Random) -> str:
    key = source.choice([f"a[$({TRAP})]", "A", "a[0]", "a[A]", "PATH", "IFS", f"'a[$({TRAP})]'", "$A", '"$A"', "x=1"])
    return source.choice(
        [f"read {key} < expression", f"printf -v {key} %s x", f"unset {key}", f"export {key}", f"let {key}",
         f"mapfile -C '{TRAP}' -c 1 A < a.txt", f"mapfile -t {key} < a.txt", f"wait -p {key}", f"getopts a {key}",
         f"declare {key}", f"test -v {key}", f"[ -v {key} ]", f"[[ -v {key} ]]", f"[[ {key} -eq 1 ]]", f"(( {key} ))",
         f"echo $(( {key} ))", f"echo ${{A:{key}}}", f"A=1 read -r {key} < a.txt", f"read -a {key} < a.txt",
         f"printf '%d' {key}", f"printf 'x%ln' {key}; id",
         f"[ {key} -eq 1 ]", f"shift {key}", f"ulimit {key}", f"cd {key}", f"pushd {key}",
         f"alias id='{TRAP}'; id", f"trap '{TRAP}' EXIT", f"trap '{TRAP}' DEBUG", "hash -p /workspace/p id; id",
         f"enable -f ./p {key}", f"complete -C '{TRAP}' id", f"id() {{ {TRAP}; }}; id", f"coproc {TRAP}",
         f"A='a[$({TRAP})]'; echo $((A))", f"A='a[$({TRAP})]'; [[ A -eq 1 ]]", "cd sub && ls",
         f"case {key} in *) id;; esac",
         "echo ${!A}", "A=PS4; echo ${A@P}", "IFS=x; id", "set -o posix; id", "shopt -s extglob; echo @(a|b)",
         f"for {key} in 1; do id; done", f"let 'a[$({TRAP})]=1'", "exec 3< .env; cat <&3", "cat < $(echo .env)",
         f"cat <<E\n$({TRAP})\nE", f"cat <<'E'\n$({TRAP})\nE", f"cat <<E\n${{A:-$({TRAP})}}\nE", "printf %s x > .git/x"]
    )  # fmt: skip


def _in_repository(source: random.Random) -> str:
    folder = source.choice(["evil/" + name for name in ("fsmonitor", "textconv", "filter", "hooks", "lazy", "pager")])
    folder = source.choice([folder, "bare.git", "by-file", "evil/external", "evil/driver", "evil/include", "sub"])
    command = source.choice(
        ["status", "diff", "log -p", "show", "add .", "commit -am x", "grep one", "stash", "blame f.t"]
    )
    if source.random() < 0.5:
        command = " ".join(_simple(source).split(" ")[1:]) if (source.random() < 0.3) else command
    return source.choice(
        [f"cd {folder} && git {command}", f"git -C {folder} {command}", f"(cd {folder}; git {command})"]
    )


def _moved(source: random.Random) -> str:
    folders = [
        "sub",
        "door",
        "..",
        "evil/external",
        "evil/fsmonitor",
        "by-file",
        "nothing",
        "-",
        "~",
        ".",
        "traps",
        "/tmp",
        "d",
    ]
    forms = ["cd {}", "cd {}", "cd -- {}", "cd -P {}", "command cd {}", "time cd {}", "time -p cd {}",
    "time -- cd {}", "! cd {}",
             "pushd {}", "popd", "(cd {})", "{{ cd {}; }}", "if cd {}; then :; fi", "while cd {}; do break; done",
             "builtin cd {}",
             "cd {} | cat", "cd {} > /dev/null", "case x in x) cd {};; esac", "for d in 1; do cd {}; done",
             "f() {{ cd {}; }}; f",
             "D={}; cd $D", 'D={}; cd "$D"', "cd {}*", "cd {{{},x}}", "CDPATH=evil cd {}", "bash -c 'cd {}'",
             "cd $(echo {})",
             "env -C {} git diff", "exec 3< {}", "cd {}/", "cd ./{}", "cd $PWD/{}", "true && cd {}", "false || cd {}",
             "nice cd {}"]  # fmt: skip
    text = ""
    for _ in range(source.randint(1, 4)):
        text += source.choice(forms).format(source.choice(folders)) + source.choice(
            [" && ", " && ", "; ", " || ", "\n", " & "]
        )
    last = [
        "git status",
        "git diff",
        "cat a.txt c.txt",
        "sed -n p *",
        "git log -p -1",
        "cat ../.env",
        "echo x > new.txt",
        "git add .; git diff",
    ]
    return text + source.choice(last)


def _in_trap(source: random.Random) -> str:
    words = _program(source)
    before = _quoted(source, _value(source)) if source.random() < 0.5 else ""
    glob = source.choice(["*", "*", "-*", "?*", '"${A[@]}"', "$A"])
    return f"cd only/{source.choice(list(ONLY))} && A=(*); {' '.join(words)} {before} {glob}"


_SHAPES: Sequence[Callable[[random.Random], str]] = (
    _simple, _simple, _simple, _simple, _simple, _loop, _loop, _assigned, _array, _braces, _runner, _found, _read,
    _tested, _builtin, _in_repository, _in_trap, _moved,
    lambda source: f"if {_simple(source)}; then {_simple(source)}; fi",
    lambda source: f"{{ {_simple(source)}; }}",
    lambda source: f"( {_simple(source)} )",
    lambda source: f"echo $({_simple(source)})",
    lambda source: f"cat <({_simple(source)})",
    lambda source: f"{_simple(source)} | {_simple(source)}",
    lambda source: f"cd {_word(source)} && {_simple(source)}",
    lambda source: f"{_simple(source)} <<E\n{_word(source)}\nE",
    lambda source: f"case {_word(source)} in {_word(source)}) {_simple(source)};; *) {_simple(source)};; esac",
    lambda source: f"{source.choice(NAMES)}() {{ {_simple(source)}; }}; {_simple(source)}",
)  # fmt: skip
