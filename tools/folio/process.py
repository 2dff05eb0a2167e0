"""A running process as the kernel shows it: its mappings, its memory in bulk, its counters. Knows nothing of Folio.

Memory is copied by process_vm_readv, up to 1024 ranges in a call; where a sandbox refuses that call, /proc/PID/mem
serves. Neither stops the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import numpy as np

from folio.errors import FolioError, NewProgram, NotPermitted, ProcessGone
from folio.permission import why_refused
from folio.source import PAGE, Mapping, Ranged, Source

RANGES_MOST = 1024  # IOV_MAX
CALL_BYTES_MOST = 1 << 30
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of /proc/PID/stat


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


libc = ctypes.CDLL(None, use_errno=True)
for call in (libc.process_vm_readv, libc.process_vm_writev):
    call.restype = ctypes.c_ssize_t
    call.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(Vector),
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )


def parse_maps(text: str) -> list[Mapping]:
    found = []
    for line in text.splitlines():
        span, flags, offset, _, inode, *name = line.split(maxsplit=5)
        if name == ["[vsyscall]"]:  # the kernel's, not the process's
            continue
        start, end = (int(x, 16) for x in span.split("-"))
        found.append(Mapping(start, end, flags, int(offset, 16), int(inode), name[0] if name else ""))
    return found


def vectors_of(ranges: Ranged) -> np.ndarray:
    """As struct iovec has them: address, bytes."""
    try:
        return np.array(ranges, np.uint64).reshape(-1, 2)
    except OverflowError:  # numbers that are no addresses: nothing is there
        return np.array([(address % (1 << 64), length) for address, length in ranges], np.uint64)


class Process(Source):
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.known = False
        self.root = Path(f"/proc/{pid}")
        self._mem: int | None = None
        if pid <= 0 or not self.root.exists():
            raise ProcessGone(pid, known=False)
        self.image = self._image_now()
        self.known = True
        if self.ended():
            raise ProcessGone(pid, known=False, why="has ended, and waits for its parent to take note")
        if self.is_kernel():
            raise ProcessGone(pid, known=False, why="is a thread of the kernel and has no memory of its own")

    @property
    def target(self) -> str:
        return str(self.pid)

    def name(self) -> str:
        return f"process {self.pid} ({self.text('comm').strip()})"

    def title(self) -> str:
        inner = self.status().get("NSpid", "").split()[1:]
        known_as = f" (PID {inner[-1]} in its container)" if inner else ""
        return f"process {self.pid}{known_as}: {self.command()}"

    def failed(self, error: OSError) -> FolioError:
        """What an error of a system call on this process means."""
        if error.errno in (errno.EPERM, errno.EACCES):
            return NotPermitted(self.pid, why_refused(self.root))
        if not self.root.exists() or self.ended() or self.without_memory():
            return ProcessGone(self.pid, self.known)
        # What was open of the memory of the program before is no more; without address randomization the same program
        # begun again looks the same.
        if self.known and (error.errno == errno.ESRCH or self._image_now() != self.image):
            return NewProgram(self.pid)
        if error.errno in (errno.ESRCH, errno.ENOENT):
            return ProcessGone(self.pid, self.known)
        return FolioError(f"process {self.pid} cannot be read: {os.strerror(error.errno or 0)}; try again")

    def ended(self) -> bool:
        """Also a process that has ended but was not waited for yet."""
        try:
            return (self.root / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    def is_there(self) -> bool:
        """It runs, and still the program that it ran at first."""
        try:
            self.must_live()
        except FolioError:
            return False
        return not self.ended()

    def is_kernel(self) -> bool:
        return bool(int(self.text("stat").rpartition(")")[2].split()[6]) & KERNEL_THREAD)

    def without_memory(self) -> bool:
        """As it ends, its memory goes before the process does."""
        try:
            return (self.root / "statm").read_text().startswith("0 ")
        except OSError:
            return True

    def _image_now(self) -> tuple[str, ...]:
        """What tells a program from another that the process, or one of the same number, runs later (exec): when the
        process started, and where the kernel laid out the program's code and stack."""
        fields = self.text("stat").rpartition(")")[2].split()
        return (fields[19], fields[23], fields[24], fields[25])

    def must_live(self) -> None:
        """Raises ProcessGone where its memory has gone, and NewProgram where it runs another program than at first.
        What was read before the call is good if it returns."""
        same = self._image_now() == self.image
        if self.without_memory():
            raise ProcessGone(self.pid, self.known)
        if not same:
            raise NewProgram(self.pid)

    def text(self, name: str) -> str:
        try:
            return (self.root / name).read_text(errors="replace")
        except OSError as error:
            raise self.failed(error) from None

    # ---- What the kernel counts ----

    def mappings(self) -> list[Mapping]:
        found = parse_maps(self.text("maps"))
        if not found and self.ended():
            raise ProcessGone(self.pid, self.known)
        return found

    def rss(self) -> int:
        return int(self.text("statm").split()[1]) * PAGE

    def status(self) -> dict[str, str]:
        lines = (line.partition(":") for line in self.text("status").splitlines())
        return {key: value.strip() for key, _, value in lines}

    def command(self) -> str:
        return self.text("cmdline").replace("\0", " ").strip() or self.text("comm").strip()

    def program(self) -> str:
        """The file that it runs."""
        try:
            return str((self.root / "exe").readlink())
        except OSError as error:
            raise self.failed(error) from None

    def environment(self) -> dict[str, str]:
        """As it was at the start."""
        pairs = (entry.partition("=") for entry in self.text("environ").split("\0") if "=" in entry)
        return {key: value for key, _, value in pairs}

    def file(self, mapping: Mapping) -> Path:
        """A mapped file as this process sees it, also in another mount namespace."""
        inside = self.root / "root" / mapping.path.lstrip("/")
        return inside if inside.exists() else Path(mapping.path)

    # ---- Memory ----

    def read_into(self, buffer: np.ndarray, ranges: Ranged) -> None:
        vectors = vectors_of(ranges)
        ends = np.cumsum(vectors[:, 1]).astype(np.int64)
        offset = first = 0
        while first < len(vectors):
            # At most so many ranges, and no further one from so many bytes on.
            last = min(int(np.searchsorted(ends, offset + CALL_BYTES_MOST)) + 1, first + RANGES_MOST, len(vectors))
            self._read_batch(buffer, offset, vectors[first:last], int(ends[last - 1]) - offset)
            first, offset = last, int(ends[last - 1])

    def _read_batch(self, buffer: np.ndarray, offset: int, batch: np.ndarray, wanted: int) -> None:
        done = 0
        while done < wanted:
            got = self._readv(buffer.ctypes.data + offset + done, batch, done, wanted - done)
            done += got
            if got == 0:  # the next page is gone
                gap = self._to_next_page(batch, done)
                buffer[offset + done : offset + done + gap] = 0
                done += gap

    @staticmethod
    def _rest(batch: np.ndarray, done: int) -> np.ndarray:
        """The ranges without their first bytes, and without empty ones there."""
        ends = np.cumsum(batch[:, 1]).astype(np.int64)
        first = int(np.searchsorted(ends, done, side="right"))
        rest = batch[first:].copy()
        skip = np.uint64(done - (int(ends[first - 1]) if first else 0))
        rest[:1, 0] += skip
        rest[:1, 1] -= skip
        return rest

    def _to_next_page(self, batch: np.ndarray, done: int) -> int:
        address, length = self._rest(batch, done)[0].tolist()
        return min(length, PAGE - address % PAGE)

    def _readv(self, target: int, batch: np.ndarray, skip: int, length: int) -> int:
        remote = self._rest(batch, skip)
        local = Vector(target, length)
        got = libc.process_vm_readv(self.pid, ctypes.byref(local), 1, remote.ctypes.data, len(remote), 0)
        if got >= 0:
            return got
        number = ctypes.get_errno()
        if number == errno.EFAULT:
            return 0
        if number in (errno.ENOSYS, errno.EPERM):  # a sandbox's filter may forbid the call, and only that
            return self._read_mem(target, *remote[0].tolist())
        raise self.failed(OSError(number, ""))

    def _read_mem(self, target: int, address: int, length: int) -> int:
        """For where process_vm_readv is forbidden or missing."""
        try:
            if self._mem is None:
                self._mem = os.open(self.root / "mem", os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._mem, length, address)
        except OSError as error:
            if error.errno == errno.EIO:
                return 0
            raise self.failed(error) from None
        ctypes.memmove(target, data, len(data))
        return len(data)

    def write(self, address: int, data: bytes) -> None:
        source = ctypes.create_string_buffer(data, len(data))
        local, remote = Vector(ctypes.addressof(source), len(data)), Vector(address, len(data))
        if libc.process_vm_writev(self.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != len(data):
            raise self.failed(OSError(ctypes.get_errno(), ""))
