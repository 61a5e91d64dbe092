"""The table of platforms and cases is complete and matches the latest run of the contract suite."""

import ast
import re

from tests.platform_table import EXAMPLE, HOLDS, PAGE, PLATFORMS, ROOT, cases, page, read

SUITE = re.compile(r"^class (Test\w+)\(ChatContract\)", re.MULTILINE)
ASK = "run: python -m tests.platform_table new"


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, read()), "run: python -m tests.platform_table page"


def test_every_case_was_tried_on_every_platform() -> None:
    results = read()
    assert list(results) == list(PLATFORMS), ASK
    assert {name: sorted(outcomes) for name, outcomes in results.items()} == dict.fromkeys(
        PLATFORMS, sorted(cases())
    ), ASK
    assert all(reason for outcomes in results.values() for reason in outcomes.values())
    assert all(HOLDS in outcomes.values() for outcomes in results.values())


def test_every_suite_belongs_to_a_platform() -> None:
    files = [*(ROOT / "tests/contracts").glob("test_chat_*.py"), EXAMPLE / "tests/test_contract.py"]
    found = {suite for file in files for suite in SUITE.findall(file.read_text(encoding="utf-8"))}
    assert found - {"TestFakeChat"} == {suite for suites in PLATFORMS.values() for suite in suites}


def test_every_stored_reason_is_given_by_the_suite() -> None:
    """A reason that the suite no longer contains comes from an older run."""
    reasons = {
        node.value
        for file in (ROOT / "src/shoal/testing/contracts").glob("chat*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    stored = {reason for outcomes in read().values() for reason in outcomes.values()} - {HOLDS}
    assert stored <= reasons, ASK
