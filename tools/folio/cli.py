"""The command line. Each command is a function of a module of its name, loaded when it is asked for."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from folio import __version__
from folio.errors import FolioError

ERROR, INTERRUPTED = 2, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runs programs on the Folio allocator, and explains the memory of running ones.",
    epilog="Start with: folio check, folio run -- PROGRAM, folio doctor PID",
)

Pid = Annotated[int, typer.Argument(metavar="PID", help="A running process on Folio.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Library = Annotated[
    Path | None, typer.Option("--lib", metavar="FILE", help="Folio's library, where it is not found by itself.")
]
Command = Annotated[list[str] | None, typer.Argument(metavar="[--] PROGRAM [ARGUMENT]...", show_default=False)]
AFTER_DASHES = {"allow_interspersed_args": False}


def leave(status: int) -> None:
    raise typer.Exit(status)


def split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FolioError(f"--command {text!r} cannot be split: {error}; look at its quotes") from None


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"folio {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True)] = False,
) -> None:
    del version


@app.command(context_settings=AFTER_DASHES, epilog="Example: folio run --options stats:exit -- python3 server.py")
def run(
    command: Command = None,
    options: Annotated[str, typer.Option(metavar="KEY:VALUE,...", help="Options of Folio's (docs/options.md).")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    summary: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="The summary for machines, to a file.")
    ] = None,
    lib: Library = None,
) -> None:
    """Runs a program on Folio; a summary on stderr at the end.

    Exit status and death by a signal are the program's; signals go on to it. 2: it could not be started.
    """
    from folio.library import find_library
    from folio.run import run as do

    if not command:
        raise FolioError("no program: folio run -- PROGRAM [ARGUMENT]...")
    leave(do(command, find_library(lib), options, quiet, summary))


@app.command(
    context_settings=AFTER_DASHES,
    epilog="Example: folio compare -n 10 --with /usr/lib/x86_64-linux-gnu/libjemalloc.so.2 -- sort -n numbers",
)
def compare(
    command: Command = None,
    rounds: Annotated[
        int | None, typer.Option("-n", "--rounds", min=1, help="Runs on each library (6; with --until at most 200).")
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", min=0.01, help="Runs until the ratios of time are known to +- PERCENT."),
    ] = None,
    others: Annotated[
        list[str] | None, typer.Option("--with", metavar="[NAME=]FILE", help="Another library; may be repeated.")
    ] = None,
    json: Json = False,
    text: Annotated[
        str, typer.Option("--command", metavar="TEXT", help="The program in one text, split as a shell does.")
    ] = "",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also a page, in one file.")] = None,
    scratch: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the launcher and the example's data are kept.")
    ] = None,
    lib: Library = None,
    example: Annotated[
        str,
        typer.Option(
            metavar="server|python",
            help="For want of a program: a server in C++ whose threads pass objects on, or Python over sqlite3.",
        ),
    ] = "",
    follow: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Runs a program on glibc's malloc and on Folio in turn: time, peak memory, page faults, with intervals.

    Without a program, an example: the server, or, without a C++ compiler, Python. Exit status 1: exit status or output
    of the program were not the same on all; 2: an error.
    """
    from folio.compare import compare as do
    from folio.library import find_library, scratch_folder

    command = (command or []) + split(text)
    folder = scratch or scratch_folder()
    folder.mkdir(parents=True, exist_ok=True)
    rounds = rounds or (6 if until is None else 200)
    leave(do(command, find_library(lib), others or [], rounds, until, folder, json, html, follow, example))


@app.command(epilog="Example: folio doctor $(pidof redis-server)")
def doctor(
    pid: Pid,
    limit: Annotated[
        float, typer.Option(metavar="PERCENT", min=0, max=100, help="Of what Folio has, how much may be not live.")
    ] = 50,
    json: Json = False,
) -> None:
    """Explains the resident memory of a process, as parts that sum to it, each with its cause and advice.

    Exit status 0: healthy; 1: more than the limit, and more than 16 MiB, is not live; 2: an error; 3: the process
    changed so fast that the sum is off by more than 1 %.
    """
    from folio.doctor import doctor as do

    leave(do(pid, limit, json))


@app.command(epilog="Example: folio bins $(pidof redis-server) --sort wasted --every 0.5 --times 60")
def bins(
    pid: Pid,
    sort: Annotated[str, typer.Option(metavar="held|wasted|size|bin", help="The order of the rows.")] = "held",
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="Bins that get a row of their own.")] = 20,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Look again and again, and draw a heat map over time.")
    ] = 0,
    times: Annotated[int, typer.Option(min=0, help="How often; 0: until Ctrl-C.")] = 0,
    json: Json = False,
) -> None:
    """What each bin (size class) holds: objects, resident memory, and how much of it is live."""
    from folio.bins import SORTS
    from folio.bins import bins as do

    if sort not in SORTS:
        raise FolioError(f"--sort {sort}: there is {', '.join(SORTS)}")
    leave(do(pid, sort, rows, every, times, json))


@app.command(epilog="Example: folio top $(pidof redis-server)")
def top(
    pids: Annotated[
        list[int] | None, typer.Argument(metavar="PID...", help="Running processes on Folio.", show_default=False)
    ] = None,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How often to look.")] = 1,
    times: Annotated[int, typer.Option(min=0, help="With --json, how many looks; 0: until Ctrl-C.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="For machines: a line for each process at each look.")] = False,
) -> None:
    """A live screen: the parts of the memory over time, bins by what they hold or waste, caches.

    Keys: s sorts the bins, space freezes, enter opens a bin, t shows caches in place of bins, n the next process, q
    ends.
    """
    if not pids:
        raise FolioError("no process: folio top PID...; `pgrep -a NAME` finds processes by name")
    if times and not json:
        raise FolioError("--times goes with --json; the screen ends with q")
    if json:
        from folio.looks import print_looks

        leave(print_looks(pids, every, times))
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise FolioError("the screen needs a terminal; `folio top PID --json` or `folio bins PID --every 1` do not")
    try:
        from folio.top import show
    except ImportError as error:
        raise FolioError(
            f"the screen needs {error.name}: pipx inject folio-tool textual (or pip install 'folio-tool[top]')"
        ) from None
    leave(show(pids, every))


@app.command("map", epilog="Example: folio map $(pidof redis-server) -o heap.html --every 0.5 --times 120")
def map_(
    pid: Pid,
    file: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="A page (.html), or an image (.png, .svg).")
    ] = Path("map.html"),
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Look again and again: address against time.")
    ] = 0,
    times: Annotated[int, typer.Option(min=0, help="How often; 0: until Ctrl-C.")] = 0,
    json: Json = False,
) -> None:
    """Draws the heap by address: what lies in each chunk, how much of it is live, and what is resident.

    The page is one file that needs nothing else; pointing at a cell tells what it is. Images need matplotlib.
    """
    from folio.map import draw

    leave(draw(pid, file, every, times, json))


@app.command(epilog="Example: folio where 4711 0x7f2a5c0012c0")
def where(
    pid: Pid,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
    json: Json = False,
) -> None:
    """What an address is: object, base, size, bin, taken or free, which folio, resident or not."""
    from folio.where import where as do

    leave(do(pid, address, json))


@app.command(epilog="Example: folio collect 4711")
def collect(
    pid: Pid,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for it.")] = 5,
    json: Json = False,
) -> None:
    """Asks a process to give back what it can. It must run with FOLIO_OPTIONS=collect_from_outside:on.

    No signal is sent: a word of the library's data is written, which its housekeeper looks at every two seconds.
    """
    from folio.collect import collect as do

    leave(do(pid, timeout, json))


@app.command(epilog="Example: folio calls $(pidof redis-server) --for 10")
def calls(
    pid: Pid,
    seconds: Annotated[float, typer.Option("--for", metavar="SECONDS", min=0.001, help="How long to count.")] = 5,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many of the sizes get a row.")] = 20,
    json: Json = False,
) -> None:
    """Counts the mallocs of a running process, exactly, by size.

    Without a restart, an option or a signal: while it counts, every malloc costs some nanoseconds more; before and
    after it costs nothing.
    """
    from folio.calls import calls as do

    leave(do(pid, seconds, rows, json))


@app.command(epilog="Example: folio limit 4711 --soft 800M --hard 1G")
def limit(
    pid: Pid,
    soft: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Set it; also with K, M, G, T; 0: none.", show_default=False),
    ] = None,
    hard: Annotated[str | None, typer.Option(metavar="BYTES", help="The same.", show_default=False)] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for it.")] = 5,
    json: Json = False,
) -> None:
    """Shows the limits of a process, how near they are, and what each rung of the ladder would give; or sets them.

    To set them the process must run with FOLIO_OPTIONS=collect_from_outside:on. What is over the soft limit goes back
    to the kernel before the command returns.
    """
    from folio.limit import limit as do

    leave(do(pid, soft, hard, timeout, json))


@app.command(epilog="Example: folio metrics $(pidof redis-server) --listen 127.0.0.1:9399")
def metrics(
    pids: Annotated[
        list[int] | None, typer.Argument(metavar="PID", help="Running processes on Folio.", show_default=False)
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve them to Prometheus, until Ctrl-C.")
    ] = None,
    textfile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them once, for node_exporter: a name that ends in .prom.")
    ] = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Print a dashboard for Grafana.")] = False,
    alerts: Annotated[bool, typer.Option("--alerts", help="Print alert rules for Prometheus.")] = False,
    json: Json = False,
) -> None:
    """The parts of doctor and bins as OpenMetrics: printed once, to a file, or served.

    Exit status 1: some of the processes could not be read, they have folio_up 0; 2: none, or an error.
    """
    from folio.metrics import metrics as do
    from folio.metrics import show_shipped

    if dashboard or alerts:
        leave(show_shipped("dashboard.json" if dashboard else "alerts.yml"))
    if not pids:
        raise FolioError("no process: folio metrics PID...; `pgrep -a NAME` finds processes by name")
    leave(do(pids, listen, textfile, json))


@app.command(epilog="Example: folio check; folio check --pid 4711")
def check(
    pid: Annotated[int | None, typer.Option(metavar="PID", help="Look at this process.", show_default=False)] = None,
    lib: Library = None,
    json: Json = False,
) -> None:
    """Is Folio loaded here, which version, with which options; what this kernel offers, and what each means.

    Without --pid a program is started with the library and looked at. Exit status 1: a limit keeps programs from
    starting on Folio; 2: it is not loaded.
    """
    from folio.check import check as do

    leave(do(pid, lib, json))


def failed(name: str, error: Exception) -> int:
    """An error of the command line itself, which typer's own copy of click raises; whatever else is a bug."""
    if not hasattr(error, "format_message"):
        raise error
    if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # the help
    else:
        print(f"{name}: {error.format_message().rstrip('.')}; see {name} --help", file=sys.stderr)
    return ERROR


def main() -> None:
    """Errors are one line on stderr, with exit status 2."""
    known = {command.callback.__name__.rstrip("_") for command in app.registered_commands if command.callback}
    name = f"folio {sys.argv[1]}" if len(sys.argv) > 1 and sys.argv[1] in known else "folio"
    try:
        status = app(prog_name="folio", standalone_mode=False)
    except FolioError as error:
        print(f"{name}: {error}", file=sys.stderr)
        status = ERROR
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except Exception as error:
        status = failed(name, error)
    sys.exit(status or 0)
