#!/usr/bin/env python3
"""Real programs on Folio: each runs on glibc's malloc and then preloaded, and must write the same and leave the same.
A test suite, which itself says what is wrong, runs on glibc's malloc only where it says so.

    run.py --library libfolio.so             all programs that are installed
    run.py --library libfolio.so git perl    these

Status 77 if every program asked for had to be skipped.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cases import CASES, Case, Result, Skip

SKIPPED = 77

# Folio as it comes, and giving everything back at once with its own thread running, which shakes the slow paths.
VARIANTS = {
    "folio": "",
    "folio, eager": "decay:0,dirty_floor:0,thread_cache:4,cpu_cache:16,depot:16,housekeeper:on",
}


def environment_for(library: Path | None, options: str = "") -> dict[str, str]:
    """Our environment without what would make runs differ, with Folio preloaded or not."""
    dropped = ("FOLIO_", "LD_", "MALLOC_", "GIT_", "PYTHON", "LC_", "LANG", "NODE_", "PERL")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    environment |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
    environment |= {"PERL_HASH_SEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    if library:
        environment["LD_PRELOAD"] = str(library)
        environment["FOLIO_OPTIONS"] = options
    return environment


def require_preload(library: Path) -> None:
    """Stop unless the library really lands in a process: a preload that fails only warns."""
    done = subprocess.run(
        ["/bin/cat", "/proc/self/maps"], env=environment_for(library), capture_output=True, text=True, timeout=30
    )
    if str(library.resolve().name) not in done.stdout or done.stderr:
        sys.exit(f"run.py: {library} is not preloaded: {done.stderr}")


def run_variant(case: Case, library: Path | None, options: str) -> tuple[Result, float]:
    """One run in a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="folio-real-") as parent:
        directory = Path(parent)
        case.prepare(directory, environment_for(None))
        began = time.monotonic()
        result = case.run(directory, environment_for(library, options))
        return result, time.monotonic() - began


def difference(expected: Result, found: Result) -> str | None:
    """The first part that differs, with a glimpse of both."""
    for name in expected.keys() | found.keys():
        a, b = expected.get(name), found.get(name)
        if a == b:
            continue
        if not isinstance(a, bytes) or not isinstance(b, bytes):
            return f"{name}: {a!r} on glibc, {b!r} on Folio"
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        glimpse = slice(max(0, at - 80), at + 80)
        return f"{name}: byte {at}: {a[glimpse]!r} on glibc, {b[glimpse]!r} on Folio"
    return None


def failures(result: Result) -> Result:
    return {key: value for key, value in result.items() if key.endswith("status") and value != 0}


def run_case(case: Case, library: Path) -> bool | None:
    """Compare one program; None if it was skipped."""
    times = []

    def timed(name: str, preloaded: Path | None, options: str) -> Result:
        result, seconds = run_variant(case, preloaded, options)
        times.append(f"{name} {seconds:.1f} s")
        return result

    results: dict[str, Result] = {}
    try:
        case.require()
        if case.judges_itself:
            results = {variant: timed(variant, library, options) for variant, options in VARIANTS.items()}
        expected = results.get("folio")
        if expected is None or failures(expected):
            expected = timed("glibc", None, "")
    except Skip as skip:
        print(f"{case.name}: skipped: {skip}")
        return None
    # Two equal failures would compare well.
    if failed := failures(expected):
        print(f"{case.name}: FAILED on glibc's malloc, too: {failed}: {str(expected)[-2000:]}")
        return False
    for variant, options in VARIANTS.items():
        wrong = difference(expected, results.get(variant) or timed(variant, library, options))
        if wrong:
            print(f"{case.name}: FAILED ({variant}): {wrong}")
            return False
    print(f"{case.name}: same output ({', '.join(times)})")
    return True


def main() -> int:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--mariadb", action="store_true", help="also MariaDB, which takes minutes")
    parser.add_argument("case", nargs="*", choices=[*CASES, []])
    arguments = parser.parse_args()
    library = arguments.library.absolute()
    require_preload(library)
    names = arguments.case or [name for name in CASES if name != "mariadb" or arguments.mariadb]
    results = [run_case(CASES[name], library) for name in names]
    if False in results:
        return 1
    return 0 if True in results else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
