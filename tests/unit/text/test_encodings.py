"""Text in older encodings is decoded, binary data stays binary, and bytes outside an edit are unchanged."""

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.text.encodings import TextEncoding, find_encoding, read_text

LATIN = ("café", "Müller und Söhne – „Größe“", "Prix : 12,50 € à payer avant l’été", "name;ort\nJörg;Köln\n",
         "¿qué más? El niño comió jamón", "smart “quotes” — done", "© 2024 A license", "über")  # fmt: skip
RUSSIAN = ("Привет, мир", "Имя;Город\nИван;Москва\n", "Съешь же ещё этих мягких французских булок")
CHINESE = ("你好", "你好，世界", "姓名,城市\n张三,北京\n", "# 注释：测试\nprint('你好')\n")
JAPANESE = ("日本語", "名前,都市\n山田,東京\n", "これはテストファイルです。", "# コメント: テスト\nx = 1\n")
TEXTS = {
    "cp1252": LATIN, "cp1251": RUSSIAN, "koi8-r": RUSSIAN, "cp866": RUSSIAN[:1], "gb18030": CHINESE, "cp932": JAPANESE,
    "euc-jp": JAPANESE[1:], "big5hkscs": ("你好，世界", "這是一個測試檔案"),
    "cp949": ("안녕하세요 세계", "테스트 파일입니다"),
    "cp1250": ("Příliš žluťoučký kůň", "Zażółć gęślą jaźń"), "cp1253": ("Καλημέρα κόσμε",),
    "cp1255": ("שלום עולם, זה קובץ בדיקה",),
    "cp1256": ("مرحبا بالعالم",), "mac-roman": ("Café crème à l'hôtel",), "cp850": ("Größe: 5 m",),
    "utf-16-le": ("hello\n", "你好世界\n这是测试", "Привет мир"), "utf-16-be": ("hello\n", "Müller"),
}  # fmt: skip


@pytest.mark.parametrize(("codec", "text"), [(codec, text) for codec, texts in TEXTS.items() for text in texts])
def test_a_legacy_encoding_is_detected_even_in_a_short_text(codec: str, text: str) -> None:
    assert read_text(text.encode(codec)) == text


@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@given(text=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1))
def test_a_byte_order_mark_decides(codec: str, text: str) -> None:
    data = f"\ufeff{text}".encode(codec)
    encoding = find_encoding(data)
    assert encoding is not None
    assert (encoding.codec, encoding.decode(data), encoding.encode(text)) == (codec, text, data)


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_utf_8_is_detected(text: str) -> None:
    assert find_encoding(text.encode()) in (TextEncoding(), TextEncoding("utf-8", b"\xef\xbb\xbf"))


def test_binary_data_stays_binary() -> None:
    noise = random.Random(7)
    blobs = [noise.randbytes(size) for size in (64, 300, 5000) for _ in range(100)]
    blobs += [zlib.compress(blob) for blob in blobs[:50]] + [
        gzip.compress(b"text" * 99),
        b"\x7fELF\0\0",
        b"a\0b",
    ]
    assert [blob for blob in blobs if find_encoding(blob)] == []


def test_a_stray_byte_in_utf_8_is_shown_and_kept() -> None:
    data = "Grüße, ça va, żółć".encode() + b" \xff end"
    encoding = find_encoding(data)
    assert encoding == TextEncoding()
    assert read_text(data) == "Grüße, ça va, żółć \ufffd end"
    assert encoding.encode(encoding.decode(data)) == data


def test_a_long_text_is_judged_where_it_stops_being_ascii() -> None:
    assert read_text(b"# comment\n" * 2000 + "größer\n".encode("cp1252")) == "# comment\n" * 2000 + "größer\n"
