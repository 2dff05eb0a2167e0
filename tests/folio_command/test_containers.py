"""Processes of other PID and mount namespaces: their files are read through /proc/PID/root."""

import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HEAP, LIBRARY, figures, folio_here, folio_json, gcore, line_of, running, stop
from folio.reader import Reader

STILL = "decay:3600000,housekeeper:off,dirty_floor:1000"


@contextmanager
def contained(folder: Path):
    """The PID, as seen here, of a program that has PID 1 in there, and a library that is nowhere else."""
    place = folder / "inside"
    place.mkdir()
    setup = (
        f'mount -t tmpfs none {place} && cp {LIBRARY} {place}/libfolio.so.0 && exec env LD_PRELOAD="$1" {HEAP} known'
    )
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        setup,
        "sh",
        f"{place}/libfolio.so.0",
    ]
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces are not allowed here")
    with running(command, None, STILL) as process:
        process.stdout.readline()
        yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), place


def test_its_library_and_its_pid_in_there(tmp_path):
    with contained(tmp_path) as (pid, place):
        library = place / "libfolio.so.0"
        assert not library.exists()
        assert Reader(pid).layout.library.path == str(library)
        assert f"process {pid} (PID 1 in its container): " in folio_here("doctor", str(pid)).stdout
        assert abs(folio_json("doctor", str(pid))["unexplained"]) <= 1 << 20
        done = folio_here("check", "--pid", pid)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"library {library}" in done.stdout


def test_a_process_of_this_namespace_has_one_pid():
    with running([str(HEAP), "known"]) as process:
        line_of(process)
        assert folio_here("doctor", str(process.pid)).stdout.startswith(f"process {process.pid}: ")


def test_snapshot_and_core(tmp_path):
    with contained(tmp_path) as (pid, _):
        stop(pid)
        folio_here("snapshot", str(pid), "-o", tmp_path / "a.snap")
        alive, account = figures(pid), figures(pid, by_account=True)
        core = gcore(pid, tmp_path)
    assert figures(tmp_path / "a.snap") == alive
    assert figures(core) == account  # its library is found by the build id, here
