#!/usr/bin/env python3
"""Runs the programs with a life of their own (early.c, only_libc.c, stats_dump.c) and compares what they print."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 300
SMALL_BYTES = 20000 * 600  # what stats_dump.c holds and has written to
LIVE_BYTES = SMALL_BYTES + (10 << 20) + 50000
STATS_FIELDS = [
    *("live", "cached", "dirty", "resident", "huge_live", "metadata", "reserved"),
    *("chunks", "threads", "purged", "purge_calls", "busy_sections"),
]

EARLY_STAGES = [
    "preinit good",
    "constructor 101 good",
    "constructor good",
    "main good",
    "after main thread good",
    "atexit good",
    "destructor good",
    "destructor 101 good",
]
EARLY_STATUS = 7


def run(program: Path, *arguments: str, preload: Path | None = None, status: int = 0) -> tuple[str, str]:
    """Stdout and stderr of a program that must end with the given status."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOLIO_")}
    if preload:
        environment["LD_PRELOAD"] = str(preload)
    done = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    require(done.returncode == status, f"status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def require(holds: object, what: str) -> None:
    """End with a message unless `holds`."""
    if not holds:
        sys.exit(f"FAILED: {what}")


def check_early(program: Path, preload: Path | None) -> None:
    """All stages, in order, with every object intact."""
    stdout, stderr = run(program, preload=preload, status=EARLY_STATUS)
    require(stdout.splitlines() == EARLY_STAGES, stdout)
    require(stderr == "", stderr)


def check_only_libc(program: Path, preload: Path | None) -> None:
    """Everything that the libc allocated came from Folio."""
    stdout, stderr = run(program, preload=preload)
    require(len(stdout.splitlines()) >= 6, stdout)
    require(all(line.endswith(" 1") for line in stdout.splitlines()), stdout)
    require(stderr == "", stderr)


def check_json(program: Path, preload: Path | None) -> None:
    """One JSON object with every field of folio_stats, and figures that fit the program."""
    stdout, _ = run(program, "json", preload=preload)
    document = json.loads(stdout)
    require(isinstance(document, dict), "one object")
    found: dict[str, int] = {}

    def collect(node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    found.setdefault(key, value)
                collect(value)

    collect(document)
    for field in STATS_FIELDS:
        require(field in found, f"no field {field}: {stdout}")
        require(found[field] >= 0, f"{field} is {found[field]}")
    require(LIVE_BYTES <= found["live"] <= LIVE_BYTES * 1.2 + (1 << 20), f"live is {found['live']}")
    require(found["huge_live"] >= 10 << 20, f"huge_live is {found['huge_live']}")
    require(found["threads"] == 2, f"threads is {found['threads']}")
    require(found["reserved"] >= found["live"], "reserved is less than live")
    require(found["pid"] > 0, "a process has a number")
    require(document["program"] == str(program.resolve()), document["program"])
    with tempfile.TemporaryDirectory() as folder:
        odd = Path(shutil.copy(program, Path(folder, 'a"b\\c\n\u00e4' + "x" * 130)))
        require(json.loads(run(odd, "json", preload=preload)[0])["program"] == str(odd.resolve()), "names are escaped")
        first = run(odd, "text", preload=preload)[0].splitlines()[1]
        require(re.fullmatch(r"  process [1-9]\d*: \.\.\.x{70}", first), first)


def check_text(program: Path, preload: Path | None) -> None:
    """One screen of plain lines."""
    stdout, _ = run(program, "text", preload=preload)
    lines = stdout.splitlines()
    require(3 <= len(lines) <= 50 and max(map(len, lines)) <= 120, stdout)
    require(stdout.isascii() and stdout.endswith("\n"), stdout)
    _, stderr = run(program, "malloc_stats", preload=preload)
    require(stderr.endswith("\n"), "malloc_stats writes to stderr")


def check_xml(program: Path, preload: Path | None) -> None:
    """The malloc_info schema of glibc."""
    stdout, _ = run(program, "xml", preload=preload)
    root = ET.fromstring(stdout)
    require(root.tag == "malloc" and root.get("version") == "1", stdout)
    heaps = root.findall("heap")
    require(heaps and heaps[0].get("nr") == "0", "a heap with the number 0")
    for parent in (*heaps, root):
        for kind, tag, attributes in (
            ("fast", "total", ("count", "size")),
            ("rest", "total", ("count", "size")),
            ("current", "system", ("size",)),
            ("max", "system", ("size",)),
            ("total", "aspace", ("size",)),
            ("mprotect", "aspace", ("size",)),
        ):
            nodes = [node for node in parent.findall(tag) if node.get("type") == kind]
            require(len(nodes) == 1, f"one <{tag} type={kind}> in <{parent.tag}>: {stdout}")
            require(all((nodes[0].get(name) or "").isdigit() for name in attributes), stdout)
    mapped = [node for node in root.findall("total") if node.get("type") == "mmap"]
    require(len(mapped) == 1 and int(mapped[0].get("size") or 0) >= 10 << 20, f"the huge object: {stdout}")
    current = next(node for node in root.findall("system") if node.get("type") == "current")
    require(
        int(current.get("size") or 0) >= SMALL_BYTES, "system bytes cover the small objects, which were all touched"
    )


CHECKS: dict[str, Callable[[Path, Path | None], None]] = {
    "early": check_early,
    "only_libc": check_only_libc,
    "json": check_json,
    "text": check_text,
    "xml": check_xml,
}


def main() -> None:
    """Run one check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("program", type=Path)
    parser.add_argument("--preload", type=Path)
    arguments = parser.parse_args()
    CHECKS[arguments.check](arguments.program, arguments.preload)


if __name__ == "__main__":
    main()
