"""A running process as the kernel shows it: its mappings, its memory in bulk, its counters. Knows nothing of Folio.

Memory is read and written through /proc/PID/mem, which does not stop the process. Not by process_vm_readv, though that
copies many ranges in a call: it pins pages, and a fork meanwhile copies these before it copies others (Linux 5.9), so
the child of a process of several threads would have some of its memory from earlier than the rest.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np

from folio.errors import FolioError, NewProgram, NotPermitted, ProcessGone
from folio.permission import why_refused
from folio.source import PAGE, Mapping, Ranged, Source

# Short ranges that lie near each other are read together, so many at most.
NEAR, SHORT, TOGETHER_MOST = 512, 4096, 1024
ADDRESSES_END = 1 << 63  # no offset of a file either
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of /proc/PID/stat


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


def groups_of(vectors: np.ndarray) -> list[tuple[int, int]]:
    """Which ranges are read together: first, end."""
    starts, lengths = vectors[:, 0], vectors[:, 1]
    short = (lengths <= SHORT) & (starts < ADDRESSES_END)
    # Where the next one begins before the end, the difference is beyond any address.
    near = (starts[1:] - (starts + lengths)[:-1] <= NEAR) & short[1:] & short[:-1]
    near[TOGETHER_MOST - 1 :: TOGETHER_MOST] = False
    firsts = np.flatnonzero(np.concatenate(([True], ~near)))
    return list(zip(firsts.tolist(), [*firsts[1:].tolist(), len(vectors)], strict=True))


def has_ended(root: Path) -> bool:
    """Of a process or thread by its folder in /proc; also where nobody waited for it yet."""
    try:
        return (root / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def living(root: Path) -> Path:
    """The folder itself, or, where only the main thread has ended (pthread_exit), that of the oldest one that runs:
    what all threads share is no longer in the main thread's."""
    if not has_ended(root):
        return root
    try:
        numbers = sorted(int(name) for name in os.listdir(root / "task"))
    except OSError:
        return root
    return next((task for task in (root.parent / f"{number}" for number in numbers) if not has_ended(task)), root)


class Process(Source):
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.known = False
        self.root = Path(f"/proc/{pid}")
        self._mem: int | None = None
        if pid <= 0 or not self.root.exists():
            raise ProcessGone(pid, known=False)
        self.root = living(self.root)
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
        return f"process {self.pid} ({self.short_name()})"

    def short_name(self) -> str:
        return self.text(f"/proc/{self.pid}/comm").strip()

    def title(self) -> str:
        inner = self.status().get("NStgid", "").split()[1:]
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
        return has_ended(self.root)

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
        started = self.text(f"/proc/{self.pid}/stat").rpartition(")")[2].split()[19]
        return (started, fields[23], fields[24], fields[25])

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
        return self.text("cmdline").replace("\0", " ").strip() or self.short_name()

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
        if len(vectors) == 0:
            return
        ends = np.cumsum(vectors[:, 1]).astype(np.int64)
        offsets = ends - vectors[:, 1].astype(np.int64)
        view = memoryview(buffer)
        for first, end in groups_of(vectors):
            at, to = int(offsets[first]), int(ends[end - 1])
            start = int(vectors[first, 0])
            if end - first == 1:
                self._read_range(view[at:to], start)
                continue
            together = np.empty(int(vectors[end - 1].sum()) - start, np.uint8)
            self._read_range(memoryview(together), start)
            # Of each byte wanted its place there.
            lengths = vectors[first:end, 1].astype(np.int64)
            shifts = vectors[first:end, 0].astype(np.int64) - start - (offsets[first:end] - at)
            buffer[at:to] = together[np.repeat(shifts, lengths) + np.arange(to - at)]

    def _read_range(self, view: memoryview, address: int) -> None:
        done = 0
        while done < len(view):
            got = self._read_some(view[done:], address + done)
            if got == 0:  # the next page is not there
                got = min(len(view) - done, PAGE - (address + done) % PAGE)
                view[done : done + got] = bytes(got)
            done += got

    def _read_some(self, view: memoryview, address: int) -> int:
        if address >= ADDRESSES_END:
            return 0
        try:
            if self._mem is None:
                self._mem = os.open(self.root / "mem", os.O_RDONLY | os.O_CLOEXEC)
            got = os.preadv(self._mem, [view], address)
        except OSError as error:
            if error.errno == errno.EIO:
                return 0
            raise self.failed(error) from None
        if got == 0:  # the memory has gone as a whole: the process has ended, or runs another program
            raise self.failed(OSError(errno.ESRCH, ""))
        return got

    def write(self, address: int, data: bytes) -> None:
        try:
            memory = os.open(self.root / "mem", os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.pwrite(memory, data, address)
            finally:
                os.close(memory)
        except OSError as error:
            raise self.failed(error) from None
        if written != len(data):
            raise self.failed(OSError(errno.ESRCH, ""))
