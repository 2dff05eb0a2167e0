"""How commands speak: tables on stdout, colours on a terminal only, one line for what comes next."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDTH_MOST = 110
FOLDED_LEAST = 12


class Output(Console):
    def on_broken_pipe(self) -> None:
        """In place of an end with status 1, which may have a meaning of its own: `cli.main` knows what it is."""
        raise BrokenPipeError

    def print(self, *objects: Any, **how: Any) -> None:
        """Numbers are whole: where the terminal is too narrow for a table, its lines go on below."""
        if len(objects) == 1 and isinstance(objects[0], Table) and (least := self.least(objects[0])) > self.width:
            before, self._width = self._width, least
            super().print(*objects, **how)
            self._width = before
        else:
            super().print(*objects, **how)

    def least(self, made: Table) -> int:
        """Columns that need."""
        wide = self.options.update(max_width=WIDTH_MOST)
        found = 0
        for column in made.columns:
            most = max(Measurement.get(self, wide, each).maximum for each in (column.header, *column.cells))
            found += (most if column.no_wrap else min(most, FOLDED_LEAST)) + made.padding[1]
        return found


# What a terminal would obey, of the names of programs, files and functions: control characters but newline and tab.
CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


def plain(text: str) -> str:
    return text.translate(CONTROLS)


console = Output(highlight=False, soft_wrap=False)
messages = Output(stderr=True, highlight=False)


def size(count: float) -> str:
    """Bytes as people read them: three or four digits."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            shown = count / scale
            return f"{sign}{shown:.{2 if shown < 10 and unit == 'GiB' else 1 if shown < 1000 else 0}f} {unit}"
    return f"{sign}{count:.0f} B"


def share(part: float, whole: float) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if abs(percent) >= 0.05 or part == 0 else "< 0.1 %"


def bar(part: float, whole: float, width: int) -> str:
    """Eighths of a cell."""
    eighths = round(8 * width * max(part, 0) / whole) if whole else 0
    full, rest = divmod(min(eighths, 8 * width), 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def say(text: str, style: str = "") -> None:
    console.print(Text(plain(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """To stderr, so that what is piped stays clean."""
    messages.print(Text(plain(text)), soft_wrap=True)


def note_new_program(pid: int, command: str) -> None:
    """Where a process is looked at again and again, and runs another program now."""
    note(f"process {pid} began another program (exec): {one_line(command, 60)}; what is shown begins there")


def indented(text: str, by: int, style: str = "") -> None:
    width = max(min(console.width, WIDTH_MOST), 40)
    lines = textwrap.wrap(text, width, initial_indent=" " * by, subsequent_indent=" " * by, break_long_words=False)
    say("\n".join(lines), style)


def next_command(text: str) -> None:
    say(f"\nnext: {text}", "dim")


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def plain_text(cell: Any) -> Any:
    """A cell as it is meant: names are no markup either. What is not text is left as it is."""
    if isinstance(cell, str):
        return Text(plain(cell))
    if isinstance(cell, Text):
        cell.plain = plain(cell.plain)  # as long as before: its styles stay where they are
    return cell


class PlainTable(Table):
    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*map(plain_text, cells), **how)


def table(*columns: str, left: int = 1, gap: int = 2) -> Table:
    """Columns named by their headings; the first `left` ones are text, the rest numbers."""
    made = PlainTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(escape(column), justify="left" if i < left else "right", no_wrap=True)
    return made


def let_wrap(made: Table, *columns: int) -> None:
    """Names go on in another line where there is no room: else numbers are cut, and look like other ones."""
    for i in columns:
        made.columns[i].no_wrap, made.columns[i].overflow = False, "fold"


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def one_line(text: str, most: int = 79) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
