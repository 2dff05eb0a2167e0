"""The command line. Each command is a function of a module of its name, loaded when it is asked for."""

from __future__ import annotations

import os
import re
import resource
import shlex
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from folio import __version__
from folio.arguments import Command, Json, Library, Pid, Pids, Target, in_seconds, there
from folio.errors import FolioError, installing, tell, unwritten

ERROR, INTERRUPTED = 2, 130
NUMPY_BYTES = 128 << 20  # of address space, with numpy loaded for one thread
NEED_NUMPY = {
    f"folio {name}"
    for name in ["bins", "calls", "check", "collect", "compare", "doctor", "limit", "map", "metrics", "top", "where"]
} | {f"folio {name}" for name in ["census", "diff", "leaks", "pins", "profile", "snapshot"]}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runs programs on the Folio allocator, and explains the memory of running ones.",
    epilog="Start with: folio check, folio run -- PROGRAM, folio doctor PID",
)


# What an error in the midst of decoding is, where the file or the metadata in it is damaged.
SENSELESS = (ArithmeticError, LookupError, MemoryError, ValueError, struct.error)
AFTER_DASHES = {"allow_interspersed_args": False}


def leave(status: int) -> None:
    raise typer.Exit(status)


@contextmanager
def sense_of(targets: list[str]) -> Iterator[None]:
    """What an error is where some of the targets are files."""
    try:
        yield
    except SENSELESS as error:
        files = [target for target in targets if not target.isdecimal()]
        if not files:
            raise
        raise FolioError(
            f"{' or '.join(files)} makes no sense ({type(error).__name__}: {error}): it is damaged, or the program has "
            "written over Folio's metadata, as with an overrun; try another core file or snapshot"
        ) from None


def run_on(do: Callable[..., int], targets: list[str], *arguments: Any) -> None:
    """A command of PIDs or files."""
    with sense_of(targets):
        leave(do(*targets, *arguments))


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
    target: Target,
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

    run_on(do, [target], limit, json)


@app.command(epilog="Example: folio bins $(pidof redis-server) --sort wasted --every 0.5 --times 60")
def bins(
    target: Target,
    sort: Annotated[str, typer.Option(metavar="held|wasted|size|bin", help="The order of the rows.")] = "held",
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="Bins that get a row of their own.")] = 20,
    every: Annotated[float, in_seconds("Look again and again, and draw a heat map over time.")] = 0,
    times: Annotated[int, typer.Option(min=0, help="How often; 0: until Ctrl-C.")] = 0,
    json: Json = False,
) -> None:
    """What each bin (size class) holds: objects, resident memory, and how much of it is live."""
    from folio.bins import SORTS
    from folio.bins import bins as do

    if sort not in SORTS:
        raise FolioError(f"--sort {sort}: there is {', '.join(SORTS)}")
    run_on(do, [target], sort, rows, every, times, json)


@app.command(epilog="Example: folio top $(pidof redis-server)")
def top(
    pids: Pids = None,
    every: Annotated[float, in_seconds("How often to look.", least=0.1)] = 1,
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
        from folio.polls import print_polls

        leave(print_polls(pids, every, times))
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise FolioError("the screen needs a terminal; `folio top PID --json` or `folio bins PID --every 1` do not")
    try:
        from folio.top import show
    except ImportError as error:
        raise FolioError(f"the screen needs {error.name}: {installing('textual')}") from None
    leave(show(pids, every))


@app.command("map", epilog="Example: folio map $(pidof redis-server) -o heap.html --every 0.5 --times 120")
def map_(
    target: Target,
    file: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="A page (.html), or an image (.png, .svg).")
    ] = Path("map.html"),
    every: Annotated[float, in_seconds("Look again and again: address against time.")] = 0,
    times: Annotated[int, typer.Option(min=0, help="How often; 0: until Ctrl-C.")] = 0,
    json: Json = False,
) -> None:
    """Draws the heap by address: what lies in each chunk, how much of it is live, and what is resident.

    The page is one file that needs nothing else; pointing at a cell tells what it is. Images need matplotlib.
    """
    from folio.map import draw

    run_on(draw, [target], file, every, times, json)


@app.command(epilog="Example: folio where 4711 0x7f2a5c0012c0")
def where(
    target: Target,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", show_default=False)],
    referrers: Annotated[
        bool, typer.Option("--referrers", help="Also every word that points to the object, and a way to it.")
    ] = False,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many of these words are shown.")] = 20,
    json: Json = False,
) -> None:
    """What an address is: object, base, size, bin, taken or free, which folio, resident or not."""
    from folio.where import where as do

    run_on(do, [target], address, referrers, rows, json)


@app.command(epilog="Example: folio snapshot $(pidof redis-server) -o monday.snap")
def snapshot(
    target: Target,
    file: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")] = Path(
        "heap.snap"
    ),
    json: Json = False,
) -> None:
    """Keeps what Folio knows of a heap in a small file, which doctor, bins, map, where, pins, profile and diff read.

    It holds Folio's metadata, which pages were resident, the mappings and the samples with their stacks, but not the
    objects' contents. Of a core file it makes a snapshot that is far smaller. It is written whole or not at all.
    """
    from folio.keep import snapshot as do

    run_on(do, [target], file, json)


@app.command(epilog="Example: folio diff monday.snap friday.snap")
def diff(
    before: Annotated[
        str,
        typer.Argument(metavar="BEFORE", help="A snapshot, core file or PID.", show_default=False, parser=there),
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same, later.", show_default=False, parser=there)],
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="Bins that get a row of their own.")] = 20,
    json: Json = False,
) -> None:
    """What grew from one heap to another, by bin: live, resident, cached, fragmented; what grew most comes first.

    Where one of them is a core, which does not tell what was resident, both are taken by Folio's own account.
    """
    from folio.diff import diff as do

    run_on(do, [before, after], rows, json)


@app.command(epilog="Example: folio collect 4711")
def collect(
    pid: Pid,
    timeout: Annotated[float, in_seconds("How long to wait for it.")] = 5,
    json: Json = False,
) -> None:
    """Asks a process to give back what it can. It must run with FOLIO_OPTIONS=collect_from_outside:on.

    No signal is sent: a word of the library's data is written, which its housekeeper looks at every two seconds.
    """
    from folio.collect import collect as do

    leave(do(pid, timeout, json))


@app.command(epilog="Example: folio leaks $(pidof redis-server)")
def leaks(
    target: Target,
    wait: Annotated[float, in_seconds("Between the two looks.")] = 1,
    every: Annotated[float, in_seconds("What only grows, reachable or not, from look to look.")] = 0,
    times: Annotated[int, typer.Option(min=2, help="With --every, how many looks.")] = 2,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many groups are shown.")] = 20,
    json: Json = False,
) -> None:
    """Objects that nothing points to any more, by type and size, and what only they hold.

    The process does not stop and needs no preparation. Exit status 0: no leak; 1: there are; 2: an error.
    """
    if every:
        from folio.growing import growing

        run_on(growing, [target], every, times, rows, json)
    from folio.leaks import leaks as do

    run_on(do, [target], wait, rows, json)


@app.command(epilog="Example: folio census $(pidof redis-server)")
def census(
    target: Target,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many types are shown.")] = 20,
    json: Json = False,
) -> None:
    """Live objects by C++ type (the vtable in the first word) and by size; of others it says that they have no type."""
    from folio.census import census as do

    run_on(do, [target], rows, json)


@app.command(epilog="Example: folio pins $(pidof redis-server)")
def pins(
    target: Target,
    share: Annotated[
        float, typer.Option("--free", metavar="PERCENT", min=0, max=100, help="How much of a page must be free.")
    ] = 50,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many groups are shown.")] = 20,
    json: Json = False,
) -> None:
    """Which live objects keep pages that are mostly free: by size, type, and who holds them.

    For each group, what would go back to the system if its objects went, and what lies beside them.
    """
    from folio.pins import pins as do

    run_on(do, [target], share, rows, json)


@app.command(epilog="Example: folio calls $(pidof redis-server) --for 10")
def calls(
    pid: Pid,
    seconds: Annotated[float, in_seconds("How long to count.", "--for", least=0.001)] = 5,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="How many of the sizes get a row.")] = 20,
    json: Json = False,
) -> None:
    """Counts the mallocs of a running process, exactly, by size.

    Without a restart, an option or a signal: while it counts, every malloc costs some nanoseconds more; before and
    after it costs nothing.
    """
    from folio.calls import calls as do

    leave(do(pid, seconds, rows, json))


@app.command(epilog="Example: folio profile $(pidof redis-server) --for 30s --html heap.html")
def profile(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PID | FILE | -- PROGRAM [ARGUMENT]...",
            help="A running process; a file of its samples, a snapshot or a core file; or a program to start.",
        ),
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="BYTES", help="One sample in so many bytes (512K).", show_default=False)
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="How long: 30s (the default), 5m.", show_default=False),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show it again and again, until Ctrl-C.")] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="live|peak|allocated|resident",
            help="Which bytes the table and --folded are of: live; of a program that was started peak.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[int, typer.Option("-r", "--rows", min=1, help="Functions that get a row.")] = 12,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="A flame graph, as a page in one file.")] = None,
    pprof: Annotated[Path | None, typer.Option(metavar="FILE", help="For Google's pprof and others (.pb.gz).")] = None,
    folded: Annotated[Path | None, typer.Option(metavar="FILE", help="Folded stacks.")] = None,
    speedscope: Annotated[Path | None, typer.Option(metavar="FILE", help="For speedscope.app (.json).")] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", help="Compare two files that --pprof wrote.", show_default=False),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /debug/pprof/heap and allocs to collectors.")
    ] = None,
    json: Json = False,
    lib: Library = None,
) -> None:
    """Which functions hold the heap, and which allocate: a sampled profile of a running process.

    Without a restart, an option or a signal. A process that was started with FOLIO_OPTIONS=profile:524288 is profiled
    from its start and just read; in another one sampling is on while the command runs, and only what is allocated
    meanwhile is seen.
    """
    try:
        from folio.profile import Wanted, run
    except ImportError as error:
        raise FolioError(f"a profile needs {error.name}: {installing('symbolic protobuf')}") from None
    wanted = Wanted(sort or "", rows, json, pprof, folded, speedscope, html)
    with sense_of(words if words and len(words) == 1 else []):
        leave(run(words or [], interval, seconds, live, wanted, diff, listen, lib))


@app.command(epilog="Example: folio limit 4711 --soft 800M --hard 1G")
def limit(
    pid: Pid,
    soft: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Set it; also with K, M, G, T; 0: none.", show_default=False),
    ] = None,
    hard: Annotated[str | None, typer.Option(metavar="BYTES", help="The same.", show_default=False)] = None,
    timeout: Annotated[float, in_seconds("How long to wait for it.")] = 5,
    json: Json = False,
) -> None:
    """Shows the limits of a process, how near they are, and what each rung of the ladder would give; or sets them.

    To set them the process must run with FOLIO_OPTIONS=collect_from_outside:on. What is over the soft limit goes back
    to the kernel before the command returns.
    """
    from folio.limit import limit as do

    leave(do(pid, soft, hard, timeout, json))


@app.command(epilog="Example: folio metrics --name redis-server --listen 127.0.0.1:9399")
def metrics(
    pids: Pids = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="All of this name that are on Folio, looked for at each scrape."),
    ] = None,
    cgroups: Annotated[
        list[str] | None,
        typer.Option("--cgroup", metavar="PATH", help="All in this cgroup and below, the same."),
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
    from folio.finding import Wanted
    from folio.metrics import metrics as do
    from folio.metrics import show_shipped

    if dashboard or alerts:
        leave(show_shipped("dashboard.json" if dashboard else "alerts.yml"))
    if not pids and not names and not cgroups:
        raise FolioError("no process: folio metrics PID..., --name NAME or --cgroup PATH")
    leave(do(Wanted(pids or [], names or [], cgroups or []), listen, textfile, json))


@app.command(
    context_settings=AFTER_DASHES, epilog="Example: folio check; folio check --pid 4711; folio check -- php index.php"
)
def check(
    command: Command = None,
    pid: Annotated[int | None, typer.Option(metavar="PID", help="Look at this process.", show_default=False)] = None,
    seconds: Annotated[float, in_seconds("How long PROGRAM may run.", "--for", least=0.1)] = 10,
    lib: Library = None,
    json: Json = False,
) -> None:
    """Is Folio loaded here, which version, with which options; what this kernel offers, and what each means.

    With PROGRAM or --pid also whose malloc and free its libraries call: some call others than the rest of the program.
    PROGRAM is run, without input and output, and ended when its time is up. Exit status 1: a limit keeps programs from
    starting on Folio, libraries of the program do not call Folio's malloc, or a signal ended it; 2: it is not loaded.
    """
    from folio.check import check as do

    leave(do(pid, command or [], lib, seconds, json))


def unknown(what: str, word: str, known: list[str]) -> str:
    """That there is none; only a name that is near is a guess worth reading."""
    near = get_close_matches(word.lstrip("-"), [name.lstrip("-") for name in known], 1)
    guess = f"; did you mean {'--' if what == 'option' else ''}{near[0]}?" if near else ""
    if f"--{word.partition(':')[0].lstrip('-')}" in known:
        guess = f"; write {word.replace(':', '=', 1)}"
    return f"there is no {what} {word}{guess}"


def failed(name: str, error: Exception) -> int:
    """An error of the command line itself, which typer's own copy of click raises; whatever else is a bug."""
    if not hasattr(error, "format_message"):
        raise error
    text = error.format_message().rstrip(".")
    if not text or type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # the help
        return ERROR
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoSuchOption":
        known = [each for of in context.command.params for each in of.opts if each.startswith("--")]
        text = unknown("option", error.option_name, known)  # type: ignore[attr-defined]
    elif match := re.match(r"No such command '(.*?)'", text):
        text = unknown("command", match[1], list(context.command.commands))
    tell(name, f"{text}; see {name} --help")
    return ERROR


def with_short_equals(words: list[str]) -> list[str]:
    """-o=FILE as -oFILE, which it means to many; not what comes after a program's name or a "--"."""
    if words[:1] in (["run"], ["compare"], ["check"]):
        return words
    end = words.index("--") if "--" in words else len(words)
    return [re.sub(r"^(-[a-z])=", r"\1", word) for word in words[:end]] + words[end:]


def make_room(name: str) -> None:
    """Where address space is limited, numpy's BLAS, which is not used, takes it for one thread, not for each CPU."""
    soft, variable = resource.getrlimit(resource.RLIMIT_AS)[0], "OPENBLAS_NUM_THREADS"
    if soft == resource.RLIM_INFINITY or name not in NEED_NUMPY or "--help" in sys.argv:
        return
    if soft < NUMPY_BYTES:
        if name == "folio check":
            return  # it then tells of the limit, and needs no numpy
        raise FolioError(
            f"RLIMIT_AS is {soft >> 20} MiB here, and this command itself needs {NUMPY_BYTES >> 20} MiB of address "
            "space: `ulimit -v unlimited`, or start it where there is no such limit"
        )
    if variable not in os.environ:
        os.environ[variable] = "1"
        import numpy  # noqa: F401

        del os.environ[variable]  # programs that are started are not to have it


def main() -> None:
    """Errors are one line on stderr, with exit status 2."""
    known = {command.callback.__name__.rstrip("_") for command in app.registered_commands if command.callback}
    name = f"folio {sys.argv[1]}" if len(sys.argv) > 1 and sys.argv[1] in known else "folio"
    if sys.stdout is None:  # closed from the start
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        make_room(name)
        status = app(with_short_equals(sys.argv[1:]), prog_name="folio", standalone_mode=False)
        sys.stdout.flush()
    except FolioError as error:
        tell(name, str(error))
        status = ERROR
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except OSError as error:
        status = unwritten(name, error)
    except SystemExit as ending:  # typer's own, with status 1, where nobody reads stdout further
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        status = unwritten(name, ending.__context__)
    except Exception as error:
        status = failed(name, error)
    sys.exit(status or 0)
