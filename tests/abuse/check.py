#!/usr/bin/env python3
"""Runs one misuse program and compares what it wrote, and how it ended, with the expectations at its head.

    // options: errors:warn      FOLIO_OPTIONS of the only run; without it there are three, see below
    // expect-line: TEXT #ANCHOR the line "folio: TEXT (see docs/errors.md#ANCHOR)" of stderr, in this order and nothing
                                 else; {name} is what the program told on stdout, * any letters, blanks and _,
                                 ? any number; may go on in the next line of comment
    // expect-stacks: a, b       stacks follow the line, with these words at their heads, and each has a call of the
                                 program; without this line there are none
    // expect-status: SIGABRT    or a number; SIGABRT without this line. A|B: one of both; no line comes with SIGSEGV,
                                 unless there are stacks
    // abort-before: name        a run that aborts must do so before the program tells `name`
    // watch: yes                found because the first frees of a process are watched; no: without that (watch:0);
                                 without this line: both ways

A program without `options` runs with errors:abort, where all of this holds; with errors:warn, where the lines are the
same and the program must reach its end with status 0; and with errors:ignore, where there must be no line at all. All
that once as a process is by default and once more as it is when no more frees are watched.
"""

import argparse
import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60


@dataclasses.dataclass
class Expected:
    """What one run must do."""

    options: str
    statuses: list[int]
    lines: list[str]
    stacks: list[str]
    abort_before: list[str]


def status_number(text: str) -> int:
    """The status as subprocess has it: minus the number of a signal."""
    return -signal.Signals[text].value if text.startswith("SIG") else int(text)


def directives(source: Path) -> dict[str, list[str]]:
    """The `// key: value` lines at the head of a program."""
    found: dict[str, list[str]] = {
        "options": [],
        "expect-line": [],
        "expect-stacks": [],
        "expect-status": [],
        "abort-before": [],
        "watch": [],
    }
    unfinished = False
    for line in source.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        match = re.fullmatch(r"// ([a-z-]+): (.*)", line)
        if unfinished:
            found["expect-line"][-1] += line.removeprefix("//")
        elif match and match[1] in found:
            found[match[1]].append(match[2])
        unfinished = bool(found["expect-line"]) and " #" not in found["expect-line"][-1]
    return found


def expectations(source: Path) -> list[Expected]:
    """The runs of a program, from its head."""
    head = directives(source)
    lines = head["expect-line"]
    status_text = head["expect-status"][0] if head["expect-status"] else "SIGABRT"
    statuses = [status_number(text) for text in status_text.split("|")]
    stacks = [word for text in head["expect-stacks"] for word in text.split(", ")]
    if head["options"]:
        return [Expected(head["options"][0], statuses, lines, stacks, head["abort-before"])]
    states = {"yes": [""], "no": [",watch:0"]}.get("".join(head["watch"]), ["", ",watch:0"])
    return [
        expected
        for state in states
        for expected in (
            Expected("errors:abort" + state, statuses, lines, stacks, head["abort-before"]),
            Expected("errors:warn" + state, [0], lines, stacks, []),
            Expected("errors:ignore" + state, [0], [], [], []),
        )
    ]


def reported(stdout: str) -> dict[str, str]:
    """The facts that the program told as name=value lines."""
    return dict(line.split("=", 1) for line in stdout.splitlines() if "=" in line)


def whole_line(text: str, facts: dict[str, str]) -> str:
    """The regular expression of the whole line that `expect-line: text` stands for."""
    message, anchor = text.rsplit(" #", 1)
    filled = re.sub(r"\{([a-z]+)\}", lambda match: facts.get(match[1], f"(untold {match[1]})"), message)
    line = f"folio: {filled} (see docs/errors.md#{anchor})"
    return re.escape(line).replace(r"\*", "[a-zA-Z_ ]+").replace(r"\?", "[0-9]+")


def wrong_stacks(lines: list[str], words: list[str], program: Path) -> list[str]:
    """Of the lines that follow a report."""
    found: dict[str, list[str]] = {}
    word = ""
    for line in lines:
        if head := re.fullmatch(r"folio:   (\w+) by thread [0-9]+(, [0-9]+ ms ago)?:", line):
            word = head[1]
            found[word] = []
        elif re.fullmatch(r"folio:     #[0-9]+ \S+\+0x[0-9a-f]+", line) and word:
            found[word].append(line)
        elif "addr2line" not in line:
            return [f"not a line of a stack: {line}"]
    if list(found) != words:
        return [f"stacks {list(found)}, expected {words}"]
    name = str(program.resolve())
    return [f"no call of the program {each}" for each in words if not any(name in line for line in found[each])]


def run(program: Path, expected: Expected) -> list[str]:
    """Runs the program once; returns what is wrong."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FOLIO_", "MALLOC_"))}
    environment["FOLIO_OPTIONS"] = expected.options
    try:
        done = subprocess.run(
            [program], env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"did not end within {TIMEOUT_S} s"]
    facts = reported(done.stdout)
    wrong = []
    if done.returncode not in expected.statuses:
        wrong.append(f"status {done.returncode}, expected {expected.statuses} {facts.get('failed', '')}")
    further = [line for line in done.stderr.splitlines() if line.startswith("folio:   ")]
    lines = [line for line in done.stderr.splitlines() if line not in further]
    wrong += wrong_stacks(further, expected.stacks, program)
    texts = [] if done.returncode == -signal.SIGSEGV and not expected.stacks else expected.lines
    if len(lines) != len(texts):
        wrong.append(f"{len(lines)} lines on stderr, expected {len(texts)}")
    for line, text in zip(lines, texts, strict=False):
        if not re.fullmatch(whole_line(text, facts), line):
            wrong.append(f"expected line: {whole_line(text, facts)}")
    if lines and not done.stderr.endswith("\n"):
        wrong.append("the last line of stderr does not end")
    wrong += [f"went past {name!r} before it aborted" for name in expected.abort_before if name in facts]
    if wrong:
        wrong += [f"stderr: {line}" for line in (lines + further)[:40]]
    return wrong


def main() -> int:
    """Runs all modes of one program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    failed = False
    for expected in expectations(arguments.source):
        wrong = run(arguments.program, expected)
        print(f"{arguments.source.name} {expected.options}: {'FAILED' if wrong else 'ok'}")
        for what in wrong:
            print(f"  {what}")
        failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
