#!/usr/bin/env python3
"""FOLIO_OPTIONS from outside: what is in force, the exact line for each mistake, and stats:exit."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import with_paths

PROBE = Path()
OPTIONS_DEF = Path()

SEE = "(see docs/options.md)"
SEE_MEMORY = "(see docs/memory.md)"
LIMIT_MOST = 1 << 62
SMALLEST_DECAY_ERROR = f'"-1" is no value for "decay": 0 to 3600000 ms; the default 1000 holds {SEE}'


def probe(options: str | None, *names: str) -> tuple[dict[str, int], list[str]]:
    """Run the probe; the values of the named options, and the lines on stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOLIO_")}
    if options is not None:
        environment["FOLIO_OPTIONS"] = options
    done = subprocess.run([PROBE, *names], env=environment, capture_output=True, text=True, timeout=300, check=True)
    pairs = [line.split("=") for line in done.stdout.splitlines() if "=" in line]
    return {name: int(value) for name, value in pairs}, done.stderr.splitlines()


def rows() -> list[dict[str, str]]:
    """The rows of options.def: kind, name, default, and least and most or the values."""
    text = re.sub(r"//.*", "", OPTIONS_DEF.read_text(encoding="utf-8"))
    enums = re.finditer(r'FOLIO_ENUM\((?P<name>\w+),\s*(?P<default>\d+),\s*"(?P<values>[^"]*)"', text)
    sizes = re.finditer(
        r'FOLIO_SIZE\((?P<name>\w+),\s*(?P<default>\d+),\s*(?P<least>\d+),\s*(?P<most>\d+),\s*"(?P<unit>[^"]*)"', text
    )
    limits = re.finditer(r"FOLIO_LIMIT\((?P<name>\w+)", text)
    bounds = {"default": "0", "least": "0", "most": str(LIMIT_MOST)}
    return [match.groupdict() for match in (*enums, *sizes)] + [match.groupdict() | bounds for match in limits]


def path_names() -> list[str]:
    return re.findall(r"^FOLIO_PATH\((\w+)", OPTIONS_DEF.read_text(encoding="utf-8"), re.MULTILINE)


class Defaults(unittest.TestCase):
    """Without the variable, and with an empty one."""

    def test_all_rows_are_known(self) -> None:
        """Every row of options.def can be asked for and has its default."""
        names = [row["name"] for row in rows()]
        self.assertIn("decay", names)
        for options in (None, "", ",", ",,,"):
            values, lines = probe(options, *names, *path_names())
            defaults = {row["name"]: int(row["default"]) for row in rows()} | dict.fromkeys(path_names(), 0)
            self.assertEqual(values, defaults)
            self.assertEqual(lines, [])


class Paths(unittest.TestCase):
    """Of files."""

    def test_a_path_is_set(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            values, lines = probe(f"profile_file:{folder}/it,decay:5,profile:100", "profile_file", "decay")
            self.assertNotEqual(values["profile_file"], 0)
            self.assertEqual(values["decay"], 5)
            self.assertEqual(lines, [])
            self.assertEqual(len(list(Path(folder).glob("it.*"))), 1)
            probe(f"profile_file:{folder}/that,profile:1099511627776")
            self.assertEqual(list(Path(folder).glob("that.*")), [], "it goes where it has no sample")

    def test_one_that_cannot_be_is_said(self) -> None:
        _, lines = probe("profile_file:/nonexistent/it")
        self.assertEqual(len(lines), 1)
        self.assertEqual(
            lines[0],
            "folio: the file of the profile cannot be made (option profile_file): samples stay in memory "
            "(see docs/options.md)",
        )
        for bad in ("", "x" * 901):
            values, lines = probe(f"profile_file:{bad}", "profile_file")
            self.assertEqual(values, {"profile_file": 0})
            self.assertEqual(len(lines), 1)
            self.assertIn("a path of 1 to 900 bytes", lines[0])


class Values(unittest.TestCase):
    """What is set is in force."""

    def test_every_value_of_every_row(self) -> None:
        """The bounds of each number, each name of each enumeration."""
        for row in rows():
            if "values" in row:
                settings = [(name, number) for number, name in enumerate(row["values"].split("|"))]
                settings = [setting for setting in settings if setting[0] != "exit"]
            else:
                settings = [(row[bound], int(row[bound])) for bound in ("least", "most")]
            for text, number in settings:
                with self.subTest(option=row["name"], value=text):
                    values, lines = probe(f"{row['name']}:{text}", row["name"])
                    self.assertEqual(values, {row["name"]: number})
                    self.assertEqual(lines, [])

    def test_several_at_once(self) -> None:
        """Pairs are separated by commas; the last of a key wins."""
        values, lines = probe("decay:5,errors:ignore,decay:7,", "decay", "errors")
        self.assertEqual(values, {"decay": 7, "errors": 2})
        self.assertEqual(lines, [])


class Mistakes(unittest.TestCase):
    """One line each, the default holds, and the program goes on."""

    def check(self, options: str, *lines: str, decay: int = 1000) -> None:
        """Expect exactly these lines."""
        values, found = probe(options, "decay", "errors")
        self.assertEqual(found, [f"folio: FOLIO_OPTIONS: {line}" for line in lines])
        self.assertEqual(values, {"decay": decay, "errors": 0})

    def test_after_a_good_value(self) -> None:
        """What stood before the mistake does not hold either."""
        self.check("decay:5,decay:-1", SMALLEST_DECAY_ERROR)
        self.check("decay:5,decay", f'"decay" has no value; write decay:VALUE {SEE}')

    def test_unknown_key(self) -> None:
        """The nearest key is named."""
        self.check("decai:5", f'unknown option "decai"; did you mean "decay"? {SEE}')
        self.check("Errors:warn", f'unknown option "Errors"; did you mean "errors"? {SEE}')
        self.check("stat:exit", f'unknown option "stat"; did you mean "stats"? {SEE}')
        self.check("threadcache:1", f'unknown option "threadcache"; did you mean "thread_cache"? {SEE}')

    def test_key_far_from_all(self) -> None:
        """No key is guessed."""
        self.check("zebra:5", f'unknown option "zebra" {SEE}')

    def test_equals_sign(self) -> None:
        """As other programs have it: the line says how it is written here."""
        self.check("decay=200", f'"decay=200" has no colon; write decay:200 {SEE}')
        self.check("errors=warn,decay:9", f'"errors=warn" has no colon; write errors:warn {SEE}', decay=9)

    def test_bad_number(self) -> None:
        """Not a number, out of bounds, too long for an integer, with a sign, with a blank."""
        for value in ("banana", "3600001", "99999999999999999999999999", "+5", " 5", "5 ", "0x10", "5ms", "1e3", ""):
            line = f'"{value}" is no value for "decay": 0 to 3600000 ms; the default 1000 holds {SEE}'
            self.check(f"decay:{value}", line)
        self.check("decay:-1", SMALLEST_DECAY_ERROR)

    def test_bad_name(self) -> None:
        """No value of an enumeration."""
        for value in ("banana", "Abort", "warn|ignore", "abor", "abortt", ""):
            line = f'"{value}" is no value for "errors": abort|warn|ignore; the default abort holds {SEE}'
            self.check(f"errors:{value}", line)

    def test_no_colon(self) -> None:
        """A key alone."""
        self.check("decay", f'"decay" has no value; write decay:VALUE {SEE}')
        self.check("errors,decay:5", f'"errors" has no value; write errors:VALUE {SEE}', decay=5)

    def test_several_mistakes(self) -> None:
        """Each has its line, and what is right between them holds."""
        self.check(
            "decai:5,decay:9,errors:x",
            f'unknown option "decai"; did you mean "decay"? {SEE}',
            f'"x" is no value for "errors": abort|warn|ignore; the default abort holds {SEE}',
            decay=9,
        )

    def test_long_garbage(self) -> None:
        """Lines stay lines, and nothing overflows."""
        for text in ("x" * 10000, "x" * 10000 + ":1", "decay:" + "9" * 10000, ":" * 1000, "decay:" + "a,:" * 2000):
            values, lines = probe(text, "decay")
            self.assertEqual(values["decay"], 1000)
            self.assertGreaterEqual(len(lines), 1)
            for line in lines:
                self.assertTrue(line.startswith("folio: FOLIO_OPTIONS: "), line)
                self.assertLess(len(line), 2000)


class Limits(unittest.TestCase):
    """limit_soft, limit_hard and pressure: what is in force, and one line for each contradiction."""

    def check(self, options: str, soft: int, hard: int, *lines: str) -> None:
        """Expect these limits and exactly these lines."""
        values, found = probe(options, "limit_soft", "limit_hard")
        self.assertEqual(found, [f"folio: FOLIO_OPTIONS: {line}" for line in lines])
        self.assertEqual(values, {"limit_soft": soft, "limit_hard": hard})

    def test_good_values(self) -> None:
        """Bytes, with suffixes, and in both cases."""
        self.check("limit_soft:100000000,limit_hard:1g", 100000000, 1 << 30)
        self.check("limit_soft:64M", 64 << 20, 0)
        self.check("limit_hard:2T", 0, 2 << 40)

    def test_shares_are_of_something(self) -> None:
        """Of the container's memory or the machine's, whichever is here."""
        for value, name in (("50%", "limit_soft"), ("100%", "limit_hard")):
            values, lines = probe(f"{name}:{value}", name)
            self.assertEqual(lines, [])
            self.assertGreater(values[name], 16 << 20)

    def test_no_limits(self) -> None:
        """Each that is none has its line."""
        for value in ("150%", "0%", "80 %", "1.5G", "64MiB", "much", "-1", "5G%", "container"):
            line = (
                f'"{value}" is no value for "limit_soft": 0 to {LIMIT_MOST} bytes (also with K, M, G or T), 1% to '
                f"100%, or cgroup; the default 0 holds {SEE}"
            )
            self.check(f"limit_soft:{value}", 0, 0, line)

    def test_soft_above_hard(self) -> None:
        """The hard one holds for both."""
        line = (
            f"limit_soft (2147483648 bytes) is above limit_hard (1073741824 bytes), which holds for both {SEE_MEMORY}"
        )
        self.check("limit_soft:2G,limit_hard:1G", 1 << 30, 1 << 30, line)

    def test_too_small(self) -> None:
        """The program must live on."""
        lines = [
            f'"{name}:100": 100 bytes are too few for any program; 4194304 hold {SEE_MEMORY}'
            for name in ("limit_soft", "limit_hard")
        ]
        self.check("limit_soft:100,limit_hard:100", 4 << 20, 4 << 20, *lines)

    def test_the_cgroups(self) -> None:
        """With or without a limit here: bytes, or a line that says that there is none."""
        values, lines = probe("limit_soft:cgroup", "limit_soft")
        none = f"there is no soft limit {SEE_MEMORY}"
        if values["limit_soft"] == 0:
            self.assertEqual(len(lines), 1)
            self.assertTrue(lines[0].startswith('folio: FOLIO_OPTIONS: "limit_soft:cgroup": '), lines[0])
            self.assertTrue(lines[0].endswith(none), lines[0])
        else:
            self.assertEqual(lines, [])

    def test_pressure_without_a_housekeeper(self) -> None:
        """Nobody would look."""
        values, lines = probe("pressure:on,housekeeper:off", "pressure")
        why = "the housekeeper, which would look, is off; off holds"
        self.assertEqual(lines, [f'folio: FOLIO_OPTIONS: "pressure:on": {why} {SEE_MEMORY}'])
        self.assertEqual(values, {"pressure": 0})


class StatsAtExit(unittest.TestCase):
    """stats:exit prints one screen on stderr."""

    def test_prints_at_exit(self) -> None:
        """A summary in short lines, after the program's own output; nothing without the option."""
        _, lines = probe("stats:exit", "stats")
        self.assertGreaterEqual(len(lines), 3)
        self.assertLessEqual(len(lines), 50)
        self.assertLessEqual(max(len(line) for line in lines), 120)
        self.assertIn("live", "\n".join(lines))
        self.assertRegex(lines[1], rf"^  process [1-9]\d*: {re.escape(str(PROBE.resolve()))}$" if len(
            str(PROBE.resolve())) <= 70 else r"^  process [1-9]\d*: \.\.\..{70}$")  # fmt: skip
        self.assertEqual(probe("stats:none", "stats")[1], [])


if __name__ == "__main__":
    with_paths.main(globals(), "PROBE", "OPTIONS_DEF")
