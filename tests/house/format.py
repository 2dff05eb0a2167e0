"""Checks that C and C++ are as clang-format writes them; --fix writes them so.

Versions of clang-format differ in what they do: the one of Debian 12 counts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import house

FOLDERS = ["src", "include", "tests", "bench", "tools"]

if __name__ == "__main__":
    parser = house.parser(__doc__)
    parser.add_argument("--fix", action="store_true", help="format the files")
    arguments = parser.parse_args()
    program = shutil.which("clang-format-14") or shutil.which("clang-format")
    if program is None:
        sys.exit("there is no clang-format: make check installs it")
    sources = [str(p) for p in house.files(arguments.root, FOLDERS, (".h", ".hpp", ".c", ".cc"))]
    mode = ["-i"] if arguments.fix else ["--dry-run", "-Werror", "--ferror-limit=1"]
    problems = house.Problems()
    result = subprocess.run([program, *mode, *sources], cwd=arguments.root, capture_output=True, text=True)
    for path, line in re.findall(r"^(\S+?):(\d+):\d+: error: ", result.stderr, re.MULTILINE):
        problems.add(path, int(line), "not as clang-format writes it: make format")
    if result.returncode != 0 and not problems.lines:
        sys.exit(result.stderr)
    house.finish(problems, f"the format of {len(sources)} files")
