"""The one kind of error that users see."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolioError(Exception):
    """Something the user must know: one line that also says what to do next."""


def installing(package: str) -> str:
    """How this command's own environment gets a package of PyPI, whoever made it."""
    return f"{shlex.quote(sys.executable)} -m pip install {package}"


class ProcessGone(FolioError):
    """The process ended, or is ending; or it has no memory, and why."""

    def __init__(self, pid: int, known: bool, why: str = "") -> None:
        what = f"process {pid} ended while it was read" if known else f"there is no process {pid}"
        what = f"process {pid} {why}" if why else what
        super().__init__(f"{what}; `pgrep -a NAME` finds processes by name")


class NewProgram(FolioError):
    """It runs another program now: nothing that was known of its memory holds."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} began another program (exec) while it was read; run the command again")


class NotOnFolio(FolioError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is not on Folio: start it by `folio run -- PROGRAM`, or with LD_PRELOAD=libfolio.so.0"
        )


class NotPermitted(FolioError):
    def __init__(self, pid: int, why: str) -> None:
        super().__init__(f"process {pid} may not be read: {why}")


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """What an error is where a file that the user named is written."""
    try:
        yield
    except OSError as error:
        raise FolioError(f"{file}: {error.strerror}; name a file in a folder that can be written") from None


def tell(name: str, text: str) -> None:
    """One line, whatever names are in it."""
    print("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in f"{name}: {text}"), file=sys.stderr)


def unwritten(name: str, error: OSError) -> int:
    """The exit status where stdout takes no more: nobody reads it further, or its disk is full. Else it is a bug."""
    full = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    if not full and not isinstance(error, BrokenPipeError):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again as it ends
    if full:
        print(f"{name}: the output cannot be written: {error.strerror}; send it elsewhere", file=sys.stderr)
    return 2 if full else 0
