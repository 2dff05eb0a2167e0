"""Runs clang-tidy over src, as .clang-tidy says, with the compile commands of a clang build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import house


def sources(build: Path, root: Path) -> list[str]:
    commands = json.loads((build / "compile_commands.json").read_text())
    return sorted({c["file"] for c in commands if Path(c["file"]).is_relative_to(root / "src")})


def tidy(build: Path, source: str) -> tuple[int, str]:
    command = ["clang-tidy", "--quiet", "--warnings-as-errors=*", "-p", str(build), source]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode, result.stdout


if __name__ == "__main__":
    parser = house.parser(__doc__)
    parser.add_argument("--build", type=Path, default=house.PROJECT / "build-clang", help="a build by clang")
    arguments = parser.parse_args()
    if shutil.which("clang-tidy") is None:
        sys.exit("there is no clang-tidy: make check installs it")
    found = house.Problems()
    paths = sources(arguments.build, arguments.root)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for status, output in pool.map(lambda path: tidy(arguments.build, path), paths):
            found.lines += [output.strip()] if status else []
    house.finish(found, f"{len(paths)} files under clang-tidy")
