"""Programs to profile, and what tests ask of a profile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import LIBRARY, ROOT, line_of, running
from folio.profiling import Profile, Session, profiled
from folio.reader import Reader
from folio.sites import Site, sites
from folio.symbols import short

PROGRAM = Path(os.environ.get("FOLIO_TEST_PROFILED", ROOT / "build/tests/folio_command/folio_command_profiled"))
UNLOADED = Path(os.environ.get("FOLIO_TEST_UNLOADED", ROOT / "build/tests/folio_command/libfolio_command_unloaded.so"))
SIZES = {"small_site": 64, "middle_site": 1000, "large_site": 20000}
COUNTS = {"small_site": 3000, "middle_site": 1000, "large_site": 100}
ROUND = {name: COUNTS[name] * SIZES[name] for name in SIZES}  # what `a` allocates


def tell(process: subprocess.Popen, letters: str) -> None:
    """Returns when it has done what each letter says."""
    assert process.stdin is not None and process.stdout is not None
    for letter in letters:
        process.stdin.write(letter)
        process.stdin.flush()
        process.stdout.readline()


@contextmanager
def program(options: str = "", file: Path = PROGRAM) -> Iterator[subprocess.Popen]:
    with running([str(file), str(UNLOADED)], LIBRARY, options) as process:
        line_of(process)
        yield process


def taken(process: subprocess.Popen, interval: int, letters: str) -> Profile:
    """The profile of what the letters do, with a look after each."""
    session = Session(Reader(process.pid), interval)
    with profiled(session):
        session.poll()
        for letter in letters:
            tell(process, letter)
            session.poll()
    session.poll()
    session.poll_pages()
    return session.profile()


def by_name(profile: Profile, what: str = "live") -> dict[str, Site]:
    return {short(site.frame.function): site for site in sites(profile, what) if what in site.own}


def must_be_near_round(found: dict[str, Site]) -> None:
    """Within five standard errors and two objects: of 100 that are chosen all but surely one is missed in one run of
    200, two in one of 60,000, and the error, which is computed from those that were chosen, knows nothing of them."""
    for name, truth in ROUND.items():
        own = found[name].own["live"]
        assert abs(own.value - truth) <= 5 * own.error + 2 * SIZES[name], (name, own)


def names(profile: Profile, stack: int) -> list[str]:
    """The innermost first."""
    return [short(frame.function) for frame in profile.stacks[stack]]
