"""Whose malloc and free do the files of a program call?

Mostly those of the first file in the loader's order that has them, which a preload is. Two kinds of libraries call
others: those that the program opens with RTLD_DEEPBIND look into their own dependencies first, where the C library is;
and some bring a malloc of their own. An object that passes from one malloc to the other's free ends the program.

Of a program that is run, the loader's log tells. Of a process, the words that its files call through: the loader wrote
there what it found.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.hash import GNUHashTable

from folio.errors import FolioError
from folio.launching import is_libc, same_file
from folio.process import Mapping, Process
from folio.proof import debug_environment, is_library
from folio.run import preload_with

CALLS = ("malloc", "calloc", "realloc", "free", "memalign", "aligned_alloc", "posix_memalign")
LOGGED_FILE = re.compile(r"binding file (/\S+) \[\d+\] to ")
LOGGED = re.compile(rf"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `({'|'.join(CALLS)})'")
WORD_TYPES = (6, 7, 1025, 1026)  # R_X86_64_GLOB_DAT and _JUMP_SLOT, R_AARCH64_GLOB_DAT and _JUMP_SLOT
ENTRY = np.dtype([("at", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
SYMBOL_BYTES = 24
END_SECONDS = 2


@dataclass(frozen=True)
class Binding:
    file: str  # that calls
    target: str  # the file whose function it calls
    call: str


@dataclass
class Bindings:
    """What is known of a program's files."""

    served: set[str] = field(default_factory=set)  # files that call Folio's
    deep: dict[str, set[str]] = field(default_factory=dict)  # files that call another's, and whose
    own: set[str] = field(default_factory=set)  # files that call their own
    brought: set[str] = field(default_factory=set)  # files that have one, and call none that the loader binds

    def as_dict(self) -> dict[str, Any]:
        return {
            "folio": sorted(self.served),
            "others": {file: sorted(targets) for file, targets in sorted(self.deep.items())},
            "own": sorted(self.own),
            "brought": sorted(self.brought),
        }

    def check_files(self, files: Iterable[str], library: str) -> None:
        """For those with a malloc: one that is linked with -Bsymbolic calls its own, and the loader binds nothing."""
        for file in set(files) - self.served - self.deep.keys() - self.own:
            if not is_system(file) and not same_file(file, library) and has_malloc(Path(file)):
                self.brought.add(file)


def is_system(file: str) -> bool:
    """The C library and the loader: what they call says nothing of the program."""
    return is_libc(file) or os.path.basename(file).startswith("ld-")


def has_malloc(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            dynamic = next(elf.iter_segments("PT_DYNAMIC"))
            start = next(tag.entry.d_val for tag in dynamic.iter_tags("DT_GNU_HASH"))
            symbol = GNUHashTable(elf, next(iter(elf.address_offsets(start))), dynamic).get_symbol("malloc")
            return symbol is not None and symbol["st_shndx"] != "SHN_UNDEF"
    except (OSError, ELFError, StopIteration, ValueError, KeyError):
        return False  # no ELF file, one that is gone, or one with an older kind of table


def sorted_out(found: Iterable[Binding], library: str, program: str = "") -> Bindings:
    """`program`: that a library calls a stub in it says nothing, the stub calls what the program calls."""
    made = Bindings()
    for each in found:
        if is_system(each.file) or same_file(each.file, library):
            continue
        if same_file(each.target, library) or each.target == program:
            made.served.add(each.file)
        elif each.target == each.file:
            made.own.add(each.file)
        else:
            made.deep.setdefault(each.file, set()).add(each.target)
    made.served -= made.deep.keys() | made.own
    return made


# ---- Of a program that is run ----


def in_log(text: str) -> set[Binding]:
    return {Binding(*match.groups()) for match in LOGGED.finditer(text)}


def stub_holder(found: Iterable[Binding]) -> str:
    """The program, where it is linked to a fixed place and takes malloc's address: a stub in it stands for malloc."""
    targets = defaultdict(set)
    for each in found:
        targets[each.file].add(each.target)
    return next((f for f, of in targets.items() if f in of and len(of) > 1 and not is_library(f)), "")


@dataclass(frozen=True)
class Trial:
    """A run of a program for some seconds."""

    bindings: Bindings
    ended: str  # how; empty where it was ended when its time was up
    by_signal: bool


def try_program(command: list[str], library: Path, seconds: float) -> Trial:
    """Runs it on Folio, without input and output, and ends it after so many seconds."""
    with tempfile.TemporaryDirectory(prefix="folio-check-") as scratch:
        environment = preload_with(library, dict(os.environ), "") | debug_environment(scratch)
        quiet = subprocess.DEVNULL
        try:
            child = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=quiet, env=environment, start_new_session=True
            )
        except OSError as error:
            raise FolioError(f"cannot run {command[0]}: {error.strerror}; is it the name of a program?") from None
        ended = ""
        try:
            status = child.wait(seconds)
            ended = f"status {status}" if status >= 0 else signal.Signals(-status).name
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(child)
        texts = [file.read_text(errors="replace") for file in Path(scratch).glob("log.*")]
    logs = [in_log(text) for text in texts]
    if not any(same_file(each.target, library) for log in logs for each in log):
        raise FolioError(
            f"{command[0]} does not call Folio's malloc (statically linked, set-user-id, or it calls no malloc): link "
            "a static program with libfolio.o"
        )
    made = Bindings()
    for log in logs:
        of_one = sorted_out(log, str(library), stub_holder(log))
        made.served |= of_one.served
        made.own |= of_one.own
        made.deep |= of_one.deep
    made.check_files({match[1] for text in texts for match in LOGGED_FILE.finditer(text)}, str(library))
    return Trial(made, ended, ended.startswith("SIG"))


def end(child: subprocess.Popen) -> None:
    """The program, and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break


# ---- Of a process ----


def words_of(path: Path) -> tuple[list[tuple[int, str]], set[str]]:
    """Where in the file's memory are the words that it calls through, and which of CALLS are its own."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next((s for s in elf.iter_segments("PT_DYNAMIC")), None)
        if dynamic is None:
            return [], set()
        tags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}

        def at(address: int, length: int) -> bytes:
            file.seek(next(iter(elf.address_offsets(address))))
            return file.read(length)

        entries = [
            np.frombuffer(at(tags[start], tags[size]), ENTRY)
            for start, size in (("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ"))
            if tags.get(size)
        ]
        if not entries:
            return [], set()
        entry = np.concatenate(entries)
        entry = entry[np.isin(entry["type"], WORD_TYPES)]
        if not len(entry):
            return [], set()
        symbols = at(tags["DT_SYMTAB"], (int(entry["symbol"].max()) + 1) * SYMBOL_BYTES)
        strings = at(tags["DT_STRTAB"], tags["DT_STRSZ"])
        words, own = [], set()
        for where, symbol in zip(entry["at"].tolist(), entry["symbol"].tolist(), strict=True):
            head = symbols[symbol * SYMBOL_BYTES : symbol * SYMBOL_BYTES + 8]
            name_at = int.from_bytes(head[:4], "little")
            name = strings[name_at : strings.index(b"\0", name_at)].decode(errors="replace")
            if name in CALLS:
                words.append((where, name))
                own |= {name} if int.from_bytes(head[6:8], "little") else set()
        return words, own


def first_address(path: Path) -> int:
    """Where its file's first byte is in memory, before it is moved to its place."""
    with path.open("rb") as file:
        return min((s["p_vaddr"] - s["p_offset"] for s in ELFFile(file).iter_segments("PT_LOAD")), default=0)


def of_process(process: Process, library: str) -> Bindings:
    mappings = process.mappings()
    files: dict[str, Mapping] = {}
    for mapping in mappings:
        if mapping.path and mapping.inode and mapping.offset == 0:
            files.setdefault(mapping.path, mapping)
    starts = np.array([mapping.start for mapping in mappings], dtype=np.uint64)

    def holder(address: int) -> str:
        at = int(np.searchsorted(starts, np.uint64(address), side="right")) - 1
        return mappings[at].path if at >= 0 and address < mappings[at].end else ""

    program, found = process.program(), set()
    for path, mapping in files.items():
        try:
            words, own = words_of(process.file(mapping))
            base = mapping.start - first_address(process.file(mapping)) if words else 0
        except (OSError, ELFError, KeyError, StopIteration, ValueError):
            continue  # no ELF file, or one that is gone
        for where, call in words:
            target = holder(process.read_word(base + where))
            if not target or (target == path and call not in own):
                continue  # not bound yet: the word leads to the file's own stub
            found.add(Binding(path, target, call))
    made = sorted_out(found, library, "" if library == program else program)
    made.check_files(files, library)
    return made
