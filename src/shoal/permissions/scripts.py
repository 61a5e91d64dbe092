"""Scripts that stand among a command's words: which of sed, awk, jq and yq are known to run and write nothing."""

import re
from functools import cache

# Some seds let a delimiter stand between brackets, others end the pattern there: a script has to be plain both ways, or
# an error the other way. `{0}` is the delimiter.
_SED_TEXT = r"(?:\\[^\n]|[^{0}\\\n])*"
_SED_BRACKETS = r"\[\^?\]?(?:\[[:.=][a-z]+[:.=]\]|[^\]\n\\\[]|\[(?![:.=])|\\[^\]\n])*\]"
_SED_WITH_BRACKETS = rf"(?:\\[^\n]|{_SED_BRACKETS}|[^{{0}}\\\n\[])*"
_DELIMITERS = (r"/", r"\|", "#", ",", ":", "@", "!", "%", "~", "_", ";")


def _sed(pattern: str) -> re.Pattern[str]:
    """What plain scripts look like, with patterns that are written like this."""
    address = rf"(?:[0-9]+(?:~[0-9]+)?|\$|/{pattern.format('/')}/[IM]*|[+~][0-9]+)"
    replacing = "|".join(
        rf"[sy]{mark}{pattern.format(mark)}{mark}{_SED_TEXT.format(mark)}{mark}[gpIiMm0-9]*" for mark in _DELIMITERS
    )
    text = r"[aic](?:\\\n|\\? ?)[^\n\\]*"
    command = rf"(?:[pPdDgGhHxnNlz=]|[qQ][0-9]*|[btT] ?[A-Za-z0-9_]*|:[A-Za-z0-9_]+|{replacing}|\{{|\}}|{text})"
    addressed = rf"[\s;]*(?:{address}(?:,\s*{address})?\s*!?\s*)?{command}[ \t]*(?=[;\n}}]|$|(?<=\{{))"
    return re.compile(rf"(?:{addressed})*[\s;]*")


@cache
def _sed_safe() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compiled when the first script is read: that takes 8 ms."""
    return _sed(_SED_TEXT), _sed(_SED_WITH_BRACKETS)


_SED_ERROR = re.compile(r"\s*[0-9,$]*\s*s([/|#,:@])(?:(?:\\.|(?!\1)[^\\\n])*\1){2}[^gpiIMmew0-9\s;}#]")
_AWK_HIDES = re.compile(r"@|system|extension|getline|ARGV|ARGC|PROCINFO|ENVIRON|SYMTAB|FUNCTAB")
_YQ_HIDES = re.compile(r"load|env|system|exec|eval")


def sed_is_plain(script: str) -> bool:
    """Whether a sed script only prints, deletes, inserts and replaces; others can run commands and use other files."""
    ends_at_once, allows_brackets = (safe.fullmatch(script) is not None for safe in _sed_safe())
    return allows_brackets and (ends_at_once or _SED_ERROR.match(script) is not None)


def awk_is_plain(program: str) -> bool:
    """Whether an awk program runs nothing and opens no file: `>` and `|` stand before any `print`, so they compare."""
    before_print = re.split(r"print", program, maxsplit=1)
    rest = before_print[1] if len(before_print) > 1 else ""
    return not (_AWK_HIDES.search(program) or re.search(r"[|>]", rest.replace("||", "")))


def jq_reads_more(script: str) -> bool:
    """Whether a jq filter reads files of its own, or all of the environment."""
    return re.search(r"\b(?:import|include|modulemeta)\b|(?<![.\w])env\b|\$ENV\b", script) is not None


def yq_is_plain(script: str) -> bool:
    """Whether a yq expression stays with the files it is given."""
    return _YQ_HIDES.search(script) is None
