"""Looks at a process from outside by the folio command, again and again, and checks what it says."""

import itertools
import json
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

LIVE_MOST = 2 << 30  # far more than the program may hold
PURGED_MOST = 1 << 40
COMMAND_S = 300


class Outside:
    """A thread of looks. `wrong` says what was wrong, and then it has ended."""

    def __init__(self, folio: Path, pid: int, scratch: Path) -> None:
        self.folio, self.pid, self.scratch = str(folio), str(pid), scratch
        self.wrong: str | None = None
        self.checks = 0
        self.ends = threading.Event()
        self.running: subprocess.Popen[str] | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.ends.set()
        if self.running and self.running.poll() is None:
            self.running.terminate()
        self.thread.join()

    def run(self) -> None:
        checks = [self.bins, self.doctor, self.metrics, self.collect, self.where, self.map]
        for check in itertools.cycle(checks):
            if self.ends.wait(0.2):
                return
            wrong = check()
            if self.ends.is_set():
                return  # it was cut short
            self.checks += 1
            if wrong:
                self.wrong = f"outside: folio {check.__name__}: {wrong}"
                return

    def command(self, *arguments: str) -> tuple[int, str, str]:
        self.running = subprocess.Popen(
            [self.folio, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            output, errors = self.running.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            self.running.kill()
            return -1, "", f"has not ended within {COMMAND_S} s"
        return self.running.returncode, output, errors

    def asked(self, statuses: tuple[int, ...], *arguments: str) -> tuple[dict[str, Any], str | None]:
        """The JSON of a command; what is wrong with how it ended."""
        status, output, errors = self.command(*arguments, "--json")
        if status not in statuses:
            return {}, f"status {status}: {errors.strip()[-500:]}"
        try:
            return json.loads(output), None
        except json.JSONDecodeError as error:
            return {}, f"its JSON: {error}"

    def bins(self) -> str | None:
        reported, wrong = self.asked((0,), "bins", self.pid)
        if wrong:
            return wrong
        rows = reported["samples"][0]["bins"]
        for row in rows:
            cached = sum(row["cached_objects"].values())
            if min(row["live_objects"], row["taken_objects"], row["resident"], *row["cached_objects"].values()) < 0:
                return f"less than nothing: {row}"
            if row["live_objects"] + cached != row["taken_objects"]:
                return f"live and cached are not what is taken: {row}"
        live = sum(row["live"] for row in rows)
        return f"{live} bytes are live" if live > LIVE_MOST else None

    def doctor(self) -> str | None:
        reported, wrong = self.asked((0, 1, 3), "doctor", self.pid)
        if wrong:
            return wrong
        parts = {name: part["bytes"] for name, part in reported["parts"].items()}
        if min(parts.values()) < 0:
            return f"less than nothing: {parts}"
        if sum(parts.values()) + reported["unexplained"] != reported["rss"]:
            return f"the parts are not the whole: {parts} of {reported['rss']}"
        return f"{parts['live']} bytes are live" if parts["live"] > LIVE_MOST else None

    def metrics(self) -> str | None:
        status, output, errors = self.command("metrics", self.pid)
        if status != 0:
            return f"status {status}: {errors.strip()[-500:]}"
        whole = output.endswith("# EOF\n") and re.search(r"^folio_up\{.*\} 1\.0$", output, re.M)
        return None if whole else f"not whole: {output[-200:]}"

    def collect(self) -> str | None:
        reported, wrong = self.asked((0,), "collect", self.pid, "--timeout", "120")
        if wrong:
            return wrong
        # Also by others meanwhile.
        return f"{reported['purged']} bytes were given back" if not 0 <= reported["purged"] < PURGED_MOST else None

    def where(self) -> str | None:
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        anonymous = [line for line in maps if len(line.split()) == 5 and "rw-p" in line]
        line = anonymous[self.checks * 7 % len(anonymous)]
        first, last = (int(each, 16) for each in line.split()[0].split("-"))
        status, _, errors = self.command("where", self.pid, hex(first + (last - first) // 2), "--json")
        return None if status in (0, 1) else f"status {status}: {errors.strip()[-500:]}"

    def map(self) -> str | None:
        file = self.scratch / "map.html"
        status, _, errors = self.command("map", self.pid, "-o", str(file))
        return None if status == 0 else f"status {status}: {errors.strip()[-500:]}"
