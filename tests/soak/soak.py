#!/usr/bin/env python3
"""Soak: eight threads, all sizes, threads and children that come and go, statistics, a reader from outside, for as long
as you like. What is wrong ends it, with one line that says what, and the stacks.

    soak.py                       one minute on build/libfolio.so
    soak.py --minutes 10 --seed 7
    soak.py --without raw-exit,statistics     leaves out what is named; an unknown name lists them all
    soak.py --library none        on the libc's malloc: the soak itself is right

Between the bursts all threads come to rest, every other time with everything freed. Then, after two ticks, what is
resident must be within the bound of docs/limits.md, and what the statistics call live must be what the program holds;
over the whole run nothing may grow. Exit status 0: nothing was wrong; 1: something was.
"""

import argparse
import contextlib
import itertools
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import judge
from outside import Outside

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200  # for a step of each of the actors; it may wait 120 s for a child
SETTLE_S = 30  # for memory to be within its bound, on a machine that is busy with other things
TICK_S = 0.5
ACTORS = [*(f"worker {i}" for i in range(8)), "the maker of threads", "the maker of children", "the statistics"]


class Wrong(Exception):
    """What is wrong, and which process shows it."""

    def __init__(self, what: str, pid: int | None = None, tid: int | None = None) -> None:
        super().__init__(what)
        self.pid, self.tid = pid, tid


def fields(line: str) -> dict[str, int]:
    """The name=number pairs of a line."""
    return {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", line)}


class Program:
    """The process, what it writes, and whether it lives."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOLIO_", "LD_", "MALLOC_", "GLIBC_"))}
        if arguments.library != "none":
            environment["LD_PRELOAD"] = str(Path(arguments.library).absolute())
            environment["FOLIO_OPTIONS"] = ",".join(["collect_from_outside:on", *arguments.options])
        command = [arguments.program, "--seed", str(arguments.seed), "--without", ",".join(arguments.hazards)]
        command += ["--sabotage", arguments.sabotage] if arguments.sabotage else []
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self.pid = self.process.pid
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.steps = [0] * len(ACTORS)
        self.moved = [time.monotonic()] * len(ACTORS)
        self.rests = True
        self.heard = time.monotonic()
        self.patience = arguments.patience
        self.said: list[str] = []  # on stderr, but for statistics
        self.misused: float | None = None
        for target in (self.read_lines, self.read_errors):
            threading.Thread(target=target, daemon=True).start()

    def read_lines(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def read_errors(self) -> None:
        statistics_text = re.compile(r"folio: statistics$|  |Arena \d|Total|system bytes|in use bytes|max mmap")
        for line in self.process.stderr:
            if not statistics_text.match(line):
                self.said.append(line.rstrip("\n"))

    def ended(self) -> Wrong:
        """It has closed its output: everybody who had it is gone."""
        status = self.process.wait()
        how = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"status {status}"
        return Wrong(f"crash: the process ended by itself, with {how}")

    def beat(self, line: str) -> None:
        now = time.monotonic()
        for i, steps in enumerate(map(int, line.split()[1:])):
            if steps != self.steps[i] or self.rests:
                self.steps[i], self.moved[i] = steps, now
            elif now - self.moved[i] > self.patience:
                raise Wrong(f"hang: {ACTORS[i]} has made no step for {self.patience:g} s", self.pid)

    def check_errors(self) -> None:
        """After a line of Folio's about a misuse comes an abort, which tells where; if not, the line is all."""
        if any(line.startswith("folio: ") for line in self.said):
            self.misused = self.misused or time.monotonic()
            if time.monotonic() - self.misused > 5:
                raise Wrong(f"Folio said: {self.said[0]}", self.pid)

    def next_line(self, seconds: float) -> str | None:
        """The next line that is no beat, or None after so long."""
        end = time.monotonic() + seconds
        while True:
            self.check_errors()
            try:
                line = self.lines.get(timeout=max(0.01, min(end - time.monotonic(), 1)))
            except queue.Empty:
                if time.monotonic() - self.heard > self.patience:
                    raise Wrong(f"hang: no sign of life for {self.patience:g} s", self.pid) from None
                if time.monotonic() >= end:
                    return None
                continue
            if line is None:
                raise self.ended()
            self.heard = time.monotonic()
            if line.startswith("beat"):
                self.beat(line)
            elif match := re.match(r"FAILED pid (\d+) tid (\d+): (.*)", line):
                time.sleep(0.5)  # for what others say
                raise Wrong(match[3] + "".join(f"; {said}" for said in self.said[:3]), int(match[1]), int(match[2]))
            elif line.startswith("unknown"):
                print(f"{line} outside", file=sys.stderr)
                sys.exit(2)
            else:
                return line
            if time.monotonic() >= end:
                return None

    def ask(self, command: str, answer: str) -> dict[str, int]:
        """Sends a command; the figures of its answer."""
        try:
            self.process.stdin.write(command)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None
        line = self.next_line(self.patience)
        if line is None:
            raise Wrong(f'hang: no "{answer}" within {self.patience:g} s: the threads do not rest, or go on', self.pid)
        if not line.startswith(answer):
            raise Wrong(f"the program said {line!r}")
        return fields(line)

    def end(self) -> None:
        """By exit, in the middle of a burst."""
        self.next_line(0.3)
        self.process.stdin.write("q")
        self.process.stdin.flush()
        try:
            status = self.process.wait(self.patience)
        except subprocess.TimeoutExpired:
            raise Wrong(f"hang: exit has not ended the process within {self.patience:g} s", self.pid) from None
        if status != 0:
            raise Wrong(f"crash: exit has ended with status {status}, not 0")

    def kill(self) -> None:
        """And its children: one that was forked during exit waits for ever for a lock of the libc's."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def stacks_of(pid: int) -> str:
    command = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "set pagination off", "-ex", "thread apply all bt 30"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
        return done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return f"gdb has not ended with process {pid}\n"


def stacks(wrong: Wrong, file: Path) -> str:
    """Writes the stacks of the process to `file`; returns that of the thread which saw it, or of a child."""
    if wrong.pid is None or shutil.which("gdb") is None:
        return ""
    child = re.match(r"hang: pid (\d+)", str(wrong))
    text = stacks_of(int(child[1]) if child else wrong.pid)
    file.write_text(text)
    thread = r"\d+" if child else wrong.tid
    shown = re.search(rf"^Thread \d+ \([^\n]*(?:LWP )?{thread}\b.*?(?=^Thread |\Z)", text, re.M | re.S)
    if "No such process" in text:
        return f"process {wrong.pid} has ended before its stacks could be read\n"
    # Without how it told of it.
    return re.sub(r"^#\d+ .*?(?:nanosleep|pause_us|soak::fail|crashed) .*\n", "", shown[0], flags=re.M) if shown else ""


class Soak:
    """One run: bursts, rests, the end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.program = Program(arguments)
        self.history = judge.History()
        self.begun = time.monotonic()
        self.outside: Outside | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def on_folio(self) -> bool:
        return self.arguments.library != "none"

    def say(self, figures: dict[str, int]) -> None:
        steps = self.program.steps
        line = f"{self.seconds:5.0f} s  {sum(steps[:8]) / 1e6:.1f} M steps, {steps[8]} threads, {steps[9]} children, "
        line += (
            f"{steps[10]} questions, {self.outside.checks if self.outside else 0} looks; at rest {judge.parts(figures)}"
        )
        print(line, flush=True)

    def rest(self, everything: bool) -> None:
        program = self.program
        program.rests = True
        figures = program.ask("e" if everything else "r", "rest")
        end = time.monotonic() + SETTLE_S
        while True:
            program.next_line(3 * TICK_S)
            figures |= program.ask("s", "stats") | judge.process(program.pid)
            # What is lost is resident too: that is said first. What the housekeeper drains just then is nobody's.
            lost = judge.exact(figures) if self.on_folio() else None
            wrong = lost or (judge.bound(figures, self.history.base) if self.on_folio() else None)
            if not wrong:
                break
            if time.monotonic() > end:
                where = f", {SETTLE_S} s after all came to rest; most lie in\n{judge.largest_mappings(program.pid)}"
                raise Wrong(lost or wrong + where, program.pid)
        self.history.add(everything, figures)
        self.say(figures)
        program.ask("g", "going")
        program.rests = False
        program.moved = [time.monotonic()] * len(ACTORS)

    def burst(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line = self.program.next_line(1)
            if line:
                raise Wrong(f"the program said {line!r}")
            if self.outside and self.outside.wrong:
                raise Wrong(self.outside.wrong, self.program.pid)

    def run(self) -> None:
        program = self.program
        program.ask("r", "rest")  # nobody has begun yet
        self.history.base = judge.process(program.pid)
        program.ask("g", "going")
        program.rests = False
        if self.on_folio() and self.arguments.folio.exists() and "outside" not in self.arguments.without:
            self.outside = Outside(self.arguments.folio, program.pid, self.arguments.scratch)
        length = min(15, max(3, self.arguments.seconds / 15))
        for everything in itertools.cycle([False, True]):
            self.burst(length)
            self.rest(everything)
            if self.seconds > self.arguments.seconds and everything:
                break
        if self.outside:
            self.outside.stop()
            if self.outside.wrong:
                raise Wrong(self.outside.wrong, program.pid)
        wrong = self.history.trend() if self.on_folio() else None
        if wrong:
            raise Wrong(wrong, program.pid)
        program.end()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seconds", type=float, help="in place of minutes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--without", default="", metavar="NAME,...")
    parser.add_argument("--library", default=str(ROOT / "build/libfolio.so"))
    parser.add_argument("--program", default=str(ROOT / "build/tests/soak/soak"))
    parser.add_argument("--folio", type=Path, default=ROOT / "build/venv-tools/bin/folio", help="the folio command")
    parser.add_argument("--options", action="append", default=[], metavar="KEY:VALUE", help="of Folio's")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/soak", help="where stacks are written")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="SECONDS", help="before it is a hang")
    parser.add_argument("--sabotage", choices="wlh", help="does something wrong, which must be found")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or arguments.minutes * 60
    arguments.without = [name for name in arguments.without.split(",") if name]
    arguments.hazards = [name for name in arguments.without if name != "outside"]
    if arguments.library == "none":  # the libc's malloc has locks, which such children may find held
        arguments.hazards += ["raw-fork", "vfork-malloc"]
    return arguments


def main() -> int:
    arguments = parse()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    again = f"--seed {arguments.seed}" + (f" --without {','.join(arguments.without)}" if arguments.without else "")
    print(f"soak: {arguments.seconds:g} s, {again}", flush=True)
    soak = Soak(arguments)
    try:
        soak.run()
    except Wrong as wrong:
        file = arguments.scratch / f"stacks-{arguments.seed}.txt"
        shown = stacks(wrong, file)
        print(f"FAILED after {soak.seconds:.0f} s, {again}: {wrong}")
        if shown:
            print(f"{shown}\nall stacks: {file}")
        print(f"Next: make soak SOAK='--seconds {soak.seconds * 2:.0f} {again}'  (the same numbers; threads differ)")
        return 1
    finally:
        if soak.outside:
            soak.outside.stop()
        soak.program.kill()
    print(f"nothing was wrong in {soak.seconds:.0f} s; {soak.history.summary()}")
    print(f"Next: make soak SOAK='--minutes 10'  (longer; this one again: --seed {arguments.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
