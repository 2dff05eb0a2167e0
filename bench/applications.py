"""Real programs as cases: Debian's own, each with work that the laboratory generates, the same every time.

tools/bootstrap.sh bench-apps installs them; those that are missing are left out. Generated files stay in the build
folder. The scripts for sqlite3, node and perl are those of tests/real.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import APPLICATION, Case, Figure
from measure import ROOT, BenchError

sys.path.append(str(ROOT / "tests" / "real"))

import inputs

WALL = Figure("wall", "time", "s")
CPU_TIME = Figure("cpu", "CPU time", "s")
RESIDENT = Figure("max_rss_kib", "peak memory", "MiB", 2.0**-10)
PROGRAM_FIGURES = [WALL, CPU_TIME, RESIDENT, Figure("minor_faults", "page faults", "thousand", 1e-3)]

REQUESTS = Figure("ops_per_second", "requests", "thousand/s", 1e-3, more_is_better=True)
SERVER_FIGURES = [
    REQUESTS,
    Figure("cpu", "CPU time of the server", "s"),
    Figure("rss_peak_bytes", "peak memory of the server", "MiB", 2.0**-20),
    Figure("rss_after_2s_bytes", "resident after 2 s of rest", "MiB", 2.0**-20),
]
LONG_REST = Figure("rss_after_5s_bytes", "resident after 5 s of rest", "MiB", 2.0**-20)
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin"


@dataclass(frozen=True)
class Application(Case):
    """A program of the system. In its arguments {data} is the folder of its generated files."""

    kind: str = APPLICATION
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    files: Callable[[bool], dict[str, bytes]] = lambda quick: {}
    prepare: Callable[[Path, bool], None] | None = None  # once, after the files are there
    reports: bool = False  # its last line is a result, which also says whose malloc it had
    any_status: bool = False  # a program of the user's may mean something by its exit status

    def command(self, quick: bool, build: Path) -> list[str]:
        data = build / "data" / (self.name.replace(" ", "_") + ("-quick" if quick else ""))
        data.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(quick).items():
            path = data / name
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
        if self.prepare is not None:
            self.prepare(data, quick)
        return [text.replace("{data}", str(data)) for text in [self.program, *self.command_arguments(quick)]]


def call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def postscript(pages: int) -> bytes:
    """Text in three fonts, curves and fills; no two pages alike."""
    head = "%!PS\n/s { findfont exch scalefont setfont } def\n"
    body = []
    for page in range(1, pages + 1):
        body.append(f"{9 + page % 5} /{('Times-Roman', 'Helvetica', 'Courier')[page % 3]} s\n")
        body += [
            f"40 {760 - 24 * line} moveto (page {page}, line {line}: {page * line * 7919 % 1000003}) show\n"
            for line in range(30)
        ]
        body += [
            f"{k / 9:.2f} 0.4 {page % 7 / 7:.2f} setrgbcolor 300 {60 * k} moveto "
            f"{page % 90} {k * 30} 200 {page % 300} {k * 50} 400 curveto closepath fill\n"
            for k in range(10)
        ]
        body.append("0 setgray showpage\n")
    return (head + "".join(body)).encode()


def preprocessed(data: Path, quick: bool) -> None:
    if not (data / "work.ii").exists():
        call("g++", "-std=c++17", "-E", str(data / "work.cc"), "-o", str(data / "work.ii"))


def cc1plus() -> str:
    """The compiler proper: the driver would only wait for it."""
    if shutil.which("g++") is None:
        return "cc1plus"
    return call("g++", "-print-prog-name=cc1plus").strip()


def orders(data: Path, quick: bool) -> None:
    path = data / "orders.jsonl"
    if not path.exists():
        call("/usr/bin/python3", str(ROOT / "tools" / "folio" / "example.py"), "--generate", str(path))
        if quick:
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:1000]))


def repeated(times: int, head: bytes, work: bytes) -> bytes:
    """Braces make a scope of its own in perl as in JavaScript, so that each time frees what it made."""
    return head % times + b" {\n" + work + b"}\n"


def formulas(count: int, variables: int = 180, clauses_by_variable: float = 4.2) -> bytes:
    """Random clauses of three with arithmetic beside: near where most formulas are hardest. One by one."""
    rng = random.Random(20150614)
    lines = []
    for _ in range(count):
        lines += [f"(declare-const b{i} Bool)\n(declare-const x{i} Int)" for i in range(variables)]
        lines += [f"(assert (=> b{i} (< x{i} x{(i * 7 + 1) % variables})))" for i in range(variables)]
        lines += [f"(assert (=> (not b{i}) (> (+ x{i} 3) x{(i * 5 + 2) % variables})))" for i in range(variables)]
        for _ in range(int(variables * clauses_by_variable)):
            words = [f"b{i}" if rng.random() < 0.5 else f"(not b{i})" for i in rng.sample(range(variables), 3)]
            lines.append(f"(assert (or {' '.join(words)}))")
        lines += ["(check-sat)", "(reset)"]
    return ("\n".join(lines) + "\n").encode()


def server(
    name: str, requests: int, quick: int, rest: int, *needs: str, also: list[Figure] | None = None
) -> Application:
    """Requests, and seconds of rest after them. The later ones hold, as for the programs of bench/."""
    return Application(
        name=name,
        program="/usr/bin/python3",
        arguments=[str(ROOT / "bench" / "servers.py"), name, str(requests), str(rest)],
        quick=[str(quick), str(rest - 3 if rest > 2 else 0)],
        figures=[*SERVER_FIGURES, *(also or [])],
        needs=needs,
        reports=True,
    )


def program(name: str, path: str, arguments: list[str], needs: str, **others: Any) -> Application:
    return Application(name, path, arguments, PROGRAM_FIGURES, needs=(needs,), **others)


def programs() -> list[Application]:
    return [
        program(
            "python",
            "/usr/bin/python3",
            [str(ROOT / "tools" / "folio" / "example.py"), "{data}/orders.jsonl"],
            needs="/usr/bin/python3",
            environment={"PYTHONMALLOC": "malloc"},
            prepare=orders,
        ),
        program(
            "gcc",
            cc1plus(),
            ["-quiet", "-fpreprocessed", "-std=c++17", "-O1", "{data}/work.ii", "-o", "/dev/null"],
            needs="g++",
            files=lambda quick: {"work.cc": b"#include <map>\n" if quick else inputs.cplusplus()},
            prepare=preprocessed,
        ),
        program(
            "ghostscript",
            "gs",
            ["-q", "-dSAFER", "-dBATCH", "-dNOPAUSE", "-r100", "-sDEVICE=ppmraw", "-o", "/dev/null", "{data}/work.ps"],
            needs="gs",
            files=lambda quick: {"work.ps": postscript(40 if quick else 4000)},
        ),
        program(
            "sqlite3",
            "sqlite3",
            ["-batch", *[":memory:", *[".read {data}/work.sql", ".open :memory:"] * 4]],
            needs="sqlite3",
            files=lambda quick: {"work.sql": inputs.SQLITE.replace(b"100000", b"5000") if quick else inputs.SQLITE},
        ),
        program(
            "node",
            "node",
            ["{data}/work.js"],
            needs="node",
            files=lambda quick: {
                "work.js": repeated(1 if quick else 14, b"for (let run = 0; run < %d; run++)", inputs.NODE)
            },
        ),
        program(
            "perl",
            "perl",
            ["{data}/work.pl"],
            needs="perl",
            files=lambda quick: {"work.pl": repeated(1 if quick else 8, b"for my $run (1 .. %d)", inputs.PERL)},
        ),
        program(
            "z3",
            "z3",
            ["-smt2", "{data}/work.smt2"],
            needs="z3",
            files=lambda quick: {"work.smt2": formulas(2 if quick else 28)},
        ),
    ]


def servers() -> list[Application]:
    return [
        server("redis", 120_000, 5_000, 5, "redis-server", "redis-benchmark", "redis-cli", also=[LONG_REST]),
        server("memcached", 400_000, 5_000, 2, "memcached", "memcaslap", "memcflush"),
        server("nginx", 30_000, 500, 2, "nginx", "ab"),
        server("mariadb", 250_000, 1_000, 2, "mariadbd", "mariadb-install-db", "mariadb", "sysbench"),
    ]


def applications() -> list[Application]:
    return [*programs(), *servers()]


def installed() -> tuple[list[Application], list[str]]:
    """The applications that can run here, and the names of those that cannot."""
    here, missing = [], []
    for application in applications():
        if all(shutil.which(program, path=PATH) for program in application.needs):
            here.append(application)
        else:
            missing.append(application.name)
    return here, missing


def matching(words: list[str], candidates: list[Application]) -> list[Application]:
    """Those whose name has one of the words; `apps` is all of them."""
    return [a for a in candidates if any(word.lower() == "apps" or word.lower() in a.name for word in words)]


def user_program(words: list[str]) -> Application:
    """A command of the user's, as `make compare` measures it."""
    program = shutil.which(words[0])
    if program is None:
        raise BenchError(f"no program {words[0]}")
    # A short name that does not end a cell of a Markdown table; the whole command is in the results.
    name = " ".join([Path(program).name, *words[1:]]).replace("|", "¦").replace("\n", " ")
    name = name if len(name) <= 60 else name[:59] + "…"
    return Application(name, program, words[1:], PROGRAM_FIGURES, any_status=True)
