#!/usr/bin/env python3
"""Writes the lists of names in tools/folio/layout.py and docs/reader.py from the rows of src/diag/layout.def.

Without arguments both are brought up to date; with --check nothing is written, and the exit status is 1 if one is not.
A name that ends with * is an address, of 8 bytes; the others are numbers of 4.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROWS = Path("src/diag/layout.def")
LISTS = {Path("tools/folio/layout.py"): "LISTED", Path("docs/reader.py"): "FIELDS"}

ROW = re.compile(r"^FOLIO_LAYOUT_(NUMBER|ADDRESS)\((\w+), .*\)$", re.MULTILINE)


def names_of(rows: str) -> list[str]:
    names = [name + ("*" if kind == "ADDRESS" else "") for kind, name in ROW.findall(rows)]
    if len(names) != len(re.findall(r"^\w", rows, re.MULTILINE)):
        sys.exit(f"{ROWS}: a row is of a form that tools/layout_lists.py does not know")
    return names


def with_names(text: str, variable: str, names: list[str]) -> str:
    begin, end = f'{variable} = """', '"""'
    before, found, rest = text.partition(begin)
    if not found or end not in rest:
        sys.exit(f"no {begin}...{end} in the file")
    wrapped = "\n".join(textwrap.wrap(begin + " ".join(names), 118, break_on_hyphens=False))
    return before + wrapped + rest[rest.index(end) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=PROJECT, help="the tree")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a list is out of date")
    arguments = parser.parse_args()
    names = names_of((arguments.root / ROWS).read_text(encoding="utf-8"))
    for relative, variable in LISTS.items():
        path = arguments.root / relative
        text = path.read_text(encoding="utf-8")
        wanted = with_names(text, variable, names)
        if text != wanted and arguments.check:
            sys.exit(f"{relative} is out of date: run tools/layout_lists.py")
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
        print(f"{relative} has the {len(names)} rows of {ROWS}")


if __name__ == "__main__":
    main()
