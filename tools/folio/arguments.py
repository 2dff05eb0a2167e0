"""Arguments and options that commands have in common."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from folio.errors import FolioError

YEAR = 365 * 86400


def running(text: str) -> int:
    """A PID: what the command does needs a running process."""
    if text.isdecimal():
        return int(text)
    if Path(text).is_file():
        raise FolioError(
            f"this needs a running process, {text} is a file; "
            "doctor, bins, map, where, leaks, census, pins, profile, diff and snapshot read files"
        )
    raise typer.BadParameter(f"'{text}' is no PID")


def in_seconds(help: str, *names: str, least: float = 0) -> Any:
    """An option that is a time. More than a year is more than the calls that wait can take."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= YEAR:
            raise typer.BadParameter(f"{text} is no number of seconds from {least:g} to {YEAR} (a year)")
        return number

    return typer.Option(*names, metavar="SECONDS", help=help, parser=parse)


def there(text: str) -> str:
    """A PID, or a file that is there."""
    if not text.isdecimal() and not Path(text).is_file():
        raise typer.BadParameter(f"'{text}' is neither a PID nor a file")
    return text


Pid = Annotated[
    int, typer.Argument(metavar="PID", help="A running process on Folio.", show_default=False, parser=running)
]
Pids = Annotated[
    list[int] | None,
    typer.Argument(metavar="PID...", help="Running processes on Folio.", show_default=False, parser=running),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="PID|FILE",
        help="A running process on Folio, a core file of one, or a snapshot.",
        show_default=False,
        parser=there,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Library = Annotated[
    Path | None, typer.Option("--lib", metavar="FILE", help="Folio's library, where it is not found by itself.")
]
Command = Annotated[list[str] | None, typer.Argument(metavar="[--] PROGRAM [ARGUMENT]...", show_default=False)]
