"""Checks the linkage of the built libraries: what they export, what they need, and how they hold thread-local data.

The names are in two lists beside this file: exported.txt (of libfolio.so and libfolio.o; the folio_ names among them
are those of libfolio-embed.so, and hold all FOLIO_API functions of the public header) and undefined.txt. What the
*check.cc of src define is for tests: only libfolio-core.a has it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import house

HERE = Path(__file__).parent
NEEDED = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
HEADER = Path("include/folio/folio.h")


def run(*command: str | Path) -> str:
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def listed(name: str) -> set[str]:
    lines = [line.split("#")[0].strip() for line in (HERE / name).read_text().split("\n")]
    return {line for line in lines if line}


def listed_for_shared_alone() -> set[str]:
    lines = (HERE / "exported.txt").read_text().split("\n")
    return {line.split("#")[0].strip() for line in lines if line.endswith("# libfolio.so only")}


def symbols(library: Path, *options: str) -> set[str]:
    """Names that nm prints, demangled, without versions; undefined ones that may stay so with "weak " before them."""
    names = set()
    for line in run("nm", "-C", *options, library).split("\n"):
        if match := re.match(r"(?:[0-9a-f]+)?\s+([A-Za-z]) (.*)", line):
            names.add(("weak " if match[1] in "wv" else "") + match[2].split("@")[0])
    return names


def compare(where: str, found: set[str], wanted: set[str], problems: house.Problems) -> None:
    for name in sorted(found - wanted):
        problems.add(where, 1, f"has {name}, which is not in the list")
    for name in sorted(wanted - found):
        problems.add(where, 1, f"lacks {name}")


def check_shared(library: Path, exported: set[str], problems: house.Problems) -> None:
    compare(library.name, symbols(library, "-D", "--defined-only"), exported, problems)
    for name in sorted(symbols(library, "-D", "--undefined-only") - listed("undefined.txt")):
        problems.add(library.name, 1, f"needs {name}, which is not in tests/house/undefined.txt")
    dynamic = run("readelf", "-dW", library)
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if needed not in NEEDED:
            problems.add(library.name, 1, f"needs {needed}")
    if f"[{library.name}.0]" not in dynamic:
        problems.add(library.name, 1, f"SONAME is not {library.name}.0")
    for flag in ("NOW", "NODELETE"):
        if not re.search(rf"\(FLAGS_1\).*\b{flag}\b", dynamic):
            problems.add(library.name, 1, f"is linked without -z {flag.lower()}")
    if "TEXTREL" in dynamic:
        problems.add(library.name, 1, "has text relocations")
    segments = run("readelf", "-lW", library)
    if "GNU_RELRO" not in segments or re.search(r"GNU_STACK.*RWE", segments):
        problems.add(library.name, 1, "lacks a read-only segment of relocations or has an executable stack")


def of_tests(core: Path) -> set[str]:
    """What the members *check.cc.o of the archive define."""
    return set(re.findall(r"check\.cc\.o:[0-9a-f]+ T (.*)", run("nm", "-AC", "--defined-only", core)))


def static_tls(library: Path) -> bool:
    """Whether the library's thread-local data must be there when the program starts."""
    return "STATIC_TLS" in run("readelf", "-dW", library)


def check(build: Path, root: Path, problems: house.Problems) -> None:
    exported = listed("exported.txt")
    own = {name for name in exported if name.startswith("folio_")}
    declared = set(re.findall(r"FOLIO_API[^;(]*?(folio_\w+)\(", (root / HEADER).read_text()))
    for name in sorted(declared - own):
        problems.add(HEADER, 1, f"declares {name}, which is not in tests/house/exported.txt")

    shared, embed = build / "libfolio.so", build / "libfolio-embed.so"
    check_shared(shared, exported, problems)
    check_shared(embed, own, problems)
    if not static_tls(shared) or "__tls_get_addr" in symbols(shared, "-D", "--undefined-only"):
        problems.add(shared.name, 1, "has thread-local data that is not initial-exec: the fast path calls the loader")
    if static_tls(embed):
        problems.add(embed.name, 1, "needs static TLS: dlopen may fail")
    found = symbols(build / "libfolio.o", "--defined-only", "--extern-only")
    compare("libfolio.o", found, exported - listed_for_shared_alone(), problems)

    for library in (shared, embed, build / "libfolio.o"):
        for name in sorted(of_tests(build / "libfolio-core.a") & symbols(library, "--defined-only")):
            problems.add(library.name, 1, f"has {name}, which only tests call")


if __name__ == "__main__":
    parser = house.parser(__doc__)
    parser.add_argument("--build", type=Path, default=house.PROJECT / "build", help="where the libraries are")
    arguments = parser.parse_args()
    found = house.Problems()
    check(arguments.build, arguments.root, found)
    house.finish(found, "the symbols of libfolio.so, libfolio-embed.so and libfolio.o")
