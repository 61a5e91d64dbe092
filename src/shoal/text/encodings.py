"""Detects the encoding of a text file, so an edit can preserve it.

A byte order mark determines the encoding. Without one, UTF-8 is tried first, and then UTF-16, which is recognized by
the positions of its zero bytes. Otherwise, each of the older encodings below decodes a sample. The most plausible
result is chosen: one that has letters that are frequent in the encoding's languages, no change of case or script within
a word, and no control characters. If no result is plausible, mostly ASCII data counts as UTF-8 with wrong bytes, and
other data is not text.

The same bytes always have the same result. charset-normalizer is wrong for a third of the short texts that agents read,
such as names, tables and comments.
"""

import codecs
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

SAMPLE_BYTES = 65_536
"""Number of bytes examined at the start of a file."""
JUDGED_BYTES = 2048
"""Number of bytes that are decoded to detect a legacy encoding, starting at the line with the first byte that is not
valid UTF-8.
"""
SCORE_MIN = 0.4
"""Minimum mean plausibility of the non-ASCII bytes, on a scale from about -2 to 1."""
MOSTLY_ASCII = 0.85
"""Minimum share of ASCII bytes at which a file with almost no control characters counts as UTF-8 with invalid bytes."""
UNITS_MIN = 8
"""Minimum number of characters at which data with few ASCII characters counts as UTF-16 without a byte order mark."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f\b\x1b") + b"\x7f"
_MARKS_OF_TEXT = "‘’‚“”„«»‹›–—…•·°§©®™€£№×±²³µ¿¡ªº¼½¾÷\u00a0"
_LABELS = {
    "utf-8": "UTF-8", "utf-16-le": "UTF-16 LE", "utf-16-be": "UTF-16 BE", "utf-32-le": "UTF-32 LE",
    "utf-32-be": "UTF-32 BE", "cp1252": "Windows-1252", "latin-1": "ISO-8859-1", "cp1250": "Windows-1250",
    "cp1251": "Windows-1251", "koi8-r": "KOI8-R", "cp866": "CP866", "cp1253": "Windows-1253", "cp1254": "Windows-1254",
    "cp1255": "Windows-1255", "cp1256": "Windows-1256", "gb18030": "GB18030 (GBK)", "big5hkscs": "Big5",
    "cp932": "Shift-JIS", "euc-jp": "EUC-JP", "cp949": "EUC-KR", "mac-roman": "Mac Roman", "cp850": "CP850",
    "cp874": "Windows-874",
}  # fmt: skip


class TextEncoding(NamedTuple):
    """A codec, and the byte order mark that precedes the text."""

    codec: str = "utf-8"
    mark: bytes = b""

    @property
    def label(self) -> str:
        return _LABELS[self.codec] + (" with a byte order mark" if self.mark else "")

    def decode(self, data: bytes) -> str:
        """Decode bytes. Invalid bytes become lone surrogates, which `encode` converts back."""
        return data[len(self.mark) :].decode(self.codec, _errors(self.codec))

    def encode(self, text: str) -> bytes:
        """Encode text and prepend the byte order mark. Raises UnicodeEncodeError for a character that the encoding does
        not contain.
        """
        return self.mark + text.encode(self.codec, _errors(self.codec))


def find_encoding(data: bytes) -> TextEncoding | None:
    """Detect the encoding of a file's content. Return None if the content is not text."""
    sample = data[:SAMPLE_BYTES]
    for mark, codec in _MARKS:
        if sample.startswith(mark) and (is_utf(data, codec, len(mark)) or codec == "utf-8"):
            return TextEncoding(codec, mark)
    if b"\0" in sample:
        text_found = _without_mark(sample)
        return text_found if text_found is not None and is_utf(data, text_found.codec) else None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=len(sample) < SAMPLE_BYTES)
    except UnicodeDecodeError as error:
        whole = sample[: error.start].decode()
        judged = sample[sample.rfind(b"\n", 0, error.start) + 1 :][:JUDGED_BYTES]
        text = _decoded(judged, "utf-8") or ""
        wrong = sum("\udc80" <= char <= "\udcff" for char in text)
        right = sum(char > "\x7f" for char in (*text, *whole)) - wrong
        if right <= 2 * wrong:
            return _legacy(sample, judged)
    return TextEncoding()


def read_text(data: bytes) -> str | None:
    encoding = find_encoding(data)
    return None if encoding is None else readable(encoding.decode(data))


def readable(text: str) -> str:
    """Replace lone surrogates, which represent invalid bytes in a decoded text, with replacement characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if not is_whole(text) else text


_TYPOGRAPHIC = str.maketrans("‘’‚‛“”„‟‐‑‒–—−", "''''\"\"\"\"------")


def plain_text(text: str) -> str:
    """Normalize text for comparison: plain letters, spaces, quotes and dashes, and no trailing white space."""
    return unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC).rstrip()


def is_whole(text: str) -> bool:
    """Return True if a decoded text contains no invalid bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_utf(data: bytes, codec: str, start: int = 0) -> bool:
    """Return True if all of the data is valid in a Unicode encoding and contains no null character."""
    try:
        text = data[start:].decode(codec)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _errors(codec: str) -> str:
    return "strict" if codec.startswith(("utf-16", "utf-32")) else "surrogateescape"


def _decoded(sample: bytes, codec: str) -> str | None:
    decoder = codecs.getincrementaldecoder(codec)(_errors(codec))
    try:
        return decoder.decode(sample, final=len(sample) not in (SAMPLE_BYTES, JUDGED_BYTES))
    except UnicodeError:
        return None


def _without_mark(sample: bytes) -> TextEncoding | None:
    """Detect UTF-16 without a byte order mark. In ASCII characters, one of the two bytes is always zero."""
    even, odd = sample[::2], sample[1::2]
    if even.count(0) and odd.count(0):
        return None
    codec, zeros = ("utf-16-le", odd.count(0)) if odd.count(0) else ("utf-16-be", even.count(0))
    if len(sample) % 2 and len(sample) < SAMPLE_BYTES:
        return None
    text = _decoded(sample, codec)
    if not text or any(_is_odd(char) for char in text):
        return None
    if zeros * 3 >= len(odd) or (len(text) >= UNITS_MIN and not {"\n", " "}.isdisjoint(text)):
        return TextEncoding(codec)
    return None


def _is_odd(char: str) -> bool:
    return char not in "\t\n\r\f" and unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs")


# ---- older encodings ----


class _Script(NamedTuple):
    """A single-byte encoding.

    `frequent`: letters that are frequent in its languages.
    `latin`: whether its words may contain ASCII letters.
    """

    codec: str
    frequent: str
    latin: bool = False


_RUSSIAN = "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъёієїґ"
_SCRIPTS = (
    _Script("cp1252", "äöüßéèêëàâáíóúñçåøæôîïûùãõìò", latin=True),
    _Script("cp1250", "áčďéěíňóřšťúůýžąćęłńóśźżőűâăîșțşţđ", latin=True),
    _Script("cp1254", "çğıöşüâîİ", latin=True),
    _Script("mac-roman", "äöüßéèêëàâáíóúñçåøæôîïûùãõìò", latin=True),
    _Script("cp850", "äöüßéèêëàâáíóúñçåøæôîïûùãõìò", latin=True),
    _Script("cp1251", _RUSSIAN),
    _Script("koi8-r", _RUSSIAN),
    _Script("cp866", _RUSSIAN),
    _Script("cp1253", "αοιετσνηυρκπμλωάόίέήύώθδγφχβξζψς"),
    _Script("cp1255", "יוהלאתרבשמםנחדקעפכטןגסזצךץף"),
    _Script("cp1256", "ابتثجحخدذرزسشصضطظعغفقكلمنهويةىأإآءؤئ"),
    _Script("cp874", "กขคงจชซญดตถทธนบปผฝพฟมยรลวศษสหอฮะาำิีึืุูเแโใไ่้๊๋์ั"),
)


class _Syllabary(NamedTuple):
    """An encoding with two bytes per character.

    `leads` is the range of lead bytes that common characters have in the codec `usual`.
    """

    codec: str
    frequent: frozenset[str]
    usual: str
    leads: tuple[int, int]
    kana: float = -1.0
    hangul: float = -1.0


_SIMPLIFIED = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事"
    "成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心本前开但因只从想实日军者意无力它与长把机十民第公此已"
    "工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内"
    "信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少"
    "报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放"
    "强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运笔测试检"
    "查编码文件注释显示输入出错误姓名城市京张李王赵四"
)
_TRADITIONAL = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡用道行所然家種事"
    "成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心本前開但因只從想實日軍者意無力它與長把機十民第公此已"
    "工使情明性知全三又關點正業外將兩高間由問很最重並物手應戰向頭文體政美相見被利什二等產或新己制身果加西月話合回特代內信"
    "表化老給世位次度門任常先海通教兒原東聲提立及比員解水名真論處走義各入幾口認條平系氣題活更別打女變四神總何電數安少報才"
    "結反受目太量再感建務做接必場件計管期市直資命山金指許統區保至隊形社便空決治展馬科司五基眼書非則聽白卻界達光放強即像難"
    "測試檔案檢查編碼顯示輸錯誤姓台灣"
)
_JAPANESE = (
    "日本人一大年中会国出上分生見行手自時間前後子的下方何今私学高新小東京地場合名市都山田語文字事使用確認表示書電話気思言"
    "来入力変更設定問題社員月火水木金土回目口力作成動物全部開始終了説明情報"
)
_KOREAN = (
    "이다는을의에가고하지은도를로한서기사그있어인나자리라시아으대만수제해전정부일과들게보었것우주여장안면구상니까요지원스러비"
    "공내동성생년진말오소조모개세때무경문신방학당치유용실화국마방식파테트확위된적거데할없음여했습합까녕계"
)
_SYLLABARIES = (
    _Syllabary("gb18030", frozenset(_SIMPLIFIED), "gb2312", (0xB0, 0xD7)),
    _Syllabary("cp932", frozenset(_JAPANESE), "euc-jp", (0xB0, 0xCF), kana=1.0),
    _Syllabary("euc-jp", frozenset(_JAPANESE), "euc-jp", (0xB0, 0xCF), kana=1.0),
    _Syllabary("big5hkscs", frozenset(_TRADITIONAL), "big5", (0xA4, 0xC6)),
    _Syllabary("cp949", frozenset(_KOREAN), "euc-kr", (0xA1, 0xA1), hangul=0.4),
)


def _legacy(sample: bytes, judged: bytes) -> TextEncoding | None:
    if len(sample) - len(sample.translate(None, _CONTROLS)) > len(sample) // 200:
        return None
    high = len(sample.translate(None, bytes(range(128))))
    best, score = "", SCORE_MIN
    for codec, rate in _judges() if high > 1 else _judges()[:1]:
        text = _decoded(judged, codec)
        if text is not None and (rating := _mean(text, codec, rate)) > score:
            best, score = codec, rating
    if best:
        return TextEncoding(best)
    return TextEncoding() if high <= len(sample) * (1 - MOSTLY_ASCII) else None


_Rate = Callable[[str, str, str], float]


@cache
def _judges() -> tuple[tuple[str, _Rate], ...]:
    letters = [(script.codec, _letter_rate(script)) for script in _SCRIPTS]
    return (*letters[:1], *((syllabary.codec, _character_rate(syllabary)) for syllabary in _SYLLABARIES), *letters[1:])


def _mean(text: str, codec: str, rate: _Rate) -> float:
    """Return the mean plausibility of the non-ASCII characters, weighted by their length in bytes."""
    wide = 1 if codec in _SINGLE else 2
    total = weight = 0.0
    padded = f" {text} "
    for place, char in enumerate(text, 1):
        if char > "\x7f":
            size = 1 if "\uff61" <= char <= "\uff9f" or "\udc80" <= char <= "\udcff" else wide
            total += size * rate(char, padded[place - 1], padded[place + 1])
            weight += size
    return total / weight if weight else 0.0


_SINGLE = frozenset(script.codec for script in _SCRIPTS)


def _letter_rate(script: _Script) -> _Rate:
    step = 0.0 if script.latin else 0.5 / len(script.frequent)
    weights = {char: 1.0 - step * place for place, char in enumerate(script.frequent)}
    capitals = frozenset(script.frequent.upper())
    usual = 1.0 if script.codec == "cp1252" else 0.6

    def rate(char: str, before: str, after: str) -> float:
        if "\udc80" <= char <= "\udcff" or _is_odd(char):
            return -3.0
        is_letter = char in weights or char in capitals
        if not is_letter:
            if char not in _MARKS_OF_TEXT:
                return -1.5
            return -1.0 if before.isalpha() and after.isalpha() and char != "’" else usual
        score = weights.get(char, 0.5)
        if char.isupper() and before.islower():
            score -= 1.5
        if script.latin:
            score -= 0.4 * (before > "\x7f" and before.isalpha())
            score -= 0.4 * (char.isupper() and before.isupper() and after.islower())
        else:
            score -= 1.0 * ((before.isascii() and before.isalpha()) + (after.isascii() and after.isalpha()))
        return score

    return rate


def _character_rate(syllabary: _Syllabary) -> _Rate:
    @cache
    def of(char: str) -> float:
        if char in syllabary.frequent:
            return 1.0
        if "\u3040" <= char <= "\u30ff":
            return 0.8 if char in "ーー・" and syllabary.kana > 0 else syllabary.kana
        if "\uac00" <= char <= "\ud7a3":
            return syllabary.hangul
        if char in "、。，！？：；「」『』（）《》【】“”‘’…—～·　":
            return 0.8
        if "\uff01" <= char <= "\uff5e":
            return 0.4
        if "\uff61" <= char <= "\uff9f":
            return 0.5 if syllabary.kana > 0 else -1.0
        if "\udc80" <= char <= "\udcff" or _is_odd(char):
            return -3.0
        try:
            lead = char.encode(syllabary.usual)[0]
        except UnicodeEncodeError:
            return -0.9
        first, last = syllabary.leads
        return 0.5 if first <= lead <= last else -0.5

    def rate(char: str, before: str, after: str) -> float:
        return of(char) - 0.15 * ((before.isascii() and before.isalpha()) + (after.isascii() and after.isalpha()))

    return rate
