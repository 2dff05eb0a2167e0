"""Starting a program on an allocator, and what the kernel counts of it. Also the laboratory's (bench/measure.py).

A preload that the loader cannot find or use is only worth a warning to it; the program then runs on the libc's malloc.
So nothing here trusts LD_PRELOAD: `prove_loaded` looks at the map of a process, folio.proof at the loader's bindings.
Only Python's own modules: what measures needs no more than that.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from folio.errors import FolioError

LAUNCH_C = Path(__file__).with_name("launch.c")
LAUNCH_PY = Path(__file__).with_name("launch.py")


@dataclass(frozen=True)
class Allocator:
    """A name and the library to preload; no library is the libc's own malloc."""

    name: str
    library: Path | None
    environment: tuple[tuple[str, str], ...] = ()  # what it needs there to run as its authors mean it to

    @property
    def preload(self) -> str:
        return "-" if self.library is None else str(self.library)


def same_file(a: str | Path, b: str | Path) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def is_libc(path: str) -> bool:
    return os.path.basename(path).startswith(("libc.so", "libc-", "ld-musl"))


def serves(allocator: Allocator, malloc_path: str) -> bool:
    """Whether a malloc that came from the file `malloc_path` is this allocator's."""
    if allocator.library is None:
        return is_libc(malloc_path)
    return same_file(malloc_path, allocator.library)


def compiler(language: str) -> str:
    variable, names = {"c": ("CC", ["cc", "gcc", "clang"]), "c++": ("CXX", ["c++", "g++", "clang++"])}[language]
    for name in [os.environ.get(variable, ""), *names]:
        if name and shutil.which(name):
            return name
    raise FolioError(f"no {language} compiler: apt-get install g++, or set {variable}")


def is_stale(target: Path, sources: list[Path]) -> bool:
    return not target.exists() or any(s.stat().st_mtime >= target.stat().st_mtime for s in sources)


def compile_to(target: Path, command: list[str]) -> None:
    """Runs `command -o target` so that an interrupted build leaves no half-written program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    result = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
    if result.returncode != 0:
        raise FolioError(f"cannot build {target.name}: {' '.join(command)}\n{result.stderr.rstrip()}")
    partial.replace(target)


def build_launcher(out_dir: Path) -> Path:
    target = out_dir / "launch"
    if is_stale(target, [LAUNCH_C]):
        command = [compiler("c"), "-std=c11", "-O2", str(LAUNCH_C)]
        try:
            compile_to(target, [*command, "-static"])
        except FolioError:  # no static libc here: a little more resident, and small programs are reported with it
            compile_to(target, command)
    return target


def find_launcher(out_dir: Path) -> tuple[Path, bool]:
    """The launcher, and whether it is the small one: without a C compiler a Python program does the same."""
    try:
        return build_launcher(out_dir), True
    except FolioError:
        return LAUNCH_PY, False


@dataclass
class Run:
    """One run of a program: what the kernel counted, and what the program said."""

    usage: dict
    stdout: bytes
    stderr: bytes

    @property
    def status(self) -> int:
        return self.usage["status"]


def started_by(launcher: Path) -> list[str]:
    return [sys.executable, "-I", "-S", str(launcher)] if launcher.suffix == ".py" else [str(launcher)]


def launch(
    launcher: Path,
    allocator: Allocator,
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    timeout: float | None = None,
) -> Run:
    """Runs `command` on `allocator`. Raises FolioError if it cannot be started or does not end in time."""
    with tempfile.TemporaryDirectory(prefix="folio-bench-") as scratch:
        report = Path(scratch) / "report.json"
        process = subprocess.Popen(
            [*started_by(launcher), str(report), allocator.preload, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What a killed program leaves among temporary files goes with them.
            env={**os.environ, "TMPDIR": scratch, **dict(allocator.environment), **(environment or {})},
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException as error:
            if process.returncode is None:  # on Ctrl-C, communicate may have seen its end already
                os.killpg(process.pid, signal.SIGKILL)  # the session of this run only
                process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise FolioError(f"{command[0]} on {allocator.name}: not done after {timeout:.0f} s") from None
            raise
        text = report.read_text() if report.exists() else ""
        if not text:
            reason = stderr.decode(errors="replace").strip() or f"exit status {process.returncode}"
            raise FolioError(f"cannot run {reason.splitlines()[-1].removeprefix('launch: ')}")
        return Run(json.loads(text), stdout, stderr)


def maps_hold(maps: str, library: Path) -> bool:
    """Whether a /proc/PID/maps text has a mapping of the file `library`."""
    wanted = os.path.realpath(library)
    return any(line.rstrip().endswith(" " + wanted) for line in maps.splitlines())


def prove_loaded(launcher: Path, allocator: Allocator) -> None:
    """Raises FolioError unless a process started on `allocator` has its library in its map."""
    if allocator.library is None:
        return
    if not allocator.library.is_file():
        raise FolioError(f"{allocator.name}: no file {allocator.library}")
    run = launch(launcher, allocator, ["cat", "/proc/self/maps"], timeout=30)
    if run.status != 0:
        raise FolioError(f"{allocator.name}: `cat` under {allocator.library} exits with status {run.status}")
    if not maps_hold(run.stdout.decode(errors="replace"), allocator.library):
        reason = run.stderr.decode(errors="replace").strip().splitlines()
        raise FolioError(f"{allocator.name}: not loaded: {reason[0] if reason else allocator.library}")
