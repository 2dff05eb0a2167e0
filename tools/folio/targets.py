"""What a command's PID|FILE names."""

from __future__ import annotations

from pathlib import Path

from folio import core_file, snapshot_file
from folio.errors import FolioError
from folio.process import Process
from folio.source import Source

PROFILE = b"FolioPro"
PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"\x1f\x8b": "gzip -d",
    b"\xfd7zXZ": "xz -d",
    b"\x04\x22\x4d\x18": "lz4 -d",
    b"BZh": "bzip2 -d",
}


def open_source(target: int | str | Path) -> Source:
    """A number is a PID: a file of such a name is ./NUMBER."""
    if isinstance(target, int) or (isinstance(target, str) and target.isdecimal()):
        return Process(int(target))
    path = Path(target)
    try:
        with path.open("rb") as file:
            magic = file.read(8)
    except OSError as error:
        raise FolioError(f"{target} is neither a PID nor a file that can be read ({error.strerror})") from None
    if magic.startswith(core_file.MAGIC):
        return core_file.CoreFile(path)
    if magic.startswith(snapshot_file.MAGIC):
        return snapshot_file.SnapshotFile(path)
    if magic == PROFILE:
        raise FolioError(f"{path} is a heap profile: `folio profile {path}` shows it")
    for start, command in PACKED.items():
        if magic.startswith(start):
            raise FolioError(f"{path} is packed: unpack it first, by `{command}` (of systemd: `coredumpctl dump`)")
    raise FolioError(f"{path} is neither a core file nor a snapshot; `folio snapshot PID -o FILE` makes one")
