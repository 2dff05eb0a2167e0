"""Checks that every memory order says why.

- An order stronger than relaxed has a tag, on its line or in the three above: `// [edge] release: why; pairs with X`,
  whose word is the order that is used.
- An edge is named at two places at least, with a releasing and an acquiring side, and as `[edge]` in
  docs/CONCURRENCY.md, which names no edge that the code does not have.
- What a comment says an operation pairs with is a name in the code.
- A relaxed order has a comment with that word, on its line or in the three above.
- Only src/base/atomic.h names the compiler's atomics.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import house

HOME = Path("src/base/atomic.h")
DOCUMENT = Path("docs/CONCURRENCY.md")
NEAR = 3

USE = re.compile(r"\border::(relaxed|acquire|release|acq_rel|seq_cst)\b")
RAW = re.compile(r"\b(__atomic_\w+|__sync_\w+|__ATOMIC_\w+|memory_order\w*|std::atomic\w*)")
TAG = re.compile(r"\[([a-z][a-z0-9-]*)\] (relaxed|acquire|release|acq_rel|seq_cst)\b")
PAIR = re.compile(r"pairs with ([^.;]*)")
NAME = re.compile(r"\b[A-Za-z]\w*(?:::|_)\w+")
RELEASING = {"release", "acq_rel", "seq_cst"}
ACQUIRING = {"acquire", "acq_rel", "seq_cst"}

Places = dict[str, list[tuple[Path, int, str]]]


def check_file(root: Path, path: Path, edges: Places, problems: house.Problems) -> int:
    code, comments = house.split((root / path).read_text())
    uses = 0
    for i, line in enumerate(code):
        for edge, order in TAG.findall(comments[i]):
            edges[edge].append((path, i + 1, order))
        if path == HOME:
            continue
        if raw := RAW.search(line):
            problems.add(path, i + 1, f"{raw[1]} outside {HOME}")
        near = "\n".join(comments[max(0, i - NEAR) : i + 1])
        for order in USE.findall(line):
            uses += 1
            if order == "relaxed":
                if "relaxed" not in near.lower():
                    problems.add(path, i + 1, "relaxed, and no comment near says why")
            elif order not in {tagged for _, tagged in TAG.findall(near)}:
                problems.add(path, i + 1, f"{order} without a tag near: // [edge] {order}: why; pairs with X")
    return uses


def check_edges(edges: Places, problems: house.Problems) -> None:
    for edge, places in sorted(edges.items()):
        path, line, _ = places[0]
        orders = {order for _, _, order in places}
        if len(places) < 2:
            problems.add(path, line, f"[{edge}] is named only here")
        elif not orders & RELEASING:
            problems.add(path, line, f"[{edge}] has no releasing side")
        elif not orders & ACQUIRING:
            problems.add(path, line, f"[{edge}] has no acquiring side")


def check_pairs(root: Path, sources: list[Path], problems: house.Problems) -> None:
    split = {path: house.split((root / path).read_text()) for path in sources}
    words = {word for code, _ in split.values() for line in code for word in re.findall(r"\w+", line)}
    for path, (_, comments) in split.items():
        for number, line in enumerate(comments, 1):
            for name in NAME.findall(" ".join(PAIR.findall(line))):
                if not words.issuperset(name.split("::")):
                    problems.add(path, number, f"pairs with {name}, which is not in the code")


def check_document(root: Path, edges: Places, problems: house.Problems) -> None:
    lines = (root / DOCUMENT).read_text().split("\n")
    named = {
        edge: number for number, line in enumerate(lines, 1) for edge in re.findall(r"`\[([a-z][a-z0-9-]*)\]`", line)
    }
    for edge in sorted(named.keys() - edges.keys()):
        problems.add(DOCUMENT, named[edge], f"`[{edge}]` is no edge of the code")
    for edge in sorted(edges.keys() - named.keys()):
        problems.add(DOCUMENT, 1, f"does not explain `[{edge}]`")


def check(root: Path, problems: house.Problems) -> str:
    edges: Places = defaultdict(list)
    sources = house.files(root, ["src"], house.CODE)
    uses = sum(check_file(root, path, edges, problems) for path in sources)
    check_edges(edges, problems)
    check_pairs(root, sources, problems)
    if (root / DOCUMENT).is_file():
        check_document(root, edges, problems)
    else:
        problems.add(DOCUMENT, 1, "is missing")
    return f"{uses} memory orders on {len(edges)} edges"


if __name__ == "__main__":
    house.main(__doc__, check)
