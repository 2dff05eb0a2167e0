"""Proves that a check can fail: runs it on a copy of its tree in samples/, which is wrong in known ways.

    selftest.py CHECK [--build DIR]

Each line of the sample's expected.txt must be printed, and no other; without that file, a failure is enough. The
symbols check has no sample: it is shown the libraries of the build under each other's names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import house

HERE = Path(__file__).parent
SWAPPED = {
    "libfolio.so:1: lacks malloc",
    "libfolio.so:1: SONAME is not libfolio.so.0",
    "libfolio-embed.so:1: has malloc, which is not in the list",
    "libfolio-embed.so:1: needs static TLS: dlopen may fail",
    "libfolio.o:1: lacks operator new(unsigned long)",
    "libfolio.so:1: has folio_malloc, which only tests call",
}


def run_check(name: str, *options: str | Path) -> tuple[int, set[str]]:
    command = [sys.executable, HERE / f"{name}.py", *options]
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    print(result.stdout, result.stderr, sep="")
    return result.returncode, {line for line in result.stdout.split("\n") if ":" in line and ": note:" not in line}


def expect(status: int, missing: set[str], extra: set[str]) -> None:
    for line in sorted(missing):
        print(f"not found: {line}")
    for line in sorted(extra):
        print(f"not expected: {line}")
    if status != 1 or missing or extra:
        sys.exit("the check does not find what is wrong with its sample")
    print("the check finds what is wrong with its sample")


def test_symbols(build: Path, scratch: Path) -> None:
    (scratch / "libfolio.so").symlink_to(build / "libfolio-embed.so")
    (scratch / "libfolio-embed.so").symlink_to(build / "libfolio.so")
    (scratch / "libfolio.o").symlink_to(build / "libfolio-embed.so")
    (scratch / "sample_check.cc.o").symlink_to(build / "libfolio.o")
    subprocess.run(["ar", "rc", scratch / "libfolio-core.a", scratch / "sample_check.cc.o"], check=True)
    status, found = run_check("symbols", "--build", scratch)
    expect(status, SWAPPED - found, set())


def test_sample(name: str, scratch: Path) -> None:
    shutil.copytree(HERE / "samples" / name, scratch, dirs_exist_ok=True)
    for settings in (".clang-format", ".clang-tidy", "ruff.toml"):
        shutil.copy(house.PROJECT / settings, scratch)
    options: list[str | Path] = ["--root", scratch]
    if name == "tidy":
        source = scratch / "src/core/bad.cc"
        entry = {"directory": str(scratch), "file": str(source), "command": f"clang++ -c {source}"}
        (scratch / "compile_commands.json").write_text(json.dumps([entry]))
        options += ["--build", scratch]
    status, found = run_check(name, *options)
    expected = scratch / "expected.txt"
    wanted = set(expected.read_text().strip().split("\n")) if expected.exists() else found
    expect(status, wanted - found, found - wanted)
    if name == "tidy":
        # One that clang-tidy cannot read: left to itself it goes on with checks of its own.
        (scratch / ".clang-tidy").write_text("Checks: [\n")
        status, found = run_check(name, *options)
        expect(status, {".clang-tidy:1: clang-tidy does not run with it"} - found, set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check")
    parser.add_argument("--build", type=Path, default=house.PROJECT / "build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if arguments.check == "symbols":
            test_symbols(arguments.build.resolve(), Path(directory))
        else:
            test_sample(arguments.check, Path(directory))
