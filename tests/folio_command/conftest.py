"""Programs on Folio to look at. Paths come from the environment that CMakeLists.txt sets; by hand, from build/."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from folio.cli import main

os.environ["COLUMNS"] = "80"
ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("FOLIO_TEST_LIBRARY", ROOT / "build/libfolio.so")).resolve()
HEAP = Path(os.environ.get("FOLIO_TEST_HEAP", ROOT / "build/tests/folio_command/folio_command_heap"))
os.environ["FOLIO_LIBRARY"] = str(LIBRARY)
STATIC = Path(os.environ.get("FOLIO_TEST_STATIC", ROOT / "build/tests/folio_command/folio_command_static"))


def environment(library: Path | None, options: str = "") -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FOLIO_", "LD_", "PYTHON"))}
    clean |= {"LC_ALL": "C.UTF-8", "PYTHONMALLOC": "malloc"}
    return clean | {"FOLIO_OPTIONS": options} | ({"LD_PRELOAD": str(library)} if library else {})


@contextmanager
def running(command: list[str], library: Path | None = LIBRARY, options: str = "") -> Iterator[subprocess.Popen]:
    """A program that waits for its standard input to end."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(library, options)
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def heap(*words: str, options: str = "", program: Path = HEAP) -> Iterator[tuple[int, dict[str, Any]]]:
    """heap.cc in one of its forms: its process, and what it says of itself."""
    with running([str(program), *words], None if program == STATIC else LIBRARY, options) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())


def folio(*words: str | Path, **more: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, with `more` in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "folio", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=environment(None) | {"FOLIO_LIBRARY": str(LIBRARY), "COLUMNS": "80"} | more,
    )


def folio_here(*words: str | Path) -> subprocess.CompletedProcess:
    """The same in this process, without the start of an interpreter."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["folio", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(sys.argv, left.value.code, out.getvalue(), err.getvalue())


def folio_json(*words: str | Path) -> dict[str, Any]:
    done = folio_here(*words, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


PYTHON_WORK = """
import json
kept = [json.dumps(list(range(n % 300))) for n in range(20000)]
del kept[::3]
print("{}", flush=True)
input()
"""


@pytest.fixture
def python_process() -> Iterator[int]:
    """The system's python3, after some work."""
    with running(["/usr/bin/python3", "-c", PYTHON_WORK]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
