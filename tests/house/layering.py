"""Checks that the folders of src are layers, and what each layer may name.

- A file includes its own folder or a lower layer, one before it in LAYERS, by the path of an existing header in src.
- No cycles, also among modules: NAME.h, NAME.cc and every NAME_*.cc that has no header are one.
- Headers of the libc, beyond those without code, only in os, core and api; of the C++ library only in api.
- The public header only in the layers that speak to the outside.
- Processor headers only through arch/arch.h; no header that only includes others.
- Preprocessor conditions on the platform only in os, arch and api; elsewhere, and there too, FOLIO_ names of the list.
"""

from __future__ import annotations

import re
from pathlib import Path

import house

# The lowest first.
LAYERS = ["base", "arch", "config", "os", "sync", "space", "store", "policy", "cache", "insight", "core", "diag", "api"]
PLATFORM_LAYERS = {"arch", "os", "api"}
LIBC_LAYERS = {"os", "core", "api"}
PUBLIC_HEADER_LAYERS = {"core", "diag", "api"}
FREESTANDING = {"limits.h", "stdarg.h", "stdbool.h", "stddef.h", "stdint.h"}
FEATURES = {"FOLIO_COUNT", "FOLIO_EMBED", "FOLIO_EXPLORE", "FOLIO_SHARED", "FOLIO_TABLE_READ_ONLY"}

INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]*)"|<([^>]*)>)')
CONDITION = re.compile(r"\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)")
NAME = re.compile(r"\b[A-Za-z_]\w*\b")


def check_own_include(root: Path, path: Path, number: int, target: str, problems: house.Problems) -> None:
    folder = target.split("/")[0]
    if folder not in LAYERS or not (root / "src" / target).is_file():
        problems.add(path, number, f'"{target}" is no header below src')
    elif LAYERS.index(folder) > LAYERS.index(path.parts[1]):
        problems.add(path, number, f'{path.parts[1]} includes "{target}", of a higher layer')
    elif folder == "arch" and target != "arch/arch.h" and path.parts[1] != "arch":
        problems.add(path, number, f'"{target}" is included through arch/arch.h only')


def check_foreign_include(path: Path, number: int, target: str, problems: house.Problems) -> None:
    layer = path.parts[1]
    if target.startswith("folio/"):
        if layer not in PUBLIC_HEADER_LAYERS:
            problems.add(path, number, f"{layer} includes the public header <{target}>")
    elif "." not in target:
        if layer != "api":
            problems.add(path, number, f"{layer} includes <{target}> of the C++ library")
    elif target not in FREESTANDING and layer not in LIBC_LAYERS:
        problems.add(path, number, f"{layer} includes <{target}> of the libc")


def check_condition(path: Path, number: int, condition: str, problems: house.Problems) -> None:
    for name in NAME.findall(condition):
        if name.startswith("FOLIO_"):
            if name not in FEATURES:
                problems.add(path, number, f"#if on {name}, which is not in the list of tests/house/layering.py")
        elif name not in {"defined", "__has_include"} and path.parts[1] not in PLATFORM_LAYERS:
            problems.add(path, number, f"#if on {name} outside os, arch and api")


def module_of(path: Path, headers: set[Path]) -> Path:
    """The header by whose name the file goes: large_purge.cc, which has none of its own, is of large.h."""
    name = path.with_suffix("").name
    while path.with_name(f"{name}.h") not in headers and "_" in name:
        name = name.rpartition("_")[0]
    header = path.with_name(f"{name}.h")
    return header if header in headers else path


def modules(includes: dict[Path, list[Path]]) -> dict[Path, list[Path]]:
    """The same among modules."""
    headers = {path for path in includes if path.suffix == ".h"}
    found: dict[Path, list[Path]] = {}
    for path, targets in includes.items():
        own = module_of(path, headers)
        others = [module_of(target, headers) for target in targets]
        found.setdefault(own, []).extend(other for other in others if other != own)
    return found


def find_cycles(includes: dict[Path, list[Path]], problems: house.Problems) -> None:
    done: set[Path] = set()

    def visit(path: Path, trail: list[Path]) -> None:
        if path in trail:
            cycle = [*trail[trail.index(path) :], path]
            problems.add(path, 1, "include cycle: " + " -> ".join(str(p.relative_to("src")) for p in cycle))
        elif path not in done:
            for target in includes.get(path, []):
                visit(target, [*trail, path])
            done.add(path)

    for path in sorted(includes):
        visit(path, [])


def check(root: Path, problems: house.Problems) -> str:
    includes: dict[Path, list[Path]] = {}
    sources = house.files(root, ["src"], house.CODE)
    for path in sources:
        if len(path.parts) != 3 or path.parts[1] not in LAYERS:
            problems.add(path, 1, "not in the folder of a layer")
            continue
        includes[path] = []
        text = (root / path).read_text()
        # Includes from the text: the splitter empties the quoted names.
        only_includes = path.suffix == ".h"
        for number, (raw, code) in enumerate(zip(text.split("\n"), house.split(text)[0], strict=True), 1):
            if include := INCLUDE.match(raw):
                if include[1] is not None:
                    check_own_include(root, path, number, include[1], problems)
                    includes[path].append(Path("src") / include[1])
                else:
                    check_foreign_include(path, number, include[2], problems)
            elif condition := CONDITION.match(code):
                check_condition(path, number, condition[1], problems)
            if code.strip() and not include and "#pragma once" not in code:
                only_includes = False
        if only_includes:
            problems.add(path, 1, "a header that only includes others")
    find_cycles(includes, problems)
    find_cycles(modules(includes), problems)
    return f"the layering of {len(sources)} files"


if __name__ == "__main__":
    house.main(__doc__, check)
