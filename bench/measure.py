"""What bench/run.py, bench/instructions.py and tools/try.py share: building a program, starting it under an allocator.

A preload that the loader cannot find or use is only worth a warning to it; the program then runs on glibc's malloc.
So nothing here trusts LD_PRELOAD: `prove_loaded` looks at the map of a process, and each benchmark program names the
file that its malloc came from.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "bench" / "programs"

# -fno-plt: a call of malloc goes straight to it, as it does inside a statically linked program, not through a stub.
CXX_FLAGS = ["-std=c++20", "-O2", "-fno-plt", "-pthread", "-Wall", "-Wextra", "-Wshadow"]


class BenchError(Exception):
    """Something the user must know, in one line."""


@dataclass(frozen=True)
class Allocator:
    """A name and the library to preload; no library is the libc's own malloc."""

    name: str
    library: Path | None
    environment: tuple[tuple[str, str], ...] = ()  # what it needs there to run as its authors mean it to

    @property
    def preload(self) -> str:
        return "-" if self.library is None else str(self.library)


# Where bench/peers/build_peers.py leaves the newest versions of the peers, and their files there.
BUILT = ROOT / "build" / "peers"
BUILT_PEERS = {
    "jemalloc": "libjemalloc5.so",
    "mimalloc2": "libmimalloc2.so",
    "mimalloc3": "libmimalloc3.so",
    "snmalloc": "libsnmalloc.so",
    "rpmalloc": "librpmalloc.so",
    "tcmalloc-google": "libtcmalloc-google.so",
}

# The kernel takes one rseq area a thread: Google's tcmalloc has its per-CPU caches only if glibc does not register its
# own.
PEER_ENVIRONMENT = {"tcmalloc-google": (("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),)}

# Debian's packages of the peers, the files that they install, and the built ones that are the same, but newer.
DEBIAN_PEERS = {
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4", ""),
    "tbb": ("libtbbmalloc2", "libtbbmalloc_proxy.so.2", ""),
    "jemalloc-debian": ("libjemalloc2", "libjemalloc.so.2", "jemalloc"),
    "mimalloc-debian": ("libmimalloc2.0", "libmimalloc.so.2", "mimalloc2"),
}


def library_folders() -> list[Path]:
    return [Path("/usr/lib") / f"{os.uname().machine}-linux-gnu", Path("/usr/lib64"), Path("/usr/lib")]


def find_peers(
    folders: list[Path] | None = None, built: Path = BUILT, *, everything: bool = False
) -> tuple[list[Allocator], list[str]]:
    """The peers that are here, glibc first, and the Debian packages of those that are not.

    Debian's jemalloc and mimalloc only where no newer one is built, or if `everything` is asked for.
    """
    found, missing = [Allocator("glibc", None)], []
    for name, file_name in BUILT_PEERS.items():
        if (built / file_name).is_file():
            found.append(Allocator(name, built / file_name, PEER_ENVIRONMENT.get(name, ())))
    newest = {peer.name for peer in found}
    for name, (package, file_name, newer) in DEBIAN_PEERS.items():
        if newer in newest and not everything:
            continue
        for folder in library_folders() if folders is None else folders:
            if (folder / file_name).is_file():
                found.append(Allocator(name, folder / file_name))
                break
        else:
            if newer not in newest:
                missing.append(package)
    return found, missing


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
    raise BenchError(f"no {language} compiler: apt-get install g++, or set {variable}")


def is_stale(target: Path, sources: list[Path]) -> bool:
    return not target.exists() or any(s.stat().st_mtime >= target.stat().st_mtime for s in sources)


def compile_to(target: Path, command: list[str]) -> None:
    """Runs `command -o target` so that an interrupted build leaves no half-written program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    result = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchError(f"cannot build {target.name}: {' '.join(command)}\n{result.stderr.rstrip()}")
    partial.replace(target)


def build_program(name: str, out_dir: Path) -> Path:
    target, source = out_dir / name, PROGRAMS / f"{name}.cc"
    if is_stale(target, [source, *PROGRAMS.glob("*.h")]):
        compile_to(target, [compiler("c++"), *CXX_FLAGS, str(source)])
    return target


def build_launcher(out_dir: Path) -> Path:
    target, source = out_dir / "launch", ROOT / "bench" / "launch.c"
    if is_stale(target, [source]):
        command = [compiler("c"), "-std=c11", "-O2", str(source)]
        try:
            compile_to(target, [*command, "-static"])
        except BenchError:  # no static libc here: a little more resident, and small programs are reported with it
            compile_to(target, command)
    return target


@dataclass
class Run:
    """One run of a program: what the kernel counted, and what the program said."""

    usage: dict
    stdout: bytes
    stderr: bytes

    @property
    def status(self) -> int:
        return self.usage["status"]


def launch(
    launcher: Path,
    allocator: Allocator,
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    timeout: float | None = None,
) -> Run:
    """Runs `command` on `allocator`. Raises BenchError if it cannot be started or does not end in time."""
    with tempfile.TemporaryDirectory(prefix="folio-bench-") as scratch:
        report = Path(scratch) / "report.json"
        process = subprocess.Popen(
            [str(launcher), str(report), allocator.preload, *command],
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
            os.killpg(process.pid, signal.SIGKILL)  # the session of this run only
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise BenchError(f"{command[0]} on {allocator.name}: not done after {timeout:.0f} s") from None
            raise
        text = report.read_text() if report.exists() else ""
        if not text:
            reason = stderr.decode(errors="replace").strip() or f"exit status {process.returncode}"
            raise BenchError(f"cannot run {reason.splitlines()[-1].removeprefix('launch: ')}")
        return Run(json.loads(text), stdout, stderr)


def maps_hold(maps: str, library: Path) -> bool:
    """Whether a /proc/PID/maps text has a mapping of the file `library`."""
    wanted = os.path.realpath(library)
    return any(line.rstrip().endswith(" " + wanted) for line in maps.splitlines())


def prove_loaded(launcher: Path, allocator: Allocator) -> None:
    """Raises BenchError unless a process started on `allocator` has its library in its map."""
    if allocator.library is None:
        return
    if not allocator.library.is_file():
        raise BenchError(f"{allocator.name}: no file {allocator.library}")
    run = launch(launcher, allocator, ["cat", "/proc/self/maps"], timeout=30)
    if run.status != 0:
        raise BenchError(f"{allocator.name}: `cat` under {allocator.library} exits with status {run.status}")
    if not maps_hold(run.stdout.decode(errors="replace"), allocator.library):
        reason = run.stderr.decode(errors="replace").strip().splitlines()
        raise BenchError(f"{allocator.name}: not loaded: {reason[0] if reason else allocator.library}")
