"""Runs clang-tidy over src, as .clang-tidy says, with the compile commands of a clang build."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import house

FINDING = re.compile(r"^(\S+:\d+):\d+: (?:warning|error): ", re.MULTILINE)


Command = dict[str, str]  # an entry of compile_commands.json


def defined(command: Command) -> frozenset[str]:
    return frozenset(re.findall(r" -D(FOLIO_\w+)", command["command"]))


def headers_read(command: Command) -> set[Path]:
    words = shlex.split(command["command"])
    listing = [*words[: words.index("-o")], "-MM", command["file"]]
    listed = subprocess.run(listing, cwd=command["directory"], capture_output=True, text=True, check=True).stdout
    return {Path(word) for word in listed.replace("\\\n", " ").split()}


def commands(build: Path, root: Path) -> list[Command]:
    """One for each source, which up to five libraries compile. What they define makes another text only of what names
    it: so one more for each source that does, and for each header one source that reads it."""
    source = root / "src"
    of_source = [
        command
        for command in json.loads((build / "compile_commands.json").read_text())
        if Path(command["file"]).is_relative_to(source)
    ]
    first: dict[str, Command] = {}
    for command in of_source:
        first.setdefault(command["file"], command)
    headers = {path: path.read_text() for path in source.rglob("*.h")}
    unread = {(name, path) for c in of_source for name in defined(c) for path in headers if name in headers[path]}
    again = []
    for command in of_source:
        names = defined(command)
        named = any(name in Path(command["file"]).read_text() for name in names)
        wanted = {(name, path) for name, path in unread if name in names}
        read = {(name, path) for name, path in wanted if path in headers_read(command)} if wanted else set()
        unread -= read
        if (named or read) and names != defined(first[command["file"]]):
            again.append(command)
    return [*first.values(), *again]


def tidy(root: Path, command: Command) -> list[str]:
    """The findings, each with its notes. One in a header comes again with each file that includes it."""
    # With the file named, one that cannot be read is an error; looked for, it is passed over.
    config = f"--config-file={root / '.clang-tidy'}"
    # It would take all commands that the build has for the file.
    with tempfile.TemporaryDirectory() as only:
        (Path(only) / "compile_commands.json").write_text(json.dumps([command]))
        words = ["clang-tidy", "--quiet", "--warnings-as-errors=*", config, "-p", only, command["file"]]
        result = subprocess.run(words, capture_output=True, text=True)
    text = result.stdout.replace(f"{root}/", "")
    bounds = [*(match.start() for match in FINDING.finditer(text)), len(text)]
    found = [text[start:end].strip() for start, end in pairwise(bounds)]
    if result.returncode and not found:
        return [f".clang-tidy:1: clang-tidy does not run with it\n{result.stderr.strip()}"]
    return [FINDING.sub(r"\1: ", finding, count=1).replace(",-warnings-as-errors]", "]") for finding in found]


if __name__ == "__main__":
    parser = house.parser(__doc__)
    parser.add_argument("--build", type=Path, default=house.PROJECT / "build-clang", help="a build by clang")
    arguments = parser.parse_args()
    if shutil.which("clang-tidy") is None:
        sys.exit("there is no clang-tidy: make check installs it")
    found = house.Problems()
    chosen = commands(arguments.build, arguments.root)
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda command: tidy(arguments.root, command), chosen)
        found.lines = sorted({finding for part in parts for finding in part})
    house.finish(found, f"{len({c['file'] for c in chosen})} files under clang-tidy")
