"""Reduce a command's output to its final state on a terminal, without progress bars and colors."""

from shoal.kernel import lazy_re

ROWS_UP_MAX = 500
"""Number of rows above the last one that the cursor can reach, about the height of a tall terminal."""
COLUMNS_MAX = 400
"""Rightmost column to which a control sequence can move the cursor."""
_MOVES = lazy_re.compile(r"[\x08\x1b\x9b]|\r(?!\n)")
_TOKEN = lazy_re.compile(
    r"(?:\x1b\[|\x9b)([0-9;:?<=>]{0,64})[ -/]{0,8}([@-~])"  # a control sequence
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?"  # a title, a link or another string
    r"|\x1b[ -/]{0,8}[0-~]?"
    r"|[\r\n\x08]"
)


def last_state(text: str) -> str:
    """Return the text that remains on a terminal of unlimited width. Runs in linear time."""
    if _MOVES.search(text) is None:
        return text
    return _Screen().show(text)


class _Screen:
    """Rows of characters. Only the last ROWS_UP_MAX rows can change."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._rows: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    def show(self, text: str) -> str:
        at = 0
        for match in _TOKEN.finditer(text):
            self._write(text[at : match.start()])
            at = match.end()
            match match.group():
                case "\n":
                    self._down(1)
                    self._column = 0
                case "\r":
                    self._column = 0
                case "\x08":
                    self._column = max(0, self._column - 1)
                case _ if match[2]:
                    self._move(match[1], match[2])
                case _:
                    pass
        self._write(text[at:])
        return "\n".join((*self._done, *("".join(row).rstrip(" ") if row else "" for row in self._rows)))

    def _write(self, text: str) -> None:
        if text:
            row = self._rows[self._row]
            if len(row) < self._column:
                row += " " * (self._column - len(row))
            row[self._column : self._column + len(text)] = text
            self._column += len(text)

    def _down(self, count: int) -> None:
        for _ in range(min(count, ROWS_UP_MAX)):
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append([])
        if len(self._rows) > 2 * ROWS_UP_MAX:
            gone = len(self._rows) - ROWS_UP_MAX
            if self._row >= gone:
                self._done += ("".join(row).rstrip(" ") for row in self._rows[:gone])
                del self._rows[:gone]
                self._row -= gone

    def _move(self, numbers: str, letter: str) -> None:
        first = numbers.split(";", maxsplit=1)[0]
        count = int(first) if first.isdecimal() and len(first) < 6 else 0
        steps, row = max(count, 1), self._rows[self._row]
        match letter:
            case "A" | "F":
                self._row = max(0, self._row - steps, len(self._rows) - ROWS_UP_MAX)
                self._column = 0 if letter == "F" else self._column
            case "B" | "E":
                self._row = min(self._row + steps, len(self._rows) - 1)
                self._column = 0 if letter == "E" else self._column
            case "C":
                self._column = min(self._column + steps, COLUMNS_MAX)
            case "D":
                self._column = max(0, self._column - steps)
            case "G":
                self._column = min(steps - 1, COLUMNS_MAX)
            case "K" if count == 1:
                columns = min(self._column + 1, len(row))
                row[:columns] = " " * columns
            case "K":
                del row[0 if count == 2 else self._column :]
            case "J" if count == 0:
                del row[self._column :]
                del self._rows[self._row + 1 :]
            case "P":
                del row[self._column : self._column + steps]
            case _:
                pass
