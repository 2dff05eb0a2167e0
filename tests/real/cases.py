"""The programs that run.py compares. Each prepares its input in an empty directory and runs there; the result is what
it wrote, by name. All input is generated, from nothing random."""

import contextlib
import dataclasses
import hashlib
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import inputs

TIMEOUT_S = 150

Result = dict[str, bytes | int]
Environment = dict[str, str]


class Skip(Exception):
    """Why a program cannot run here."""


@dataclasses.dataclass(kw_only=True)
class Case(ABC):
    """One program: what must be installed, and its input files."""

    name: str
    programs: tuple[str, ...]
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    judges_itself: bool = False  # says whether its result is right: glibc's malloc is only asked where it is not

    def require(self) -> None:
        """Raise Skip unless the programs are installed."""
        for program in self.programs:
            if not shutil.which(program):
                raise Skip(f"{program} is not installed")

    def prepare(self, directory: Path, environment: Environment) -> None:
        """Write the input; always on glibc's malloc."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    @abstractmethod
    def run(self, directory: Path, environment: Environment) -> Result:
        """Run the program on the input."""


def call(command: list[str], directory: Path, environment: Environment, stdin: bytes | None = None) -> Result:
    """Run one command. A warning of the loader on stderr would mean that it ran without Folio."""
    done = subprocess.run(command, cwd=directory, env=environment, input=stdin, capture_output=True, timeout=TIMEOUT_S)
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def digest(path: Path) -> bytes:
    """A file's contents, in short."""
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


@dataclasses.dataclass(kw_only=True)
class Commands(Case):
    """Commands that must succeed, then output files to compare."""

    commands: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...] = ()

    def run(self, directory: Path, environment: Environment) -> Result:
        result: Result = {}
        for number, command in enumerate(self.commands):
            done = call(list(command), directory, environment)
            result |= {f"{command[0]} {number} {key}": value for key, value in done.items()}
        for name in self.outputs:
            path = directory / name
            result[name] = digest(path) if path.exists() else b"missing"
        return result


# Which of the named modules there are; importing a package may itself print.
FIND_MODULES = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        if importlib.util.find_spec(name):
            print("module", name)
    except ImportError:
        pass
"""


@dataclasses.dataclass(kw_only=True)
class PythonTests(Case):
    """Python's own test modules, where they are installed (Debian: libpython3-testsuite)."""

    modules: tuple[str, ...]

    def interpreter(self) -> tuple[str, list[str]]:
        """The system's Python if it has its tests, else any other, and those of the modules that it has."""
        for python in ("/usr/bin/python3", shutil.which("python3"), sys.executable):
            if not python or not Path(python).exists():
                continue
            probe = [python, "-c", FIND_MODULES, *(f"test.{module}" for module in self.modules)]
            said = subprocess.run(probe, capture_output=True, text=True, timeout=30).stdout
            found = re.findall(r"^module (\S+)$", said, re.MULTILINE)
            if "test.test_list" in found:
                return python, found
        raise Skip("Python's test modules are not installed (libpython3-testsuite)")

    def require(self) -> None:
        self.interpreter()

    def run(self, directory: Path, environment: Environment) -> Result:
        python, modules = self.interpreter()
        command = [python, "-m", "unittest", *modules]
        done = call(command, directory, environment)
        text = bytes(done["stderr"]).decode(errors="replace")
        ran = re.search(r"^Ran (\d+) tests", text, re.MULTILINE)
        failed = sorted(re.findall(r"^(?:FAIL|ERROR): .*", text, re.MULTILINE))
        return {"status": done["status"], "ran": int(ran[1]) if ran else -1, "failed": "\n".join(failed).encode()}


class Redis(Case):
    """A server under redis-benchmark, then a fixed set of data, of which the server tells a digest."""

    def run(self, directory: Path, environment: Environment) -> Result:
        # The path of a socket must be short.
        arguments = ["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"]
        arguments += ["--enable-debug-command", "yes", "--dir", ".", "--lazyfree-lazy-user-flush", "yes"]
        with background(["redis-server", *arguments], directory, environment) as server:
            wait_until(lambda: self.client(directory, environment, "ping") == b"PONG\n", server)
            tests = "set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset"
            load = [
                "redis-benchmark",
                "-s",
                "s",
                "-q",
                "-n",
                "5000",
                "-c",
                "20",
                "-r",
                "5000",
                "-d",
                "300",
                "-t",
                tests,
            ]
            benchmark = call(load, directory, environment)
            self.client(directory, environment, "flushall")
            filled = call(["redis-cli", "-s", "s"], directory, environment, inputs.redis_commands())
            result: Result = {"benchmark": benchmark["status"], "replies": filled["stdout"]}
            result["digest"] = self.client(directory, environment, "debug", "digest")
            result["saved"] = self.client(directory, environment, "save")
            result["reloaded"] = self.client(directory, environment, "debug", "reload")
            result["digest again"] = self.client(directory, environment, "debug", "digest")
            self.client(directory, environment, "shutdown", "nosave")
            result["status"] = server.wait(30)
        return result

    def client(self, directory: Path, environment: Environment, *words: str) -> bytes:
        """One command; what redis-cli prints."""
        return bytes(call(["redis-cli", "-s", "s", *words], directory, environment)["stdout"])


class MariaDb(Case):
    """A server with a fresh data directory and a fixed load."""

    def prepare(self, directory: Path, environment: Environment) -> None:
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={directory}/data",
            "--auth-root-authentication-method=normal",
        ]
        done = call([*install, "--skip-test-db"], directory, environment)
        if done["status"] != 0:
            raise Skip(f"mariadb-install-db failed: {bytes(done['stderr'])[-200:]!r}")

    def run(self, directory: Path, environment: Environment) -> Result:
        data, socket = f"--datadir={directory}/data", f"--socket={directory}/s"
        arguments = ["--no-defaults", data, socket, "--skip-networking", "--user=root"]
        with background(["mariadbd", *arguments], directory, environment) as server:
            client = ["mariadb", "--no-defaults", socket, "--user=root", "--batch"]
            wait_until(lambda: call([*client, "-e", "select 1"], directory, environment)["status"] == 0, server)
            result = call(client, directory, environment, inputs.mariadb_sql())
            call([*client, "-e", "shutdown"], directory, environment)
            result["server"] = server.wait(60)
        return result


@contextlib.contextmanager
def background(command: list[str], directory: Path, environment: Environment) -> Iterator[subprocess.Popen[bytes]]:
    """A server; ended if it has not ended by itself."""
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            yield server
        finally:
            if server.poll() is None:
                server.kill()
            server.wait()


def wait_until(holds: object, server: subprocess.Popen[bytes]) -> None:
    """Wait for a server to answer; give up when it has ended."""
    end = time.monotonic() + 60
    while not holds():
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}")
        if time.monotonic() > end:
            raise RuntimeError("the server does not answer")
        time.sleep(0.05)


GIT = (
    "git",
    "-c",
    "user.name=A",
    "-c",
    "user.email=a@example.org",
    "-c",
    "gc.autoDetach=false",
    "-c",
    "pack.threads=2",
)

LINES = {"lines.txt": inputs.lines(100000)}
GS = ("gs", "-q", "-dSAFER", "-dBATCH", "-dNOPAUSE")

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Commands(
            name="python",
            programs=("/usr/bin/python3",),
            files={"work.py": inputs.PYTHON},
            commands=(("/usr/bin/python3", "work.py"),),
        ),
        PythonTests(
            name="python_tests",
            programs=(),
            judges_itself=True,
            modules=(
                *("test_list", "test_dict", "test_set", "test_json", "test_bytes", "test_array", "test_deque"),
                *("test_gc", "test_memoryview", "test_mmap", "test_ctypes", "test_zlib", "test_threading_local"),
                *("test_sqlite3.test_dbapi", "test_sqlite3.test_regression", "test_sqlite3.test_types"),
            ),
        ),
        Commands(
            name="sqlite",
            programs=("sqlite3",),
            files={"work.sql": inputs.SQLITE},
            commands=(("sqlite3", "-batch", ":memory:", ".read work.sql"),),
        ),
        Redis(name="redis", programs=("redis-server", "redis-cli", "redis-benchmark")),
        Commands(
            name="gcc",
            programs=("g++",),
            files={"work.cc": inputs.cplusplus()},
            commands=(
                ("g++", "-std=c++17", "-O1", "-c", "work.cc", "-o", "work.o"),
                ("g++", "work.o", "-o", "work"),
                ("./work",),
            ),
            outputs=("work.o", "work"),
        ),
        Commands(
            name="git",
            programs=("git",),
            commands=(
                (*GIT, "init", "-q", "-b", "main", "."),
                ("sh", "-c", inputs.git_history(" ".join(GIT))),
                (*GIT, "gc", "-q", "--aggressive"),
                (*GIT, "fsck", "--full"),
                (*GIT, "log", "--stat", "--graph", "-p", "-M"),
                (*GIT, "blame", "file3.txt"),
                (*GIT, "diff", "--word-diff", "HEAD~30", "HEAD"),
                (*GIT, "rev-parse", "HEAD"),
            ),
        ),
        Commands(name="perl", programs=("perl",), files={"work.pl": inputs.PERL}, commands=(("perl", "work.pl"),)),
        Commands(name="node", programs=("node",), files={"work.js": inputs.NODE}, commands=(("node", "work.js"),)),
        Commands(
            name="ghostscript",
            programs=("gs",),
            files={"work.ps": inputs.postscript()},
            commands=(
                (*GS, "-r100", "-sDEVICE=ppmraw", "-o", "out.ppm", "work.ps"),
                (*GS, "-r200", "-sDEVICE=pngmono", "-o", "out.png", "work.ps"),
            ),
            outputs=("out.ppm", "out.png"),
        ),
        Commands(
            name="xz",
            programs=("xz",),
            files=LINES,
            commands=(
                ("xz", "-k", "-T2", "-6", "--block-size=1MiB", "lines.txt"),
                ("xz", "-t", "lines.txt.xz"),
                ("sh", "-c", "xz -dc lines.txt.xz | cmp - lines.txt"),
            ),
            outputs=("lines.txt.xz",),
        ),
        Commands(
            name="sort",
            programs=("sort",),
            files=LINES,
            commands=(
                ("sort", "--parallel=2", "-S", "1M", "lines.txt", "-o", "sorted.txt"),
                ("sort", "-u", "-k2,2n", "-k1,1r", "lines.txt", "-o", "unique.txt"),
                ("sh", "-c", "sort lines.txt | uniq -c | sort -rn | head -n 1000 | md5sum"),
            ),
            outputs=("sorted.txt", "unique.txt"),
        ),
        Commands(
            name="awk",
            programs=("awk",),
            files={"work.awk": inputs.AWK, **LINES},
            commands=(("awk", "-f", "work.awk", "lines.txt"),),
        ),
        Commands(
            name="shell",
            programs=("bash", "tar", "gzip", "sed", "grep", "find", "make"),
            files={"work.sh": inputs.SHELL, **LINES},
            commands=(("bash", "work.sh"),),
        ),
        MariaDb(name="mariadb", programs=("mariadbd", "mariadb", "mariadb-install-db")),
    )
}
