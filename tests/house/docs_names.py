"""Checks that documentation names only what exists.

In README.md, CHANGELOG.md, CONTRIBUTING.md, docs/*.md: `paths` of the tree (with * and {a,b}), links and #anchors,
`make targets`, options in FOLIO_OPTIONS=..., `folio_names`, `kConstants` and `Qualified::names` of the code. In code,
comments and messages: docs/NAME.md#anchor. In comments of src and include: files, kConstants, names_with_underscores
and calls(); `words`, and *parameters that point, of the file's own code or its header's, or options. And the other way
round: docs/options.md has every option, and its default; docs/PORTING.md has every function of the contract with the
system; each .cc of src opens with a comment.
"""

from __future__ import annotations

import re
from pathlib import Path

import house

TOP = ("src", "include", "tests", "bench", "tools", "docs", "cmake", "rust", ".ci")
CODE_FOLDERS = ["src", "include", "tests", "bench", "tools", "cmake"]
REFERRING = ["src", "include", "tests/abuse", "tests/api", "tools", "bench"]
CODE_SUFFIXES = (*house.CODE, ".py", ".sh", ".txt", ".cmake", ".in")

STRING = re.compile(r'"[^"\n]*"')
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"\bdocs/[\w.-]+\.md(?:#[a-z][\w-]*)?")
OPTIONS = re.compile(r"FOLIO_OPTIONS=[\"']?([\w:,%./-]+)")
ROW = re.compile(r'^FOLIO_(ENUM|SIZE)\(\s*(\w+)\s*,\s*(-?\d+)\s*,(?:\s*"([\w|]+)")?', re.MULTILINE)
LIMIT = re.compile(r"^FOLIO_LIMIT\(\s*(\w+)", re.MULTILINE)
LIMIT_VALUE = re.compile(r"\d+[KMGTkmgt%]?|cgroup")
ROOT_FILE = re.compile(r"[\w.-]+\.(?:md|txt|json)|Makefile|LICENSE|CMakeLists\.txt")
QUALIFIED = re.compile(r"(?!std::)[A-Za-z_]\w*(?:::~?\w+)+(?:\(\))?")
SYMBOL = re.compile(r"folio_\w+(?:\(\))?|k[A-Z]\w+")
IN_COMMENT = re.compile(
    r"(?<![\w/.-])(?:[\w/]+\.(?:h|cc|def|py|cmake)\b|k[A-Z]\w+|[a-z]\w*_\w+|[A-Za-z_]\w*(?=\(\)))(?!\.\w)"
)
# Of others: headers, the kernel's fields, the instructions by which compilers tell how a stack is unwound.
QUOTED = re.compile(r"`([a-z]\w*)`|(?<![\w*/])\*([a-z]\w*)(?=[:,; ]|\.\s|\.$)")
OF_OTHERS = re.compile(
    r"dlfcn\.h|sys/sdt\.h|linux/futex\.h|mm_cid|same_value|set_loc|advance_loc[124]|(?:def_cfa|val|offset|restore)_\w+|"
    r"remember_state|def_cfa"
)
CONTRACT = ("src/os/os.h", "src/os/faults.h")
DECLARED = re.compile(r"^(?:const |\[\[noreturn\]\] )?[A-Za-z]\w*[ *&]+(\w+)\([^{};]*\);", re.MULTILINE)
FENCE = re.compile(r"^\s*```")


def anchors(path: Path) -> set[str]:
    """The #anchors that GitHub makes of a document's headings, and the explicit ones."""
    text = path.read_text()
    headings = re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a (?:id|name)="([\w-]+)"', text))


def expand(pattern: str) -> list[str]:
    """a{b,c}d as abd and acd."""
    if brace := re.search(r"\{([^{}]*)\}", pattern):
        return [
            each
            for part in brace[1].split(",")
            for each in expand(pattern[: brace.start()] + part + pattern[brace.end() :])
        ]
    return [pattern]


class Names:
    """What there is to name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.near_files: dict[Path, set[str]] = {}
        self.in_code: set[str] = set()  # words, but for those in comments alone
        for path in [*house.files(root, CODE_FOLDERS, CODE_SUFFIXES), Path("CMakeLists.txt")]:
            if (root / path).is_file():
                text = (root / path).read_text()
                code = "\n".join(house.split(text)[0]) if path.suffix in house.CODE else text
                self.in_code |= set(re.findall(r"\w+", code)) | set(re.findall(r"\w+", " ".join(STRING.findall(text))))
        paths = house.files(root, [*CODE_FOLDERS, "docs"], (*CODE_SUFFIXES, ".md"))
        self.ends = {"/".join(path.parts[i:]) for path in paths for i in range(len(path.parts))}
        makefile = root / "Makefile"
        text = makefile.read_text() if makefile.is_file() else ""
        self.targets = {name for line in re.findall(r"^([\w %.-]+):", text, re.MULTILINE) for name in line.split()}
        rows = root / "src/config/options.def"
        found = ROW.findall(rows.read_text()) if rows.is_file() else []
        self.options = {name: (kind, int(default), values.split("|")) for kind, name, default, values in found}
        limits = LIMIT.findall(rows.read_text()) if rows.is_file() else []
        self.options |= {name: ("LIMIT", 0, [""]) for name in limits}

    def near(self, path: Path) -> set[str]:
        """Words in the code of a file and of its header or source; options and what C calls."""
        if path in self.near_files:
            return self.near_files[path]
        pair = [self.root / path.with_suffix(suffix) for suffix in (".h", ".cc")]
        code = [line for file in pair if file.is_file() for line in house.split(file.read_text())[0]]
        words = set(re.findall(r"\w+", "\n".join(code))) | set(self.options) | {"malloc", "free"}
        return self.near_files.setdefault(path, words)

    def has_path(self, path: str) -> bool:
        return all(any(self.root.glob(each)) for each in expand(path.rstrip("/")))

    def wrong_reference(self, reference: str, base: Path) -> str | None:
        """What is wrong with PATH#ANCHOR, seen from the folder `base`."""
        path, _, anchor = reference.partition("#")
        target = self.root / base / path
        if not target.exists():
            return f"{reference} names a file that does not exist"
        if anchor and anchor not in anchors(target):
            return f"{reference} names a heading that does not exist"
        return None

    def wrong_option(self, setting: str) -> str | None:
        name, _, value = setting.partition(":")
        if name not in self.options:
            return f'FOLIO_OPTIONS has no "{name}"'
        kind, _, values = self.options[name]
        if kind == "LIMIT":
            good = LIMIT_VALUE.fullmatch(value) is not None
        else:
            good = value in values if kind == "ENUM" else value.isdigit()
        if value and not good:
            return f'the option {name} has no value "{value}"'
        return None

    def wrong_span(self, span: str) -> str | None:
        """What is wrong with `span`, or None."""
        if re.fullmatch(rf"(?:{'|'.join(re.escape(t) for t in TOP)})/[\w.*{{}},/-]*(?:#[\w-]+)?", span):
            path, _, anchor = span.partition("#")
            if not self.has_path(path):
                return f"`{span}` does not exist"
            return self.wrong_reference(span, Path()) if anchor else None
        if ROOT_FILE.fullmatch(span):
            return None if self.has_path(span) or self.has_path(f"docs/{span}") else f"`{span}` does not exist"
        if re.fullmatch(r"[\w-]+\.(?:cc|h|hpp|py|def)", span):
            return None if any(self.has_path(f"{top}/**/{span}") for top in TOP) else f"`{span}` does not exist"
        if target := re.match(r"make ([a-z-]+)", span):
            return None if target[1] in self.targets else f"`{span}`: the Makefile has no such target"
        if SYMBOL.fullmatch(span) or QUALIFIED.fullmatch(span):
            parts = span.removesuffix("()").replace("~", "").split("::")
            return None if self.in_code.issuperset(parts) else f"`{span}` is not in the code"
        return None


def check_comments(names: Names, path: Path, problems: house.Problems) -> None:
    text = (names.root / path).read_text()
    if path.suffix == ".cc" and not text.startswith("//"):
        problems.add(path, 1, "does not open with a comment that says what it does")
    for number, line in enumerate(house.split(text)[1], 1):
        for name in IN_COMMENT.findall(line):
            known = names.ends if "." in name else names.in_code
            if name not in known and not OF_OTHERS.fullmatch(name):
                problems.add(path, number, f"the comment names {name}, which does not exist")
        for spans in QUOTED.findall(line):
            name = spans[0] or spans[1]
            if name not in names.near(path) and not IN_COMMENT.fullmatch(name):
                problems.add(path, number, f"the comment names {name}, which is not in this file's code")


def check_contract(names: Names, problems: house.Problems) -> None:
    path = Path("docs/PORTING.md")
    if not (names.root / path).is_file():
        return
    text = (names.root / path).read_text()
    for header in CONTRACT:
        code = "\n".join(house.split((names.root / header).read_text())[0])
        for name in DECLARED.findall(code):
            if f"`{name}`" not in text:
                problems.add(path, 1, f"does not name {name} of {header}")


def check_document(names: Names, path: Path, problems: house.Problems) -> None:
    fenced = False
    for number, line in enumerate((names.root / path).read_text().split("\n"), 1):
        if FENCE.match(line):
            fenced = not fenced
            continue
        wrong = [names.wrong_option(s) for m in OPTIONS.findall(line) for s in m.rstrip(".,").split(",")]
        if not fenced:
            wrong += [names.wrong_span(span) for span in SPAN.findall(line)]
            links = [link for link in LINK.findall(line) if not re.match(r"[a-z]+:", link)]
            wrong += [
                names.wrong_reference(path.name + link if link[0] == "#" else link, path.parent) for link in links
            ]
        else:
            wrong += [
                None if target in names.targets else f"the Makefile has no target {target}"
                for target in re.findall(r"^\s*(?:\$ )?(?:sudo )?make ([a-z-]+)", line)
            ]
        for each in wrong:
            if each:
                problems.add(path, number, each)


def check_options_document(names: Names, problems: house.Problems) -> None:
    path = Path("docs/options.md")
    if not (names.root / path).is_file():
        problems.add(path, 1, "is missing")
        return
    lines = (names.root / path).read_text().split("\n")
    for name, (kind, default, values) in names.options.items():
        shown = values[default] if kind == "ENUM" else str(default)
        rows = [line for line in lines if re.match(rf"(?:\|\s*|#+\s+)`?{name}`?\b", line)]
        if not rows:
            problems.add(path, 1, f"does not document the option {name}")
        elif rows[0].startswith("|") and not re.search(rf"\b{shown}\b", rows[0]):
            problems.add(path, lines.index(rows[0]) + 1, f"the default of {name} is {shown}")


def check(root: Path, problems: house.Problems) -> str:
    names = Names(root)
    documents = [Path(p) for p in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md") if (root / p).is_file()]
    documents += house.files(root, ["docs"], (".md",))
    for path in documents:
        check_document(names, path, problems)
    for path in house.files(root, REFERRING, CODE_SUFFIXES):
        for number, line in enumerate((root / path).read_text().split("\n"), 1):
            for reference in REFERENCE.findall(line):
                if wrong := names.wrong_reference(reference, Path()):
                    problems.add(path, number, wrong)
    for path in house.files(root, ["src", "include"], house.CODE):
        check_comments(names, path, problems)
    check_options_document(names, problems)
    check_contract(names, problems)
    return f"{len(documents)} documents"


if __name__ == "__main__":
    house.main(__doc__, check)
