"""Limits from outside: `folio limit`, and how near they are in doctor, top, metrics and check."""

import os
import re
import signal

import pytest
from conftest import folio, folio_here, folio_json, heap, stop
from folio.limit import Limits, parse, rungs
from prometheus_client.openmetrics.parser import text_string_to_metric_families

MIB = 1 << 20
STILL = "decay:3600000,dirty_floor:1000"
OUTSIDE = "collect_from_outside:on," + STILL
LADDER = ["near", "tight", "soft limit", "reserve", "hard limit"]


def limits(**more):
    values = dict.fromkeys(Limits.__dataclass_fields__, 0) | more
    return Limits(**values)


class TestNumbers:
    def test_sizes(self):
        given = [parse(text, "--soft") for text in (None, "0", "4194304", "64M", "64m", "3G", "2t")]
        assert given == [-1, 0, 4 * MIB, 64 * MIB, 64 * MIB, 3 << 30, 2 << 40]

    @pytest.mark.parametrize("text", ["", "x", "-1", "80%", "cgroup", "1.5G", "64MiB", "1", "3M", "9999999999999T"])
    def test_what_is_no_size(self, text):
        done = folio_here("limit", "1", f"--hard={text}")
        assert done.returncode == 2
        expected = f"folio limit: --hard {text}: write bytes, from 4M on, also with K, M, G or T; 0 for no limit\n"
        assert done.stderr == expected

    def test_problems_have_words(self):
        assert limits().what_is_wrong() == []
        every = limits(problems=0b111 << 16 | 0b11111 << 8 | 0b11111).what_is_wrong()
        assert len(every) == 13
        assert len(set(every)) == 13
        assert limits(problems=2 << 8).what_is_wrong() == [
            "`cgroup`, but the cgroup has no memory limit; the hard limit is none"
        ]

    def test_the_reserve_is_the_librarys(self):
        cases = {4 * MIB: MIB, 64 * MIB: 2 * MIB, 1 << 40: 32 * MIB}
        assert {hard: limits(hard=hard).reserve for hard in cases} == cases

    def test_no_limits_no_rungs(self):
        assert rungs(limits(), None) == []


class TestLimit:
    def test_a_process_without_limits(self):
        with heap("quiet", "16", options=STILL) as (pid, _):
            found, done = folio_json("limit", str(pid)), folio_here("limit", str(pid))
        assert (found["soft"], found["hard"], found["left_to_soft"], found["ladder"]) == (0, 0, None, [])
        assert found["held"] >= 16 * MIB
        assert found["level"] == "calm"
        assert "soft limit: none" in done.stdout
        assert "next: folio limit" in done.stdout

    def test_those_that_the_options_set(self):
        with heap("quiet", "16", options="limit_soft:100M,limit_hard:200M," + STILL) as (pid, known):
            found, done = folio_json("limit", str(pid)), folio_here("limit", str(pid))
        assert (found["soft"], found["hard"]) == (100 * MIB, 200 * MIB)
        assert found["left_to_soft"] == 100 * MIB - found["held"]
        assert found["left_to_hard"] == 200 * MIB - found["held"]
        assert [rung["rung"] for rung in found["ladder"]] == LADDER
        begins = [rung["begins"] for rung in found["ladder"]]
        assert begins == sorted(begins)
        assert begins[2:] == [100 * MIB, 200 * MIB - 200 * MIB // 32, 200 * MIB]
        gives = {rung["rung"]: rung["gives"] for rung in found["ladder"]}
        assert gives["soft limit"] >= 0.9 * known["freed"]
        for name in LADDER:
            assert re.search(rf"^{name}\s+[\d.]+ MiB", done.stdout, re.MULTILINE)

    def test_sets_them(self):
        with heap("quiet", "64", options=OUTSIDE) as (pid, known):
            before = folio_json("doctor", str(pid))
            assert before["parts"]["dirty"]["bytes"] >= 0.9 * known["freed"]
            found = folio_json("limit", str(pid), "--soft", "16M", "--hard", "1G", "--timeout", "60")
            assert (found["soft"], found["hard"]) == (16 * MIB, 1 << 30)
            after = folio_json("doctor", str(pid))
            # What is over it has gone when the command returns.
            assert after["rss"] < before["rss"] - 40 * MIB
            assert found["held"] <= 16 * MIB
            found = folio_json("limit", str(pid), "--soft", "0", "--timeout", "60")
            assert (found["soft"], found["hard"]) == (0, 1 << 30)
            found = folio_json("limit", str(pid), "--hard", "0", "--timeout", "60")
            assert (found["soft"], found["hard"], found["ladder"]) == (0, 0, [])

    def test_contradictions_are_refused(self):
        with heap("quiet", "1", options=OUTSIDE + ",limit_hard:1G") as (pid, _):
            done = folio_here("limit", str(pid), "--soft", "2G")
            assert folio_json("limit", str(pid))["soft"] == 0
        assert done.returncode == 2
        assert "would be above the hard one" in done.stderr

    def test_says_when_wishes_are_not_taken(self):
        with heap("quiet", "1") as (pid, _):
            done = folio_here("limit", str(pid), "--soft", "1G")
        assert done.returncode == 2
        assert "FOLIO_OPTIONS=collect_from_outside:on" in done.stderr

    def test_says_when_there_is_no_answer(self):
        with heap("quiet", "1", options=OUTSIDE) as (pid, _):
            stop(pid)
            done = folio_here("limit", str(pid), "--soft", "1G", "--timeout", "0.2")
            os.kill(pid, signal.SIGCONT)
        assert done.returncode == 2
        assert "no answer" in done.stderr


class TestElsewhere:
    def test_doctor(self):
        with heap("quiet", "16", options="limit_soft:100M," + STILL) as (pid, _):
            done, found = folio_here("doctor", str(pid)), folio_json("doctor", str(pid))
        assert re.search(r"soft limit 100\.0 MiB, [\d.]+ MiB left \(level: calm\)", done.stdout)
        assert found["limit"]["left_to_soft"] == 100 * MIB - found["limit"]["held"]
        with heap("quiet", "1", options=STILL) as (pid, _):
            assert "soft limit" not in folio_here("doctor", str(pid)).stdout

    def test_top(self):
        with heap("quiet", "16", options="limit_hard:100M," + STILL) as (pid, _):
            done = folio("top", pid, "--json", "--times", "1")
        assert re.search(r'"limit": {"soft": 0, "hard": 104857600, .*"left_to_hard": \d+', done.stdout)

    def test_metrics(self):
        with heap("quiet", "16", options="limit_soft:100M,limit_hard:200M," + STILL) as (pid, _):
            text = folio_here("metrics", str(pid)).stdout
        said = {
            (sample.name, sample.labels.get("limit")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert said["folio_limit_bytes", "soft"] == 100 * MIB
        assert said["folio_limit_bytes", "hard"] == 200 * MIB
        assert said["folio_limit_left_bytes", "soft"] == 100 * MIB - said["folio_held_bytes", None]
        assert said["folio_limit_level", None] == 0
        assert said["folio_limit_refused_total", None] == 0

    def test_check_shows_what_is_wrong(self):
        with heap("quiet", "1", options="limit_soft:2G,limit_hard:1G") as (pid, _):
            done, found = folio_here("check", "--pid", str(pid)), folio_json("check", "--pid", str(pid))
        wrong = "the soft limit was above the hard one, which holds for both"
        assert found["folio"]["problems"] == [wrong]
        assert found["folio"]["options"]["limit_soft"] == "1073741824 bytes"
        assert wrong in done.stdout
        # The same for the environment that the command itself has.
        done = folio("check", FOLIO_OPTIONS="pressure:on,housekeeper:off")
        assert "so it is off too" in done.stdout
