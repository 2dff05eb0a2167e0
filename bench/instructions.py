#!/usr/bin/env python3
"""Counts the instructions of one malloc and one free with callgrind, on Folio and on its peers.

Counted: all instructions inside malloc and free, their returns, and the two calls. Not counted: the caller's loop.
bench/programs/tight_loop.cc runs under callgrind twice, with different numbers of pairs; the difference between the
two has neither the program's start nor the first, slow calls in it. Callgrind attributes to `measured_loop` what its
own instructions cost and what its calls cost, so the loop itself is left out exactly.

Two ways of getting at the library: `linked` (built with -fno-plt against the library, one call instruction reaches it)
and `preload` (an ordinary program under LD_PRELOAD; the stubs of the procedure linkage table count as the caller's and
are not in the figure).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import (
    CXX_FLAGS,
    PROGRAMS,
    Allocator,
    BenchError,
    add_places,
    build_launcher,
    compile_to,
    compiler,
    end_with,
    find_peers,
    is_stale,
    launch,
    make_folder,
    prove_loaded,
    serves,
)

LOOP = "measured_loop"
FEW, MANY = 20_000, 60_000
CALLS_PER_PAIR = 2
UNKNOWN_OBJECT = "???"  # what callgrind calls code whose file it cannot tell; `prove_served` has settled that before


@dataclass
class Profile:
    """What callgrind says about the loop: its own instructions, those of what it calls, and whose those are."""

    own: int = 0
    called: int = 0
    calls: int = 0
    objects: set[str] = field(default_factory=set)


class Names:
    """Callgrind writes `(id) name` the first time and `(id)` from then on; each kind of name counts for itself."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def resolve(self, text: str) -> str:
        match = re.fullmatch(r"\((\d+)\)(?: (.*))?", text)
        if match is None:
            return text
        if match[2] is not None:
            self.known[match[1]] = match[2]
        return self.known.get(match[1], "")


def parse_callgrind(text: str, function: str = LOOP) -> Profile:
    """Sums up the cost lines of `function` in a callgrind output file."""
    profile, functions, objects = Profile(), Names(), Names()
    inside, after_calls, current_object, called_object = False, False, "", ""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key in ("ob", "cob", "fn", "cfn", "calls"):
            if key == "ob":
                current_object = objects.resolve(value)
            elif key == "cob":
                called_object = objects.resolve(value)
            elif key == "fn":
                inside = functions.resolve(value).startswith(function)
                called_object = ""
            elif key == "cfn":
                functions.resolve(value)
            else:
                after_calls = True
                if inside:
                    profile.calls += int(value.split()[0])
                    profile.objects.add(called_object or current_object)
                called_object = ""
        elif line[:1] in ("+", "-", "*") or line[:1].isdigit():
            cost = int(line.split()[1])
            if inside and after_calls:
                profile.called += cost
            elif inside:
                profile.own += cost
            after_calls = False
    return profile


@dataclass(frozen=True)
class Count:
    pair: float  # malloc and free with their calls and returns
    loop: float  # the caller's other instructions, for one pair


def per_pair(few: Profile, many: Profile, pairs: int) -> Count:
    """From the profiles of two runs of which the second has `pairs` more pairs."""
    if many.calls - few.calls != CALLS_PER_PAIR * pairs:
        raise BenchError(
            f"callgrind saw {many.calls - few.calls} calls for {pairs} pairs: {LOOP} was inlined or changed"
        )
    return Count((many.called - few.called) / pairs + CALLS_PER_PAIR, (many.own - few.own) / pairs - CALLS_PER_PAIR)


def without_preload(allocator: Allocator) -> Allocator:
    return Allocator(allocator.name, None, allocator.environment)


def profile(launcher: Path, program: Path, allocator: Allocator, linked: bool, size: int, pairs: int) -> Profile:
    with tempfile.TemporaryDirectory(prefix="folio-callgrind-") as scratch:
        out_file = Path(scratch) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out_file}", str(program)]
        command += [f"size={size}", f"pairs={pairs}", "quiet=1"]
        started_on = without_preload(allocator) if linked else allocator
        # Bound at the start, or the loop's first calls would go to the loader.
        run = launch(launcher, started_on, command, environment={"LD_BIND_NOW": "1"}, timeout=300)
        if run.status != 0 or not out_file.exists():
            last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise BenchError(f"callgrind on {allocator.name}: exit status {run.status} {' '.join(last)}")
        result = parse_callgrind(out_file.read_text(errors="replace"))
    known = result.objects - {UNKNOWN_OBJECT}
    if not result.objects or not all(serves(allocator, path) for path in known):
        raise BenchError(f"{allocator.name}: the calls went to {', '.join(sorted(result.objects)) or 'nowhere'}")
    return result


def build_linked(allocator: Allocator, out_dir: Path) -> Path:
    target, source = out_dir / f"tight_loop_{allocator.name}", PROGRAMS / "tight_loop.cc"
    library = [] if allocator.library is None else [allocator.library]
    if is_stale(target, [source, *PROGRAMS.glob("*.h"), *library]):
        link = [argument for path in library for argument in (str(path), f"-Wl,-rpath,{path.parent}")]
        compile_to(target, [compiler("c++"), *CXX_FLAGS, str(source), *link])
    return target


def build_plain(out_dir: Path) -> Path:
    """With PLT stubs, as distributions build their programs."""
    target, source = out_dir / "tight_loop_plt", PROGRAMS / "tight_loop.cc"
    if is_stale(target, [source, *PROGRAMS.glob("*.h")]):
        compile_to(target, [compiler("c++"), *(f for f in CXX_FLAGS if f != "-fno-plt"), str(source)])
    return target


def prove_served(launcher: Path, program: Path, allocator: Allocator, linked: bool) -> None:
    """Raises BenchError unless the program, run as it will be under callgrind, has its malloc from the allocator."""
    run = launch(launcher, without_preload(allocator) if linked else allocator, [str(program), "pairs=1"])
    path = json.loads(run.stdout)["malloc"] if run.status == 0 else f"nowhere: exit status {run.status}"
    if not serves(allocator, path):
        raise BenchError(f"{allocator.name}: {program.name} has its malloc from {path}")


def count(launcher: Path, program: Path, allocator: Allocator, linked: bool, size: int) -> Count:
    prove_served(launcher, program, allocator, linked)
    few, many = (profile(launcher, program, allocator, linked, size, pairs) for pairs in (FEW, MANY))
    return per_pair(few, many, MANY - FEW)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 512], metavar="BYTES")
    add_places(parser)
    parser.add_argument("--no-peers", action="store_true", help="Folio only")
    parser.add_argument("--most", type=float, metavar="N", help="fail if Folio needs more than N for any size")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise BenchError("no valgrind: apt-get install valgrind")
    make_folder(arguments.build)
    launcher = build_launcher(arguments.build)
    allocators = [] if arguments.no_peers else find_peers()[0]
    if arguments.lib.is_file():
        allocators.insert(0, Allocator("folio", arguments.lib.resolve()))
    elif arguments.no_peers or arguments.most is not None:
        raise BenchError(f"no {arguments.lib}: make build")
    print("Instructions of one malloc and one free, calls and returns included, the caller's loop not.\n")
    print(f"| allocator | {' | '.join(f'{size} B linked | {size} B preload' for size in arguments.sizes)} |")
    print(f"| --- |{' --- |' * (2 * len(arguments.sizes))}", flush=True)
    worst = 0.0
    for allocator in allocators:
        programs = [(build_linked(allocator, arguments.build), True), (build_plain(arguments.build), False)]
        try:
            prove_loaded(launcher, allocator)
            pairs = [
                count(launcher, program, allocator, linked, size).pair
                for size in arguments.sizes
                for program, linked in programs
            ]
        except BenchError as error:  # some peers do not run under valgrind
            if allocator.name == "folio":
                raise
            print(f"left out: {error}", file=sys.stderr)
            continue
        if allocator.name == "folio":
            worst = max(pairs)
        print(f"| {allocator.name} | {' | '.join(f'{pair:.2f}' for pair in pairs)} |", flush=True)
    print("\nnext: bench/run.py --only 'tight loop'  (the same paths, timed)")
    if arguments.most is not None and worst > arguments.most:
        print(f"bench/instructions.py: {worst:.2f} instructions, {arguments.most:g} are allowed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    end_with(main, "bench/instructions.py")
