"""A `printf` format that Shoal considers safe never sets a variable in bash."""

import random
import subprocess

from tests.unit.shell.test_options_programs import is_opaque

from shoal.shell.words import quote


def test_a_format_considered_safe_sets_no_variable() -> None:
    """Bash itself is the oracle: it shows which of thousands of random formats set a variable."""
    source = random.Random(1)
    alphabet = [*"%%%%%nnnnnll", *"hjlLtzqsdbTwxZ-+ #0'.*5$()\\", "\\x25", "\\045", "\\x6e"]
    formats = ["x" + "".join(source.choice(alphabet) for _ in range(source.randint(1, 7))) for _ in range(6000)]
    known = [form for form in formats if not is_opaque(f"printf {quote(form)} A A A")]
    lines = "".join(f"A=no; printf {quote(form)} A A A > /dev/null 2>&1; echo $A\n" for form in formats)
    lines_printed = subprocess.run(["bash"], input=lines, capture_output=True, text=True, check=True).stdout.split("\n")
    setting = {form for form, value in zip(formats, lines_printed, strict=False) if value != "no"}
    assert len(setting) > 100
    assert len(known) > 1000
    assert not setting & {*known}
