"""The USDT probes of the library, as gdb finds them by their notes: it raises their semaphores, and reads arguments."""

import re
import shutil
import subprocess

import pytest
from conftest import HEAP, LIBRARY
from elftools.elf.elffile import ELFFile

SCRIPT = """
set breakpoint pending on
set environment LD_PRELOAD {library}
set environment FOLIO_OPTIONS profile:1
break main
run {arguments}
break -probe-stap otel_memory:alloc
break -probe-stap otel_memory:free
continue
printf "alloc %lx %lu %lu\\n", $_probe_arg0, $_probe_arg1, $_probe_arg2
printf "registers %lx %lu %lu\\n", $rdi, $rsi, $rdx
delete 2
continue
printf "free %lx\\n", $_probe_arg0
printf "registers %lx\\n", $rdi
kill
"""


def notes(path):
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".note.stapsdt")
        return [note["n_desc"] for note in section.iter_notes()]


def test_the_file_has_the_notes():
    found = [note if isinstance(note, bytes) else note.encode("latin1") for note in notes(LIBRARY)]
    texts = sorted(note[24:].split(b"\0")[:3] for note in found)
    assert texts == [
        [b"otel_memory", b"alloc", b"8@%rdi 8@%rsi 8@%rdx"],
        [b"otel_memory", b"free", b"8@%rdi"],
    ]
    for note in found:
        place, base, semaphore = (int.from_bytes(note[i : i + 8], "little") for i in (0, 8, 16))
        assert place and base and semaphore


@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_a_debugger_reads_the_arguments(tmp_path):
    script = tmp_path / "script"
    (tmp_path / "input").write_text("m")
    script.write_text(SCRIPT.format(library=LIBRARY, arguments=f"counted < {tmp_path}/input"))
    command = ["gdb", "-q", "-nx", "--batch", "-x", str(script), str(HEAP)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False)
    if "ptrace" in done.stderr or "Cannot find" in done.stdout:
        pytest.skip(done.stderr.strip() or "gdb cannot run programs here")
    alloc = re.search(r"^alloc (\w+) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    freed = re.search(r"^free (\w+)$", done.stdout, re.MULTILINE)
    registers = re.findall(r"^registers (.*)$", done.stdout, re.MULTILINE)
    assert alloc and freed, done.stdout + done.stderr
    address, size, weight = int(alloc[1], 16), int(alloc[2]), int(alloc[3])
    assert address % 16 == 0 and size > 0
    assert size <= weight <= 2 * size + 1  # at an interval of 1 byte nearly each object stands for itself
    assert registers == [alloc[0].removeprefix("alloc "), freed[0].removeprefix("free ")]
