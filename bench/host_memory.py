"""Memory that the host of a virtual machine takes back while it is free, and how runs are spared the wait for it.

A virtio balloon may report free pages to the host [VIRTIO 1.3, 5.5.6.7], which then takes the memory away until it is
touched again. A touch costs the host's fault then: 5 ms for a huge page in place of 0.3 ms were seen. So what a run
takes depends on how long ago somebody else has had that memory, by up to ten times. The kernel gives out what was freed
last: what the laboratory holds until just before a run is what the run gets.
"""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

PAGE = 4096
HELD_MOST = 2 << 30
HELD_SHARE = 4  # of what is available, a quarter at most
BALLOON, REPORTING = "0x0005", 5  # a device's number, and the number of its feature
DEVICES = Path("/sys/bus/virtio/devices")


def is_taken_back(devices: Path = DEVICES) -> bool:
    """Whether free memory of this machine goes to a host."""
    for device in devices.glob("*"):
        try:
            kind, features = (device / "device").read_text().strip(), (device / "features").read_text().strip()
        except OSError:
            continue
        if kind == BALLOON and features[REPORTING : REPORTING + 1] == "1":
            return True
    return False


def available(meminfo: str) -> int:
    """Bytes that can be had without swapping; 0 if that is not known."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


class Held:
    """Memory that is touched between runs and free during each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory: mmap.mmap | None = None

    def hold(self) -> None:
        if self.memory is not None or self.size == 0:
            return
        try:
            self.memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # less is there now than at the start
            self.size = 0
            return
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self.memory.madvise(mmap.MADV_HUGEPAGE)  # what is lost soonest are whole blocks
        self.memory[::PAGE] = bytes(self.size // PAGE)

    def release(self) -> None:
        if self.memory is not None:
            self.memory.close()
        self.memory = None


def for_this_machine() -> Held:
    if not is_taken_back():
        return Held(0)
    share = available(Path("/proc/meminfo").read_text()) // HELD_SHARE
    return Held(min(share, HELD_MOST) // PAGE * PAGE)
