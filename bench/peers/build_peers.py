#!/usr/bin/env python3
"""Builds the newest versions of the peers as libraries to preload, from sources that crates carry.

Cargo is only the way to get the sources by name and exact version (Cargo.toml, Cargo.lock); no Rust is compiled. Each
peer is built by its own build system, with the settings that its authors recommend for a release. A peer that fails
gives one line and a log, and the others go on. What is up to date is not built again, but every peer is proven each
time: a process on it has its library in its map, and takes every function of the malloc family from it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import (
    BUILT_PEERS,
    ROOT,
    Allocator,
    BenchError,
    build_launcher,
    compile_to,
    compiler,
    end_with,
    find_peers,
    is_stale,
    launch,
    maps_hold,
    serves,
)

HERE = Path(__file__).resolve().parent
FUNCTIONS = ["malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "malloc_usable_size"]
SPARSE_SINCE = (1, 68)  # an older cargo takes crates.io from a git repository unless told otherwise
EDITION_2024_SINCE = (1, 85)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Workplace:
    """Where one peer is built: `sources` is a copy that its build may write to."""

    sources: Path
    build: Path
    log: Path
    jobs: int
    version: str

    def run(self, command: list[str | Path], cwd: Path | None = None) -> None:
        """Raises BenchError with the first error in the output; all of it is in the log."""
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            begin = log.tell()
            result = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            raise BenchError(f"{first_error(output)} (log: {self.log})")

    def cmake(self, source: Path, options: list[str], target: str) -> None:
        options = ["-DCMAKE_BUILD_TYPE=Release", *options]
        self.run(["cmake", "-G", "Ninja", "-S", source, "-B", self.build, *options])
        self.run(["cmake", "--build", self.build, "--parallel", str(self.jobs), "--target", target])


def first_error(output: str) -> str:
    """The line of a build's output that tells most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\berror\b", line, re.IGNORECASE):
            return line
    return lines[-1] if lines else "failed without a message"


def only_file(folder: Path, pattern: str) -> Path:
    """The library that a build made, not the links to it."""
    found = sorted({path.resolve() for path in folder.glob(pattern)})
    if len(found) != 1:
        raise BenchError(f"{len(found)} files {pattern} in {folder}")
    return found[0]


def build_mimalloc(place: Workplace) -> Path:
    # The crate leaves out the folder cmake/, which its CMakeLists.txt includes: a version, and a function for its .pc.
    major, minor, patch = place.version.split(".")
    stand_ins = place.sources / "cmake"
    stand_ins.mkdir(exist_ok=True)
    stand_ins.joinpath("mimalloc-config-version.cmake").write_text(
        f"set(mi_version_major {major})\nset(mi_version_minor {minor})\nset(mi_version_patch {patch})\n"
        "set(mi_version ${mi_version_major}.${mi_version_minor})\n"
    )
    stand_ins.joinpath("JoinPaths.cmake").write_text(
        'function(join_paths result)\n  list(JOIN ARGN "/" joined)\n'
        "  set(${result} ${joined} PARENT_SCOPE)\nendfunction()\n"
    )
    others = ["-DMI_BUILD_STATIC=OFF", "-DMI_BUILD_OBJECT=OFF", "-DMI_BUILD_TESTS=OFF"]
    place.cmake(place.sources, ["-DMI_BUILD_SHARED=ON", "-DMI_OVERRIDE=ON", *others], "mimalloc")
    return only_file(place.build, "libmimalloc.so*")


def build_snmalloc(place: Workplace) -> Path:
    """The target without checks, which snmalloc calls the fast one."""
    options = ["-DSNMALLOC_BUILD_TESTING=OFF", "-DSNMALLOC_STATIC_LIBRARY=OFF"]
    place.cmake(place.sources, options, "snmallocshim")
    return only_file(place.build, "libsnmallocshim.so*")


def build_jemalloc(place: Workplace) -> Path:
    """In place, with configure's defaults, which are those of a release."""
    configure = shutil.copy(place.sources.parent / "configure" / "configure", place.sources)
    if not (place.sources / "Makefile").exists():
        version = f"--with-version={place.version}-0-g0"  # there is no git to ask, and jemalloc wants this form
        place.run(["sh", configure, version, "--disable-doc", "--disable-static"], cwd=place.sources)
    place.run(["make", f"-j{place.jobs}", "build_lib_shared"], cwd=place.sources)
    return only_file(place.sources / "lib", "libjemalloc.so*")


def build_rpmalloc(place: Workplace) -> Path:
    """The one file with the flags of its build/ninja/gcc.py for librpmallocwrap.so, release; warnings aside."""
    flags = "-std=c11 -O3 -funroll-loops -funit-at-a-time -fstrict-aliasing -fno-math-errno -ffinite-math-only"
    flags += " -funsafe-math-optimizations -fno-trapping-math -ffast-math -fPIC -pthread -w"
    defines = "-D_GNU_SOURCE=1 -DRPMALLOC_COMPILE=1 -DBUILD_RELEASE=1 -DBUILD_DYNAMIC_LINK=1"
    defines += " -DENABLE_PRELOAD=1 -DENABLE_OVERRIDE=1"
    target = place.build / "librpmallocwrap.so"
    place.build.mkdir(parents=True, exist_ok=True)
    source = place.sources / "rpmalloc" / "rpmalloc.c"
    place.run([compiler("c"), *flags.split(), *defines.split(), "-shared", source, "-o", target, "-ldl"])
    return target


def listed_sources(build_rs: str) -> list[str]:
    """The C++ files that the crate of Google's tcmalloc compiles, but tcmalloc.cc for what it puts in its place."""
    found = re.findall(r'"(c_src/[^"]+\.(?:cc|S))"', build_rs)
    own = [name for name in found if not name.endswith("_bridge.cc")]
    return [*own, "c_src/tcmalloc/tcmalloc/tcmalloc.cc"] if own else []


def build_tcmalloc_google(place: Workplace) -> Path:
    crate = place.sources.parent
    names = listed_sources((crate / "build.rs").read_text())
    sources = ";".join(str(crate / name) for name in names)
    includes = ";".join(str(crate / "c_src" / name) for name in ("abseil-cpp", "tcmalloc"))
    place.cmake(HERE, [f"-DSOURCES={sources}", f"-DINCLUDES={includes}"], "tcmalloc-google")
    return only_file(place.build, "libtcmalloc-google.so*")


def define_of(folder: Path, file_name: str, name: str) -> int:
    match = re.search(rf"#define\s+{name}\s+(\d+)", (folder / file_name).read_text())
    if match is None:
        raise BenchError(f"no {name} in {file_name}")
    return int(match[1])


def mimalloc_version(sources: Path, _: str) -> str:
    return mimalloc_number(define_of(sources, "include/mimalloc.h", "MI_MALLOC_VERSION"))


def mimalloc_number(number: int) -> str:
    """20302 is 2.3.2, and so was 232 before 2.1.9."""
    width = 100 if number >= 10_000 else 10
    return f"{number // width**2}.{number // width % width}.{number % width}"


def jemalloc_version(_: Path, crate: str) -> str:
    """Of 0.7.1+5.3.1-0-g81034ce."""
    return crate.partition("+")[2].partition("-")[0]


def rpmalloc_version(sources: Path, _: str) -> str:
    """The newest heading of its change log: nothing else in it has its version."""
    return (sources / "CHANGELOG").read_text().split(maxsplit=1)[0]


def crate_version(_: Path, crate: str) -> str:
    return crate


def google_version(_: Path, crate: str) -> str:
    """Its authors give none."""
    return f"crate {crate}"


@dataclass(frozen=True)
class Recipe:
    crate: str
    sources: str  # the folder inside the crate
    build: Callable[[Workplace], Path]
    version: Callable[[Path, str], str]
    manifest: str = "."  # the folder of the Cargo.toml that names the crate


RECIPES = {
    "jemalloc": Recipe("tikv-jemalloc-sys", "jemalloc", build_jemalloc, jemalloc_version),
    "mimalloc2": Recipe("libmimalloc-sys", "c_src/mimalloc/v2", build_mimalloc, mimalloc_version),
    "mimalloc3": Recipe("libmimalloc-sys", "c_src/mimalloc/v3", build_mimalloc, mimalloc_version),
    "snmalloc": Recipe("snmalloc-sys", "upstream", build_snmalloc, crate_version),
    "rpmalloc": Recipe("rpmalloc-sys", "rpmalloc", build_rpmalloc, rpmalloc_version),
    # Its crate needs a newer cargo than Debian 12's: a manifest of its own, so that the others do not.
    "tcmalloc-google": Recipe("libtcmalloc-sys", "c_src", build_tcmalloc_google, google_version, "tcmalloc-google"),
}


def cargo_number(text: str) -> tuple[int, int]:
    """(1, 65) of "cargo 1.65.0"; Debian's own says 0.66 there, one ahead of Rust 1.65 as cargo's library is."""
    match = re.match(r"cargo (\d+)\.(\d+)", text)
    if match is None:
        raise BenchError(f"what version is {text!r}?")
    major, minor = int(match[1]), int(match[2])
    return (1, minor - 1) if major == 0 else (major, minor)


def cargo_version() -> tuple[int, int]:
    try:
        return cargo_number(subprocess.run(["cargo", "--version"], capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        raise BenchError("no cargo, which fetches the sources: apt-get install cargo") from None


def fetch(manifest: str, version: tuple[int, int], log: Path) -> dict[str, tuple[str, Path]]:
    """Downloads what a Cargo.lock names, its checksums compared: version and folder of each crate by its name."""
    file = HERE / manifest / "Cargo.toml"
    environment = dict(os.environ)
    if version < SPARSE_SINCE:
        environment |= {"RUSTC_BOOTSTRAP": "1", "CARGO_UNSTABLE_SPARSE_REGISTRY": "true"}
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", str(file)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    log.write_text(result.stderr)
    if result.returncode != 0:
        reason = first_error(result.stderr)
        if version < EDITION_2024_SINCE and "edition" in result.stderr:
            reason = "its crate needs cargo 1.85 or newer, here is {}.{}".format(*version)
        raise BenchError(f"cannot fetch: {reason} (log: {log})")
    packages = json.loads(result.stdout)["packages"]
    return {package["name"]: (package["version"], Path(package["manifest_path"]).parent) for package in packages}


class Fetched:
    """Fetches each manifest at most once, and fails as often as asked."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.crates: dict[str, dict[str, tuple[str, Path]] | BenchError] = {}

    def crate(self, recipe: Recipe) -> tuple[str, Path]:
        if recipe.manifest not in self.crates:
            log = self.out_dir / f"fetch-{(HERE / recipe.manifest).name}.log"
            say(f"fetching sources ({recipe.crate}{' and others' if recipe.manifest == '.' else ''})")
            try:
                self.crates[recipe.manifest] = fetch(recipe.manifest, cargo_version(), log)
            except BenchError as error:
                self.crates[recipe.manifest] = error
        crates = self.crates[recipe.manifest]
        if isinstance(crates, BenchError):
            raise crates
        return crates[recipe.crate]


def library_of(name: str, out_dir: Path) -> Path:
    return out_dir / BUILT_PEERS[name]


def soname(dynamic_section: str) -> str:
    """Of what `readelf -d` prints; "" if the library has none."""
    match = re.search(r"\(SONAME\).*\[(.+)\]", dynamic_section)
    return match[1] if match else ""


def link_soname(library: Path) -> None:
    """A program that is linked against the library asks for that name, and must not get Debian's older one."""
    section = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    name = soname(section)
    if name not in ("", library.name):
        link = library.with_name(name)
        link.unlink(missing_ok=True)
        link.symlink_to(library.name)


def build_peer(name: str, fetched: Fetched, out_dir: Path, jobs: int) -> None:
    """Leaves the library, and its version beside it, or raises BenchError."""
    recipe = RECIPES[name]
    version, crate = fetched.crate(recipe)
    copied = out_dir / "work" / name / crate.name
    if not copied.exists():
        partial = copied.with_name(copied.name + ".partial")
        shutil.rmtree(copied.parent, ignore_errors=True)
        shutil.copytree(crate, partial)
        partial.rename(copied)
    sources = copied / recipe.sources
    log = out_dir / f"{name}.log"
    log.write_text("")
    place = Workplace(sources, copied.parent / "build", log, jobs, recipe.version(sources, version))
    say(f"building {name} {place.version}")
    begin = time.monotonic()
    built = recipe.build(place)
    library = library_of(name, out_dir)
    partial = library.with_suffix(".partial")
    place.run(["strip", "--strip-debug", "-o", partial, built])
    library.with_suffix(".version").write_text(place.version + "\n")
    partial.replace(library)
    link_soname(library)
    say(f"built {name} in {time.monotonic() - begin:.0f} s")


def ingredients() -> list[Path]:
    return [path for path in HERE.rglob("*") if path.suffix in (".lock", ".map", ".txt", ".py")]


def read_resolved(text: str) -> tuple[dict[str, str], str]:
    """What resolve.c prints: the file of each function, and the map."""
    lines = text.splitlines()
    pairs = [line.partition(" ") for line in lines[: len(FUNCTIONS)]]
    return {name: path for name, _, path in pairs}, "\n".join(lines[len(FUNCTIONS) :])


def why_unproven(allocator: Allocator, status: int, output: str) -> str:
    """What speaks against a process having run on the allocator; "" if nothing does."""
    if status != 0:
        return f"a small program on it ends with status {status}"
    resolved, maps = read_resolved(output)
    if allocator.library is not None and not maps_hold(maps, allocator.library):
        return "its library is not in the map of a process"
    elsewhere = [name for name in FUNCTIONS if not serves(allocator, resolved.get(name, ""))]
    if elsewhere:
        return f"{', '.join(elsewhere)}: not from it but from {resolved.get(elsewhere[0], 'nowhere')}"
    return ""


def prove(launcher: Path, program: Path, allocator: Allocator) -> str:
    try:
        run = launch(launcher, allocator, [str(program), *FUNCTIONS], timeout=60)
    except BenchError as error:
        return str(error)
    return why_unproven(allocator, run.status, run.stdout.decode(errors="replace"))


def build_resolve(out_dir: Path) -> Path:
    target, source = out_dir / "resolve", HERE / "resolve.c"
    if is_stale(target, [source]):
        compile_to(target, [compiler("c"), "-std=c11", "-O1", "-fno-builtin", "-pthread", str(source), "-ldl"])
    return target


def debian_version(library: Path) -> str:
    """Of the package that the file belongs to; "?" on other systems."""
    if shutil.which("dpkg-query") is None:
        return "?"
    for path in (library, library.resolve()):
        owner = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True).stdout
        if owner:
            package = owner.partition(": ")[0]
            show = ["dpkg-query", "-W", "-f", "${Version}", package]
            return subprocess.run(show, capture_output=True, text=True).stdout or "?"
    return "?"


def version_of(allocator: Allocator, out_dir: Path) -> str:
    if allocator.library is None:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "?").removeprefix("glibc ")
    if allocator.library.parent == out_dir:
        return allocator.library.with_suffix(".version").read_text().strip()
    return debian_version(allocator.library)


def row(allocator: Allocator, version: str, problem: str) -> list[str]:
    proven, path = "no" if problem else "yes", allocator.library
    if path is None:
        return [allocator.name, version, "the libc's own", "", proven]
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return [allocator.name, version, str(shown), f"{path.stat().st_size / 1024:.0f} KiB", proven]


def table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(RECIPES)}")
    parser.add_argument("--force", action="store_true", help="build also what is up to date")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers", help="where the libraries go")
    default_jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=default_jobs, metavar="N", help="compilers at a time")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(RECIPES):
        parser.error(f"no recipe for {', '.join(sorted(unknown))}; there are: {', '.join(RECIPES)}")
    out_dir = arguments.out.resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    fetched, failed = Fetched(out_dir), 0
    for name in arguments.names or RECIPES:
        if not arguments.force and not is_stale(library_of(name, out_dir), ingredients()):
            continue
        try:
            build_peer(name, fetched, out_dir, arguments.jobs)
        except (BenchError, OSError, subprocess.CalledProcessError) as error:
            failed += 1
            say(f"{name}: {error}")
    launcher, program = build_launcher(out_dir), build_resolve(out_dir)
    peers, missing = find_peers(built=out_dir, everything=True)
    rows, problems = [["name", "version", "library", "size", "proven"]], []
    for peer in peers:
        problem = prove(launcher, program, peer)
        problems += [f"{peer.name}: {problem}"] if problem else []
        rows.append(row(peer, version_of(peer, out_dir), problem))
    print(table(rows))
    for problem in problems:
        print(problem)
    if missing:
        print(f"not installed: apt-get install {' '.join(missing)}")
    print("next: make bench  (or bench/run.py --peers NAME ...)")
    return 1 if failed or problems else 0


if __name__ == "__main__":
    end_with(main, "bench/peers/build_peers.py")
