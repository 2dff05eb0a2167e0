"""The one kind of error that users see."""

from __future__ import annotations


class FolioError(Exception):
    """Something the user must know: one line that also says what to do next."""


class ProcessGone(FolioError):
    """The process ended, or is ending."""

    def __init__(self, pid: int, known: bool) -> None:
        what = f"process {pid} ended while it was read" if known else f"there is no process {pid}"
        super().__init__(f"{what}; `pgrep -a NAME` finds processes by name")


class NotPermitted(FolioError):
    def __init__(self, pid: int) -> None:
        super().__init__(
            f"process {pid} may not be read by this user: be its owner or root (sudo), or have CAP_SYS_PTRACE; "
            "where kernel.yama.ptrace_scope is 1, the owner needs that too"
        )
