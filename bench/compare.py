#!/usr/bin/env python3
"""Puts a program of yours through the laboratory: Folio and all peers, interleaved rounds, intervals, tables, HTML."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

from applications import user_program
from measure import BenchError, end_with
from run import add_arguments, complete, laboratory

SHELL_WORDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prog", metavar="COMMAND", help="the command, split as a shell does")
    add_arguments(parser)
    parser.set_defaults(quick=False)
    arguments = complete(parser.parse_args(), parser)
    if arguments.report:
        return laboratory(arguments, [], "")
    try:
        words = shlex.split(arguments.prog or "")
    except ValueError as error:
        raise BenchError(f"cannot split PROG={arguments.prog!r}: {error}") from None
    if not words:
        raise BenchError('which program? make compare PROG="COMMAND ..."')
    if found := next((word for word in words if word in SHELL_WORDS), None):
        raise BenchError(f'"{found}" needs a shell: make compare PROG="sh -c \'...\'"')
    return laboratory(arguments, [user_program(words)], "next: COMPARE='--rounds 15' for narrower intervals")


if __name__ == "__main__":
    end_with(main, "bench/compare.py")
