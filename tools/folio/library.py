"""Which file is Folio's library here."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from folio.errors import FolioError

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = ("libfolio.so.0", "libfolio.so")


def places() -> list[Path]:
    """Where it may be, the likeliest first."""
    found = [Path(os.environ["FOLIO_LIBRARY"])] if os.environ.get("FOLIO_LIBRARY") else []
    found += [Path(p) for p in re.split(r"[ :]", os.environ.get("LD_PRELOAD", "")) if "libfolio.so" in p and "/" in p]
    machine = f"{os.uname().machine}-linux-gnu"
    prefix = Path(sys.prefix).parent.parent  # where `make install` has put this command, with the library
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders = [CHECKOUT / "build", Path.home() / ".local/lib", *(Path(folder) for folder in searched if folder)]
    if Path(sys.prefix).parent.name == "libexec":
        folders[:0] = [prefix / "lib", prefix / "lib" / machine, prefix / "lib64"]
    folders += [Path(f) for f in ("/usr/local/lib", f"/usr/local/lib/{machine}", "/opt/folio/lib", "/usr/lib")]
    folders += [Path("/usr/lib") / machine, Path("/usr/lib64")]
    return found + [folder / name for folder in folders for name in NAMES]


def preloadable(path: Path) -> Path:
    """The path, if the loader can be told of it. Raises FolioError if not."""
    if re.search(r"[ :]", str(path)):
        raise FolioError(f"{path}: LD_PRELOAD ends names at spaces and colons: copy the library to a path without any")
    return path


def find_library(given: Path | None) -> Path:
    """The library's real file. Raises FolioError if there is none, or it cannot be preloaded."""
    if given is not None:
        if not given.is_file():
            raise FolioError(f"no library {given}: `make build` makes build/libfolio.so in Folio's source tree")
        return preloadable(given.resolve())
    for path in places():
        if path.is_file():
            return preloadable(path.resolve())
    raise FolioError(
        "no libfolio.so found: `make install` in Folio's source tree, or name it with --lib FILE or FOLIO_LIBRARY=FILE"
    )


def must_be_folio(path: Path) -> None:
    """Raises FolioError if a program that has it preloaded would not be on Folio."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file, Path(sys.executable).open("rb") as own:
        try:
            elf = ELFFile(file)
            machine, here = elf["e_machine"], ELFFile(own)["e_machine"]
            table = elf.get_section_by_name(".dynsym")
            names = (
                {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
                if table
                else set()
            )
        except ELFError:
            raise FolioError(f"{path} is no shared library: name Folio's, libfolio.so, with --lib FILE") from None
    if machine != here:
        raise FolioError(f"{path} is for another processor ({machine}): build Folio on this machine, `make build`")
    if "folio_layout" not in names:
        raise FolioError(f"{path} is not Folio's library: name libfolio.so with --lib FILE, or leave --lib out")
    if "malloc" not in names:
        raise FolioError(
            f"{path} takes the place of no malloc (it is for use beside another): name libfolio.so instead"
        )


def version_in(path: str) -> str:
    """As its file name has it."""
    match = re.search(r"libfolio(?:-embed)?\.so\.(\d+\.\d+\.\d+)", path)
    return match[1] if match else "unknown"


def scratch_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "folio"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolioError(f"cannot make {folder}: {error.strerror}; name another with --scratch FOLDER") from None
    return folder
