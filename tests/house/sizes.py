"""Checks the size of things: files of at most 600 lines, in src 450, lines of at most 120 columns (clang-format leaves
comments alone), no work left undone. Functions of more than 60 lines are a problem in src; elsewhere they are listed,
for a second look. A folder of src has at most so many lines of code: what makes it grow beyond takes something else
out, or raises the number here, and says what the lines buy.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import house

FOLDERS = ["src", "include", "tests", "bench", "tools", "cmake", ".ci"]
FILE_LINES = 600
SOURCE_LINES = 450  # of src
FUNCTION_LINES = 60
COLUMNS = 120
# Without comments and blank lines, in the order of the layers.
FOLDER_LINES = {
    "base": 290, "arch": 210, "config": 470, "os": 1051, "sync": 120, "space": 2958, "policy": 635, "store": 2367,
    "cache": 2056, "insight": 1320, "core": 1431, "diag": 403, "api": 701,
}  # fmt: skip
UNDONE = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\([a-z])")
NO_FUNCTION = re.compile(r"\b(?:namespace|struct|class|enum|union|extern)\b[^()]*$|=\s*\{$")


def cpp_functions(text: str) -> list[tuple[int, int]]:
    """(first line, number of lines) of each outermost block that a parenthesis comes before."""
    code = house.split(text)[0]
    found: list[tuple[int, int]] = []
    opened: list[tuple[bool, int]] = []
    head = ""
    head_line = 1
    for number, line in enumerate(code, 1):
        if line.startswith("#"):
            continue
        for char in line:
            if not head.strip():
                head_line = number
            if char == "{":
                inside = any(function for function, _ in opened)
                is_function = not inside and ")" in head and not NO_FUNCTION.search(head.strip() + "{")
                opened.append((is_function, head_line))
                head = ""
            elif char == "}" and opened:
                is_function, first = opened.pop()
                if is_function:
                    found.append((first, number - first + 1))
                head = ""
            elif char == ";":
                head = ""
            else:
                head += char
        head += " "
    return found


def python_functions(text: str) -> list[tuple[int, int]]:
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(n.lineno, (n.end_lineno or n.lineno) - n.lineno + 1) for n in nodes]


def check_folders(root: Path, problems: house.Problems) -> None:
    lines = Counter[str]()
    for path in house.files(root, ["src"], house.CODE):
        lines[path.parts[1]] += sum(1 for line in house.split((root / path).read_text())[0] if line.strip())
    for folder, count in lines.items():
        if count > FOLDER_LINES.get(folder, 0):
            problems.add(f"src/{folder}", 1, f"{count} lines of code; at most {FOLDER_LINES.get(folder, 0)}")


def check(root: Path, problems: house.Problems) -> str:
    check_folders(root, problems)
    sources = house.files(root, FOLDERS, (*house.CODE, ".py", ".sh", ".cmake", ".txt"))
    for path in sources:
        text = (root / path).read_text()
        lines = text.split("\n")
        most = SOURCE_LINES if path.parts[0] == "src" else FILE_LINES
        if len(lines) - 1 > most:
            problems.add(path, 1, f"{len(lines) - 1} lines; at most {most}")
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS and "://" not in line:
                problems.add(path, number, f"{len(line)} columns; at most {COLUMNS}")
            if UNDONE.search(line) and path.parent != Path("tests/house"):
                problems.add(path, number, "work left undone, without an owner")
        functions = python_functions(text) if path.suffix == ".py" else []
        functions = cpp_functions(text) if path.suffix in house.CODE else functions
        for first, length in functions:
            if length > FUNCTION_LINES and path.parts[0] == "src":
                problems.add(path, first, f"a function of {length} lines; at most {FUNCTION_LINES}")
            elif length > FUNCTION_LINES:
                print(f"note: {path}:{first}: a function of {length} lines")
    return f"the sizes of {len(sources)} files"


if __name__ == "__main__":
    house.main(__doc__, check)
