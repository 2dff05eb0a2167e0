"""Runs clang-tidy over src, as .clang-tidy says, with the compile commands of a clang build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import house

FINDING = re.compile(r"^(\S+:\d+):\d+: (?:warning|error): ", re.MULTILINE)


def sources(build: Path, root: Path) -> list[str]:
    commands = json.loads((build / "compile_commands.json").read_text())
    return sorted({c["file"] for c in commands if Path(c["file"]).is_relative_to(root / "src")})


def tidy(build: Path, root: Path, source: str) -> list[str]:
    """The findings, each with its notes. One in a header comes again with each file that includes it."""
    # With the file named, one that cannot be read is an error; looked for, it is passed over.
    config = f"--config-file={root / '.clang-tidy'}"
    command = ["clang-tidy", "--quiet", "--warnings-as-errors=*", config, "-p", str(build), source]
    result = subprocess.run(command, capture_output=True, text=True)
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
    paths = sources(arguments.build, arguments.root)
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda path: tidy(arguments.build, arguments.root, path), paths)
        found.lines = sorted({finding for part in parts for finding in part})
    house.finish(found, f"{len(paths)} files under clang-tidy")
