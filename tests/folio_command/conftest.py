"""Programs on Folio to look at. Paths come from the environment that CMakeLists.txt sets; by hand, from build/."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer.main
from folio.cli import main
from folio.parts import Parts, explain
from folio.reader import Reader

os.environ["COLUMNS"] = "80"
ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("FOLIO_TEST_LIBRARY", ROOT / "build/libfolio.so")).resolve()
HEAP = Path(os.environ.get("FOLIO_TEST_HEAP", ROOT / "build/tests/folio_command/folio_command_heap"))
os.environ["FOLIO_LIBRARY"] = str(LIBRARY)
STATIC = Path(os.environ.get("FOLIO_TEST_STATIC", ROOT / "build/tests/folio_command/folio_command_static"))
PLANTED = Path(os.environ.get("FOLIO_TEST_PLANTED", ROOT / "build/tests/folio_command/folio_command_planted"))
PLANTED_STATIC = PLANTED.with_name("folio_command_planted_static")
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium-headless-shell")
BUILT = ROOT / "build/tests/folio_command"
OPENER = Path(os.environ.get("FOLIO_TEST_OPENER", BUILT / "folio_command_opener"))
PLUGIN = Path(os.environ.get("FOLIO_TEST_PLUGIN", BUILT / "libfolio_command_plugin.so"))
OWN = Path(os.environ.get("FOLIO_TEST_OWN", BUILT / "libfolio_command_own.so"))

STILL = "decay:3600000,housekeeper:off,dirty_floor:1000"  # nothing is given back by itself

# The command's tree of options is the same each time that `main` is called here, and takes 20 ms to make.
typer.main.get_command = functools.cache(typer.main.get_command)

SYMBOLIC = Path(os.environ.get("FOLIO_TEST_SYMBOLIC", BUILT / "libfolio_command_symbolic.so"))


def environment(library: Path | None, options: str = "") -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FOLIO_", "LD_", "PYTHON"))}
    clean |= {"LC_ALL": "C.UTF-8", "PYTHONMALLOC": "malloc"}
    return clean | {"FOLIO_OPTIONS": options} | ({"LD_PRELOAD": str(library)} if library else {})


def eventually(question: Callable[[], Any]) -> Any:
    """The first answer that is true: however busy the machine is, it comes within a minute."""
    end = time.monotonic() + 60
    while not (answer := question()):
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.02)
    return answer


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


def line_of(process: subprocess.Popen) -> str:
    """What it says, once it waits: on its way from the line to there it touches more pages."""

    def read() -> tuple[str, str]:
        time.sleep(0.002)
        of = Path(f"/proc/{process.pid}")
        return (of / "stat").read_text().rpartition(")")[2].split()[0], (of / "statm").read_text()

    assert process.stdout is not None
    line = process.stdout.readline()
    eventually(lambda: (first := read())[0] == "S" and read() == first)
    return line


def exact(reader: Reader) -> Parts:
    """A look whose parts sum to RSS, but for 1 %; where the program grew while it was read, there is another."""
    for _ in range(20):
        parts = explain(reader)
        if abs(parts.unexplained) <= 0.01 * parts.rss:
            break
    return parts


def kill(pid: int) -> None:
    """Ends a child and waits until it has no memory any more; it is not reaped."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def stop(pid: int) -> None:
    """Stops it and waits until all its threads stand."""

    def states() -> set[str]:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats}

    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: states() == {"T"})


def gcore(pid: int, folder: Path) -> Path:
    """A core file of a process that goes on; the test is skipped where there is no gcore, or it may not trace."""
    if shutil.which("gcore") is None:
        pytest.skip("no gcore: apt-get install gdb")
    done = subprocess.run(["gcore", "-o", folder / "gcore", str(pid)], capture_output=True, text=True, timeout=300)
    if "ptrace" in done.stderr:
        pytest.skip("gcore may not trace here")
    core = folder / f"gcore.{pid}"
    # Most of it are zeros: less to write to the disk, where the file system can. To copy it: `copied`.
    subprocess.run(["fallocate", "--dig-holes", core], capture_output=True, check=False)
    return core


def copied(file: Path, target: Path) -> Path:
    """With holes in place of zeros."""
    subprocess.run(["cp", "--sparse=always", file, target], check=True)
    return target


def figures(target: int | Path, *, by_account: bool = False) -> dict[str, Any]:
    """All figures of doctor and bins, but for how long it took."""
    found = asdict(explain(Reader(target if isinstance(target, int) else str(target)), by_account=by_account))
    del found["seconds"]
    return found


@contextmanager
def heap(*words: str, options: str = "", program: Path = HEAP) -> Iterator[tuple[int, dict[str, Any]]]:
    """heap.cc in one of its forms: its process, and what it says of itself."""
    with running([str(program), *words], None if program in (STATIC, PLANTED_STATIC) else LIBRARY, options) as process:
        yield process.pid, json.loads(line_of(process))


@contextmanager
def stopped_heap(*words: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same, and it stands still."""
    with heap(*words, options=STILL) as (pid, known):
        stop(pid)
        yield pid, known


def folio(*words: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, with `more` in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "folio", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
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


def one_line(done: subprocess.CompletedProcess, *texts: str) -> str:
    """What a command said that failed: one line, with these in it."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    for text in texts:
        assert text in done.stderr
    return done.stderr


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
        line_of(process)
        yield process.pid
