"""folio top, driven by textual's own pilot: what it shows, its keys, processes that end."""

import asyncio
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from conftest import HEAP, STILL, eventually, folio, heap, kill, line_of, running

textual = pytest.importorskip("textual")

from folio.caches import caches_of  # noqa: E402
from folio.heap import PLACES  # noqa: E402
from folio.output import size  # noqa: E402
from folio.parts import explain  # noqa: E402
from folio.reader import Reader  # noqa: E402
from folio.top import BinScreen, Top, Watched, after, cache_rows, rate_text, spark  # noqa: E402
from textual.widgets import DataTable, Static  # noqa: E402


@pytest.fixture(scope="module")
def known():
    with heap("known", options=STILL) as (pid, said):
        yield pid, said


def drive(pids, script, every=0.1, size=(80, 24)):
    """Runs `script(app, pilot)` once the first look was drawn."""

    async def session():
        app = Top([Reader(pid) for pid in pids], every)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.now.polls and app.query_one(DataTable).row_count)
            await script(app, pilot)

    asyncio.run(session())


async def until(pilot, true):
    for _ in range(1200):
        if true():
            return
        await pilot.pause(0.05)
    raise AssertionError("did not come true")


def shown(app, selector):
    return app.query_one(selector, Static).render().plain


def columns(app, number):
    table = app.query_one(DataTable)
    return [str(table.get_cell_at((row, number))).strip() for row in range(table.row_count)]


def test_json_is_a_line_for_each_process_at_each_look(known):
    done = folio("top", known[0], "--json", "--every", "0.1", "--times", "3")
    assert (done.returncode, done.stderr) == (0, "")
    polls = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(polls) == 3
    assert polls[0]["seconds"] < polls[1]["seconds"] < polls[2]["seconds"]
    for poll in polls:
        assert poll["pid"] == known[0]
        assert sum(poll["parts"].values()) == poll["rss"]
    group = known[1]["groups"][0]
    (bin_,) = [b for b in polls[0]["bins"] if b["size"] == group["size"]]
    assert bin_["objects"] == group["held"]


def test_times_is_for_json(known):
    done = folio("top", known[0], "--times", "3")
    assert (done.returncode, done.stderr) == (2, "folio top: --times goes with --json; the screen ends with q\n")


def test_json_ends_with_the_last_process():
    with heap("known", options=STILL) as (pid, _):
        polling = subprocess.Popen(
            [sys.executable, "-m", "folio", "top", str(pid), "--json", "--every", "0.1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert json.loads(polling.stdout.readline())["pid"] == pid
    _, said = polling.communicate(timeout=300)
    assert (polling.returncode, said.partition(";")[0]) == (0, f"process {pid} ended while it was read"), said


def test_parts_and_bins_are_those_of_doctor(known):
    parts = explain(Reader(known[0]))

    async def script(app, pilot):
        text = shown(app, "#parts")
        assert len(text.splitlines()) == len(parts.values()) + 1
        assert max(map(len, text.splitlines())) <= 80
        assert text.startswith("live")
        assert f"process {known[0]}" in shown(app, "#head")
        table = app.query_one(DataTable)
        assert table.row_count == len(parts.bins)
        objects = dict(zip(columns(app, 0), columns(app, 2), strict=True))
        for bin_ in parts.bins:
            assert objects[str(bin_.number)] == f"{bin_.live_objects:,}"

    drive([known[0]], script)


def test_keys_sort_freeze_and_show_caches(known):
    async def script(app, pilot):
        held = columns(app, 0)
        orders = [held]
        for _ in range(3):
            await pilot.press("s")
            orders.append(columns(app, 0))
        assert sorted(held) == sorted(orders[1])
        assert orders[3] == [str(n) for n in sorted(map(int, held))], "the last is by size"
        await pilot.press("space")
        polls = len(app.now.polls)
        await pilot.pause(0.5)
        assert len(app.now.polls) <= polls + 1, "one may have been under way"
        assert "frozen" in shown(app, "#head")
        await pilot.press("space", "t")
        assert f"thread {known[0]}" in columns(app, 0)
        await until(pilot, lambda: len(app.now.polls) > polls + 1)

    drive([known[0]], script)


def test_the_column_of_the_order_is_marked(known):
    async def script(app, pilot):
        def marked():
            titles = [str(column.label) for column in app.query_one(DataTable).ordered_columns]
            return [title for title in titles if title.endswith(("▼", "▲"))]

        seen = [marked()]
        for _ in range(3):
            await pilot.press("s")
            seen.append(marked())
        assert seen == [["resident ▼"], ["not live ▼"], ["live, change ▼"], ["object ▲"]]

    drive([known[0]], script)


def test_caches_sum_up_to_what_the_parts_say():
    """Of small objects and large ones; a thread's number is that of ps."""
    with heap("known", options=STILL + ",huge_pages:never") as (pid, _):
        watched = Watched(pid, Reader(pid))
        watched.poll()
        parts = watched.last.parts
        _, rows = cache_rows(watched, watched.last)
        assert parts.large.cached > 0
    heap_ = watched.last.heap
    small = sum(sum(bin_.cached_objects.values()) * bin_.size for bin_ in parts.bins)
    large = sum(int(field.parked.sum()) for field in heap_.fields) << heap_.layout.granule_shift
    assert sum(cache.bytes for cache in caches_of(heap_, watched.names)) == small + large
    assert rows["all"][2].strip() == size(small + large)
    assert rows["resident"][2].strip() == size(sum(parts.cached(place) for place in PLACES))
    assert sum(parts.cached(place) for place in PLACES) > 0.8 * (small + large), "hardly any was not touched"
    assert rows[f"thread {pid}"][:2] == [f"thread {pid}", HEAP.name[:15]]


def test_threads_have_the_numbers_of_ps():
    with heap("load", "4") as (pid, _):
        watched = Watched(pid, Reader(pid))
        watched.poll()
        tasks = set(os.listdir(f"/proc/{pid}/task"))
        _, rows = cache_rows(watched, watched.last)
        threads = {key.split()[1] for key in rows if key.startswith("thread ")}
        assert len(threads) >= 4
        assert threads <= tasks


def test_another_program_is_watched_from_its_start():
    code = f"import os; print(flush=True); input(); os.execv('{HEAP}', ['heap', 'known'])"
    with running(["/usr/bin/python3", "-c", code], options=STILL) as process:
        line_of(process)
        watched = Watched(process.pid, Reader(process.pid))
        watched.poll()
        watched.poll()
        process.stdin.write("\n")
        process.stdin.flush()
        line_of(process)
        watched.poll()
        assert not watched.ended
        assert "runs another program" in watched.changed
        assert len(watched.polls) == 1, "rates are not between two programs"
        assert watched.command == "heap known"
        assert watched.last.parts.exact


def test_another_program_that_is_not_on_folio_is_reported():
    code = "import os; print(flush=True); input(); del os.environ['LD_PRELOAD']; os.execvp('cat', ['cat'])"
    with running(["/usr/bin/python3", "-c", code], options=STILL) as process, pytest.MonkeyPatch.context() as patch:
        line_of(process)
        watched = Watched(process.pid, Reader(process.pid))
        watched.poll()
        patch.setattr("folio.reader.START_SECONDS", 0.5)
        process.stdin.write("\n")
        process.stdin.flush()
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cat\n")
        watched.poll()
    assert watched.ended.startswith("runs another program now (exec), which is not on Folio")


def test_what_has_not_changed_is_not_drawn_again(known):
    """It took a quarter of a CPU to make the table anew at each look."""

    async def script(app, pilot):
        table, made = app.query_one(DataTable), []
        table.clear = lambda **_: made.append(1)
        polls = len(app.now.polls)
        await until(pilot, lambda: len(app.now.polls) > polls + 3)
        assert made == []
        assert [len(row) for row in (table.get_row_at(0),)] == [7]

    drive([known[0]], script)


def test_enter_opens_a_bin(known):
    async def script(app, pilot):
        await pilot.press("space")  # so that the rows stay where they are
        app.query_one(DataTable).focus()
        number = columns(app, 0)[0]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, BinScreen))
        text = app.screen.query_one("#bin", Static).render().plain
        assert text.startswith(f"bin {number}: ")
        assert "% live" in text
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, BinScreen))

    drive([known[0]], script)


def test_several_processes_of_which_one_ends(known):
    with heap("quiet", "8", options=STILL) as (other, _):

        async def script(app, pilot):
            await pilot.press("n")
            assert app.now.pid == other
            assert "2 of 2" in shown(app, "#head")
            subprocess.run(["kill", "-9", str(other)], check=True)
            await until(pilot, lambda: app.now.ended)
            await until(pilot, lambda: "has ended" in shown(app, "#head"))
            assert app.query_one(DataTable).row_count, "what was seen last stays"
            await pilot.press("n")
            assert app.now.pid == known[0]
            assert not app.now.ended

        drive([known[0], other], script)


GROWS = """
import time
print("{}", flush=True)
kept = []
while True:
    kept.append(bytearray(b"x") * 100_000)
    time.sleep(0.001)
"""


def test_rates_follow_a_program_that_grows():
    with running(["/usr/bin/python3", "-c", GROWS]) as process:
        process.stdout.readline()
        watched = Watched(process.pid, Reader(process.pid), "")
        watched.poll()
        assert watched.rate("live") is None, "not from one look"

        def grew():
            watched.poll()
            rates = watched.rate("live"), watched.rate("rss")  # None: the second look was not exact
            return None not in rates and min(rates) > 1e6

        eventually(grew)  # between two looks the program may not have run


def test_small_texts():
    assert spark([0, 4, 8], 5) == "   ▄█"
    assert spark([], 3) == "   "
    assert rate_text(None) == rate_text(0.5) == ""
    assert rate_text(2048) == "+2.0 KiB/s"
    assert rate_text(-1024) == "-1.0 KiB/s"


def test_without_a_terminal_it_says_what_else_there_is(known):
    done = folio("top", known[0])
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "no process" in folio("top").stderr


def read_until(terminal, text):
    seen = b""
    while text not in seen:
        assert select.select([terminal], [], [], 300)[0], f"{text!r} did not come: {seen[-200:]!r}"
        seen += os.read(terminal, 4096)


def test_on_a_terminal_q_ends_it(known):
    leader, follower = os.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "folio", "top", str(known[0])]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    try:
        read_until(leader, b"fragmented")
        os.write(leader, b"q")
        read_until(leader, b"next: folio doctor")
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)


def test_after_the_end_of_the_process_it_names_another_command():
    with heap("known", options=STILL) as (pid, _), heap("known", options=STILL) as (other, _):
        first, second = Watched(pid, Reader(pid)), Watched(other, Reader(other))
        assert after([first, second]).startswith(f"folio doctor {pid} ")
        kill(pid)
        assert after([first, second]).startswith(f"folio doctor {other} ")
        assert after([first, first]).startswith("folio run -- PROGRAM  (the program has ended")
        kill(other)
        assert after([first, second]).startswith("folio run -- PROGRAM  (these programs have ended")
