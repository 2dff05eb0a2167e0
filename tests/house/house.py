"""What the house checks share: the files of the project, comments told from code, and how a problem is reported.

A check is a program `NAME.py [--root DIR]` that prints one line for each problem, `path:line: what`, and exits with 1
if there was any. selftest.py runs each of them on a tree in samples/ that is wrong in known ways.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SAMPLES = Path("tests/house/samples")
CODE = (".h", ".hpp", ".c", ".cc", ".def")


class Problems:
    """Collects what a check finds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: Path | str, line: int, what: str) -> None:
        self.lines.append(f"{path}:{line}: {what}")


def files(root: Path, folders: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    """Files below the folders of root, relative to it, sorted; the samples of bad code are left out."""
    found = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            if path.suffix in suffixes and path.is_file() and not relative.is_relative_to(SAMPLES):
                found.append(relative)
    return sorted(found)


TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL)


def split(text: str) -> tuple[list[str], list[str]]:
    """The lines of C or C++ twice: code alone (literals emptied), and comments alone."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    def code(match: re.Match[str]) -> str:
        return blank(match) if match[0][0] == "/" else match[0][0] + blank(match)[1:-1] + match[0][-1]

    comments = []
    at = 0
    for match in TOKEN.finditer(text):
        comments.append(re.sub(r"[^\n]", " ", text[at : match.start()]))
        comments.append(match[0] if match[0][0] == "/" else blank(match))
        at = match.end()
    comments.append(re.sub(r"[^\n]", " ", text[at:]))
    return TOKEN.sub(code, text).split("\n"), "".join(comments).split("\n")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The arguments that every check has."""
    result = argparse.ArgumentParser(description=doc)
    result.add_argument("--root", type=Path, default=PROJECT, help="the tree to check")
    return result


def finish(problems: Problems, checked: str) -> None:
    """Ends the program with what was found."""
    for line in problems.lines:
        print(line)
    if problems.lines:
        print(f"{len(problems.lines)} problems in {checked}")
        sys.exit(1)
    print(f"no problems in {checked}")


def main(doc: str | None, check: Callable[[Path, Problems], str]) -> None:
    """The whole program of a check that needs nothing but the tree; `check` says what it looked at."""
    arguments = parser(doc).parse_args()
    problems = Problems()
    finish(problems, check(arguments.root, problems))
