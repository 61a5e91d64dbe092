"""The spoken form of an answer."""

from shoal.markdown.spoken import speakable


def test_spoken_text_has_no_marks_code_or_addresses() -> None:
    text = "# Tides\n\n**High** at [six](https://example.org/t), `low` at noon:\n\n- one\n- two\n\n"
    text += "```py\nx = 1\n```\n\n|a|b|\n|-|-|\n|1|2|\n"
    assert speakable(text, 1000) == "Tides.\n\nHigh at six, low at noon:\n\none\ntwo"
    assert speakable("One sentence. Another sentence.", 20) == "One sentence."
