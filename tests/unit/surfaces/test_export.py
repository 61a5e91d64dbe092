"""Formulas in an exported conversation."""

import re

import pytest

from shoal.kernel.ids import ThreadId
from shoal.surfaces.export import HtmlWriter, formula_html

THREAD = ThreadId("web:main:t1")


def test_formulas_are_mathml_in_html() -> None:
    said = HtmlWriter(THREAD, "").said("agent", "now", "so $a^2$ and\n\n$$\\frac{1}{2}$$\n\nit costs $5", ())
    assert "<msup><mi>a</mi><mn>2</mn></msup>" in said
    assert 'display="block"' in said
    assert "$a^2$" not in said
    assert "it costs $5" in said


@pytest.mark.parametrize(
    "formula",
    [
        r"\text{<img src=x onerror=alert(1)>}", r"\href{javascript:alert(1)}{x}", r"\style{color:red}{x}",
        r"\text{&lt;script&gt;}", r"\color{\"onload=1}{x}", "<script>x</script>", r"\frac{a}", "x_", "{" * 100,
        "a" * 5000, r"\left(", r"\begin{align}", r"\frac" * 200, r"\class{x}{y}", r"\id{x}{y}", "&", "]]>", "--><b>",
    ],
)  # fmt: skip
def test_a_formula_contains_only_mathml(formula: str) -> None:
    made = formula_html(formula, is_block=False)
    assert not re.search(r"<(?!/?m[a-z]+[ />])|<[^>]*\b(?:href|style|on\w+|class|id)=", made)
