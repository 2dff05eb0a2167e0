"""Checks docs/layout.md against the descriptor that it describes.

- The table of the descriptor has each field at its offset, by the rows of src/diag/layout.def (which leave no padding:
  layout.h asserts it), one behind the other without a gap.
- It names the version of src/diag/layout.h.
- A name in the document that ends in _offset, _bytes, _count or _shift is a row.
- With --build, the descriptor in libfolio.so has that version and that length.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import house

DOCUMENT = Path("docs/layout.md")
ROWS = Path("src/diag/layout.def")
HEADER = Path("src/diag/layout.h")
LIBRARY = "libfolio.so"
MAGIC = b"FolioLay"

ROW = re.compile(r"^FOLIO_LAYOUT_(NUMBER|ADDRESS)\((\w+), ", re.MULTILINE)
TABLE = re.compile(r"^\| (\d+(?:, \d+)*) \| (.*?) \|")
NAME = re.compile(r"`(\w+)`")
NAMED = re.compile(r"`([a-z]\w*_(?:offset|bytes|count|shift))`")


def fields_of(rows: str) -> tuple[list[tuple[str, int]], int]:
    """(name, offset) of each field, and the length of all."""
    found = [("magic", 0), ("version", 8), ("bytes", 12)]
    at = 16
    for kind, name in ROW.findall(rows):
        found.append((name, at))
        at += 8 if kind == "ADDRESS" else 4
    return found, at


def check_table(lines: list[str], fields: list[tuple[str, int]], problems: house.Problems) -> None:
    """Each row of the table: offsets, then the names from the first of them on, or what comes after the last row."""
    next_field = 0
    for number, line in enumerate(lines, 1):
        match = TABLE.match(line)
        if not match:
            continue
        offsets = [int(offset) for offset in match[1].split(", ")]
        names = NAME.findall(match[2])
        here = fields[next_field : next_field + max(len(names), 1)]
        if [name for name, _ in here][: len(names)] != names:
            problems.add(DOCUMENT, number, f"the fields here are {', '.join(name for name, _ in here)}")
        elif offsets != [offset for _, offset in here][: len(offsets)]:
            problems.add(DOCUMENT, number, f"{here[0][0]} is at {here[0][1]}")
        next_field += len(names)
    if next_field == 0:
        problems.add(DOCUMENT, 1, "has no table of the descriptor")


def check_library(path: Path, version: int, length: int, problems: house.Problems) -> None:
    data = path.read_bytes()
    at = data.find(MAGIC + struct.pack("<I", version))
    if at < 0:
        problems.add(path.name, 1, f"has no descriptor of version {version}")
    elif (found := struct.unpack_from("<I", data, at + 12)[0]) != length:
        problems.add(path.name, 1, f"its descriptor has {found} bytes, not {length}")


def main() -> None:
    parser = house.parser(__doc__)
    parser.add_argument("--build", type=Path, help="a build with libfolio.so, to be checked too")
    arguments = parser.parse_args()
    problems = house.Problems()
    text = (arguments.root / DOCUMENT).read_text()
    fields, length = fields_of((arguments.root / ROWS).read_text())
    begin = text.index("## The descriptor")
    end = text.find("\n## ", begin + 1)
    before = text[:begin].count("\n")
    check_table([""] * before + text[begin : end if end >= 0 else len(text)].split("\n"), fields, problems)
    version = re.search(r"kLayoutVersion = (\d+)", (arguments.root / HEADER).read_text())
    written = re.search(r"`kLayoutVersion`, (\d+)", text)
    if not version or not written or version[1] != written[1]:
        problems.add(DOCUMENT, 1, f"does not name version {version[1] if version else '?'}")
    names = {name for name, _ in fields}
    for number, line in enumerate(text.split("\n"), 1):
        for name in NAMED.findall(line):
            if name not in names:
                problems.add(DOCUMENT, number, f"{name} is no field of the descriptor")
    if arguments.build and version:
        check_library(arguments.build / LIBRARY, int(version[1]), length, problems)
    house.finish(problems, f"the descriptor's {len(fields)} fields in {DOCUMENT}")


if __name__ == "__main__":
    main()
