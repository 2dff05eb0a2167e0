"""What is mapped into a process as code: files by build-id, the vdso, code made at run time.

Mappings come and go (dlopen, dlclose). An address means what was mapped there last, so what is gone is known on.
"""

from __future__ import annotations

import bisect
import os
import re
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from folio.cfi import ARCHES, BROKEN, Arch, Row, UnwindTable
from folio.errors import FolioError
from folio.process import Mapping

NO_BUILD_ID = ""


def build_id_of(elf: ELFFile) -> str:
    for segment in elf.iter_segments("PT_NOTE"):
        for note in segment.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return str(note["n_desc"])
    return NO_BUILD_ID


@dataclass(eq=False)
class Module:
    """A file with code, or what stands for one."""

    name: str  # its path in the process, or [vdso]
    stream: Any = None  # the file, open as long as this is: it is the same when it has gone from its folder
    build_id: str = NO_BUILD_ID
    base: int = 0  # its lowest address, by itself
    code: list[tuple[int, int, int]] = field(default_factory=list)  # (offset in the file, bytes, address)
    table: UnwindTable | None = None
    problem: str = ""
    newer: bool = False  # than the file that tells of the process

    @property
    def file(self) -> Path | None:
        """Where it can be read, also when the process has ended."""
        return Path(f"/proc/self/fd/{self.stream.fileno()}") if isinstance(self.stream, BufferedReader) else None

    @property
    def short(self) -> str:
        return os.path.basename(self.name)

    def address(self, offset: int) -> int:
        """The file's own address of what lies at an offset in it."""
        for start, length, address in self.code:
            if start <= offset < start + length:
                return address + offset - start
        return offset

    def row(self, address: int) -> Row | None:
        return self.table.row(address) if self.table else None


def open_module(name: str, file: Path | None, data: bytes | None, arch: Arch) -> Module:
    module = Module(name)
    try:
        module.stream = BytesIO(data) if data is not None else file.open("rb")  # type: ignore[union-attr]
        elf = ELFFile(module.stream)
        loads = list(elf.iter_segments("PT_LOAD"))
        module.base = min((s["p_vaddr"] for s in loads), default=0)
        module.code = [(s["p_offset"], s["p_filesz"], s["p_vaddr"]) for s in loads if s["p_flags"] & 1]
        try:
            module.build_id = build_id_of(elf)
        except BROKEN:
            module.build_id = NO_BUILD_ID
        module.table = UnwindTable(elf, arch)
    except (OSError, *BROKEN):
        module.problem = "cannot be read"
    return module


@dataclass(frozen=True)
class Code:
    """A mapping of code."""

    start: int
    end: int
    offset: int
    module: Module | None  # None: memory of no file


class Modules:
    """Of one process; `poll` sees what is mapped now."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.arch = self._arch()
        self.known: dict[tuple[str, int], Module] = {}
        self.now: list[Code] = []
        self.starts: list[int] = []
        self.before: list[Code] = []  # what is gone, the newest first
        self.changes = 0

    def _arch(self) -> Arch:
        try:
            name = getattr(self.process, "machine", "")
            if not name:
                with (self.process.root / "exe").open("rb") as file:
                    name = ELFFile(file).get_machine_arch()
        except (OSError, ELFError, AttributeError):
            name = {"x86_64": "x64", "aarch64": "AArch64"}.get(os.uname().machine, "")
        if name not in ARCHES:
            raise FolioError(f"stacks of {name} are not known to this tool: it unwinds x86-64 and aarch64")
        return ARCHES[name]

    def poll(self) -> None:
        mappings = [m for m in self.process.mappings() if "x" in m.flags]
        codes = [Code(m.start, m.end, m.offset, self._module(m)) for m in mappings]
        if codes == self.now:
            return
        self.changes += 1
        gone = set(self.now) - set(codes)
        self.before[:0] = sorted(gone, key=lambda code: code.start)
        self.now, self.starts = codes, [code.start for code in codes]

    def _module(self, mapping: Mapping) -> Module | None:
        if not mapping.path and mapping.name != "[vdso]":
            return None
        key = (mapping.name, mapping.inode)
        if key not in self.known:
            self.known[key] = self._open(mapping)
        return self.known[key]

    def _open(self, mapping: Mapping) -> Module:
        if not mapping.path:
            try:
                image = self.process.read(mapping.start, mapping.end - mapping.start)
            except FolioError:
                return Module("[vdso]", problem="is not in the file")
            return open_module("[vdso]", None, image, self.arch)
        file = self.process.file(mapping)
        if mapping.name.endswith(" (deleted)"):  # the kernel still has it, for root
            file = self.process.root / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        module = open_module(mapping.path, file, None, self.arch)
        if getattr(self.process, "still", False) and module.stream is not None:
            module.newer = file.stat().st_mtime > self.process.path.stat().st_mtime
        there = self._mapped_build_id(mapping)
        if there and module.build_id != there:
            what = "was deleted" if module.problem else "was replaced on disk since it was mapped"
            module = Module(mapping.path, None, there, problem=what)
        return module

    def _mapped_build_id(self, mapping: Mapping) -> str:
        """Of what is really mapped: the file may be another by now."""
        for first in self.process.mappings():
            if first.name == mapping.name and first.offset == 0:
                try:
                    return build_id_of(ELFFile(BytesIO(self.process.read(first.start, first.end - first.start))))
                except (FolioError, *BROKEN):
                    return NO_BUILD_ID  # of a process that has ended nobody knows
        return NO_BUILD_ID

    def find(self, address: int) -> Code | None:
        at = bisect.bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.now[at].end:
            return self.now[at]
        return next((code for code in self.before if code.start <= address < code.end), None)


class MadeCode:
    """Names of code that the process makes at run time, from the file that JIT compilers write for perf."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.found: dict[int, tuple[int, str]] = {}  # by the start: bytes and name
        self.starts: list[int] = []
        self.read = (0, 0)  # of which file (inode) how many bytes

    def _files(self) -> list[Path]:
        pids = [str(self.process.pid)]
        try:
            status = (self.process.root / "status").read_text(errors="replace")
            pids += re.findall(r"^NStgid:.*\s(\d+)$", status, re.M)
        except OSError:
            pass
        return [self.process.root / "root/tmp" / f"perf-{pid}.map" for pid in reversed(pids)]

    def poll(self) -> None:
        """Reads what was added. Of an address the last line counts."""
        for file in self._files():
            try:
                with file.open("rb") as stream:
                    there = os.fstat(stream.fileno())
                    inode, done = self.read
                    if inode != there.st_ino or there.st_size < done:
                        self.found, done = {}, 0
                    stream.seek(done)
                    text = stream.read(there.st_size - done)
            except OSError:
                continue
            text = text[: text.rfind(b"\n") + 1]
            self.read = (there.st_ino, done + len(text))
            lines = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) (.+)$", text.decode(errors="replace"), re.M)
            if lines:
                self.found.update({int(start, 16): (int(length, 16), name) for start, length, name in lines})
                self.starts = sorted(self.found)
            return

    def name(self, address: int) -> str:
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0:
            return ""
        length, name = self.found[self.starts[at]]
        return name if address < self.starts[at] + length else ""
