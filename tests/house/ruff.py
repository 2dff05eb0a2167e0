"""Runs ruff over all Python, lint and format, as ruff.toml says.

Uses the ruff of build/venv, which tools/bootstrap.sh makes for `make check`.
"""

from __future__ import annotations

import subprocess
import sys

import house

if __name__ == "__main__":
    parser = house.parser(__doc__)
    parser.add_argument("--fix", action="store_true", help="format the files")
    arguments = parser.parse_args()
    program = house.PROJECT / "build/venv/bin/ruff"
    if not program.exists():
        sys.exit("there is no build/venv/bin/ruff: make check installs it")
    lint = [program, "check", "--no-cache", *(["--fix"] if arguments.fix else []), "."]
    layout = [program, "format", "--no-cache", *([] if arguments.fix else ["--check"]), "."]
    statuses = [subprocess.run(command, cwd=arguments.root).returncode for command in (lint, layout)]
    sys.exit(1 if any(statuses) else 0)
