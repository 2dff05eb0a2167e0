#!/usr/bin/env python3
"""Writes the table of docs/options.md from the rows of src/config/options.def.

Without arguments the document is brought up to date; with --check nothing is written, and the exit status is 1 if it is
not. Only what stands between the two marker lines is made; the rest of the document is written by hand.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROWS = Path("src/config/options.def")
DOCUMENT = Path("docs/options.md")
BEGIN = "<!-- begin: made by tools/options_doc.py from src/config/options.def -->"
END = "<!-- end -->"

ROW = re.compile(r"^FOLIO_(ENUM|SIZE|LIMIT|PATH)\((.*?)\)\s*$", re.MULTILINE | re.DOTALL)
ARGUMENT = re.compile(r'((?:"(?:\\.|[^"\\])*"\s*)+|[^,"]+?)\s*(?:,\s*|$)', re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\])*"')


@dataclass(frozen=True)
class Option:
    """A row: its name, and the cells of the table as people read them."""

    name: str
    default: str
    values: str
    help: str


def arguments_of(text: str) -> list[str]:
    """The arguments of a row; neighbouring string literals are one, as in C."""
    found = []
    for match in ARGUMENT.finditer(text.strip()):
        pieces = STRING.findall(match[1])
        found.append("".join(ast.literal_eval(piece) for piece in pieces) if pieces else match[1].strip())
    return found


def option_of(kind: str, text: str) -> Option:
    if kind == "ENUM":
        name, default, values, help_text = arguments_of(text)
        names = values.split("|")
        return Option(name, names[int(default)], ", ".join(f"`{each}`" for each in names), help_text)
    if kind == "LIMIT":
        name, help_text = arguments_of(text)
        return Option(name, "0", "bytes, `N%`, `cgroup`", help_text)
    if kind == "PATH":
        name, help_text = arguments_of(text)
        return Option(name, "none", "a path", help_text)
    name, default, least, most, unit, help_text = arguments_of(text)
    return Option(name, f"{default} {unit}", f"{least} to {most}", help_text)


def read_options(root: Path) -> list[Option]:
    text = re.sub(r"^//.*$", "", (root / ROWS).read_text(encoding="utf-8"), flags=re.MULTILINE)
    options = [option_of(kind, arguments) for kind, arguments in ROW.findall(text)]
    if len(options) != len(re.findall(r"^FOLIO_", text, re.MULTILINE)):
        sys.exit(f"{ROWS}: a row is of a form that tools/options_doc.py does not know")
    return options


def table_of(options: list[Option]) -> str:
    lines = ["| option | default | values | what it does |", "| --- | --- | --- | --- |"]
    lines += [f"| `{o.name}` | {o.default} | {o.values} | {o.help} |" for o in options]
    return "\n".join(lines)


def with_table(document: str, table: str) -> str:
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{DOCUMENT} lacks the lines between which the table stands:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path, default=PROJECT, help="the tree")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the document is out of date")
    arguments = parser.parse_args()
    path = arguments.root / DOCUMENT
    options = read_options(arguments.root)
    document = path.read_text(encoding="utf-8")
    wanted = with_table(document, table_of(options))
    if document == wanted:
        print(f"{DOCUMENT} has the {len(options)} rows of {ROWS}")
    elif arguments.check:
        sys.exit(f"{DOCUMENT} is out of date: run tools/options_doc.py")
    else:
        path.write_text(wanted, encoding="utf-8")
        print(f"{DOCUMENT}: wrote {len(options)} rows")


if __name__ == "__main__":
    main()
