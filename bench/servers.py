#!/usr/bin/env python3
"""servers.py NAME REQUESTS REST: one server under a bounded load, as a program that bench/run.py can start.

The server inherits this process's LD_PRELOAD, its clients do not; it listens on 127.0.0.1 or on a socket in the file
system, and is ended with this process. The last line of output is a result like that of a benchmark program: the rate
as the load's own program reports it, the server's own memory and CPU time, its memory after what the load stored was
deleted and it had nothing to do for 2 and 5 seconds (REST is up to when), and the file that its malloc comes from.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from folio.proof import debug_environment, logged
from measure import BenchError, maps_hold
from records import libc_file

START_SECONDS = 60
LOAD_SECONDS = 200
PR_SET_PDEATHSIG = 1


def library() -> Path:
    return Path(os.environ.get("LD_PRELOAD") or libc_file())


def server_environment() -> dict[str, str]:
    """With the libc's malloc it is preloaded too: Debian's redis-server is linked to jemalloc."""
    return {**os.environ, "LD_PRELOAD": str(library())}


def client_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def end_with_parent() -> None:
    """In the child: no server outlives a driver that was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def client(*command: str, timeout: float = LOAD_SECONDS) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=client_environment(), timeout=timeout)
    if done.returncode != 0:
        raise BenchError(f"{command[0]}: exit status {done.returncode} {(done.stderr or done.stdout)[-200:]}")
    return done.stdout


def malloc_of(*command: str) -> str:
    """The file that serves the server program's malloc, from a short run of it."""
    with tempfile.TemporaryDirectory(prefix="folio-proof-") as scratch:
        environment = {**server_environment(), "LD_BIND_NOW": "1", **debug_environment(scratch)}
        subprocess.run(command, env=environment, capture_output=True, timeout=START_SECONDS)
        found = logged(scratch)
    if len(found) != 1:
        raise BenchError(f"malloc of {command[0]} comes from {', '.join(sorted(found)) or 'nowhere'}")
    return found.pop()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(command: list[str], folder: Path, ready: Callable[[], bool]) -> Iterator[subprocess.Popen]:
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=server_environment(), stdout=log, stderr=log, preexec_fn=end_with_parent
        )
        try:
            end = time.monotonic() + START_SECONDS
            while not ready():
                if server.poll() is not None or time.monotonic() > end:
                    last = (folder / "server.log").read_text(errors="replace").strip()[-200:]
                    raise BenchError(f"{command[0]} does not start: {last}")
                time.sleep(0.02)
            # Already proven by the loader's bindings for a short run; this is the very process that is measured.
            if not maps_hold(Path(f"/proc/{server.pid}/maps").read_text(), library()):
                raise BenchError(f"{command[0]} does not have {library()} in its map")
            yield server
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def memory(server: subprocess.Popen, field: str) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)[1]) * 1024


def cpu_seconds(server: subprocess.Popen) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def under_load(server: subprocess.Popen, load: Callable[[], str]) -> tuple[dict, str]:
    """What the server did while the load ran, and what the load printed."""
    cpu, begin = cpu_seconds(server), time.monotonic()
    output = load()
    seconds = time.monotonic() - begin
    return {
        "seconds": seconds,
        "cpu": cpu_seconds(server) - cpu,
        "rss_peak_bytes": memory(server, "VmHWM"),
        "rss_end_bytes": memory(server, "VmRSS"),
    }, output


def at_rest(server: subprocess.Popen, result: dict, seconds: int, delete: Callable[[], object] | None = None) -> None:
    """Resident memory when the load is over, when what it stored is deleted, and after that without any request."""
    result["stages"] = [["loaded", result["rss_end_bytes"]]]
    if delete is not None:
        delete()
        result["stages"].append(["deleted", memory(server, "VmRSS")])
    begin = time.monotonic()
    for after in (2, 5):
        if after > seconds:
            break
        time.sleep(max(0.0, begin + after - time.monotonic()))
        result[f"rss_after_{after}s_bytes"] = memory(server, "VmRSS")
        result["stages"].append([f"{after} s later", result[f"rss_after_{after}s_bytes"]])


def said(pattern: str, text: str, load: str) -> float:
    """A figure in what the load's program prints."""
    match = re.search(pattern, text)
    if match is None:
        raise BenchError(f"{load}: no {pattern!r} in what it printed")
    return float(match[1])


REDIS_TESTS = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100"


def redis(folder: Path, requests: int, rest: int) -> dict:
    """Strings, lists, hashes and sets; then everything is deleted, and the server idles for five seconds."""
    port = str(free_port())
    command = [*("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", ""), "--appendonly", "no"]
    malloc = malloc_of("redis-server", "--version")
    with running(command, folder, lambda: answers(int(port))) as server:
        load = ["redis-benchmark", "-h", "127.0.0.1", "-p", port, "-n", str(requests), "-c", "20", "-P", "16"]
        load += ["-r", "100000", "-d", "300", "-t", REDIS_TESTS, "--csv"]
        result, text = under_load(server, lambda: client(*load))
        rows = list(csv.DictReader(io.StringIO(text)))
        result["ops_per_second"] = len(rows) / sum(1 / float(row["rps"]) for row in rows)
        for row in rows:
            if row["test"] == "SET":
                for column, key in [("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "max")]:
                    result[f"set_{key}_ns"] = float(row[f"{column}_latency_ms"]) * 1e6
        at_rest(server, result, rest, lambda: client("redis-cli", "-h", "127.0.0.1", "-p", port, "flushall", "sync"))
    return {**result, "malloc": malloc}


MEMCASLAP = """key
20 60 1
value
40 400 0.6
400 4000 0.4
cmd
0 0.3
1 0.7
"""


def memcached(folder: Path, requests: int, rest: int) -> dict:
    """Three sets to seven gets by 32 connections, keys of 20 to 60 bytes and values of 40 to 4000."""
    port = free_port()
    malloc = malloc_of("memcached", "--version")
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", "-t", "2", "-m", "512"]
    (folder / "load.cfg").write_text(MEMCASLAP)
    with running(command, folder, lambda: answers(port)) as server:
        load = ["memcaslap", f"--servers=127.0.0.1:{port}", "--threads=1", "--concurrency=32"]
        load += [f"--execute_number={requests}", f"--cfg_cmd={folder}/load.cfg"]
        result, text = under_load(server, lambda: client(*load))
        result["ops_per_second"] = said(r"TPS: (\d+)", text, "memcaslap")
        at_rest(server, result, rest, lambda: client("memcflush", f"--servers=127.0.0.1:{port}"))
    return {**result, "malloc": malloc}


NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 128; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  gzip on; gzip_http_version 1.0; gzip_types text/plain; gzip_min_length 1;
  server {{ listen 127.0.0.1:{port}; root {folder}/files; }}
}}
"""


def nginx(folder: Path, requests: int, rest: int) -> dict:
    """A file of 20 KiB, compressed anew for each request: zlib's state is malloc's work."""
    port = free_port()
    (folder / "files").mkdir()
    (folder / "files" / "page.txt").write_text("".join(f"line {i * 7919 % 10007} of a page\n" for i in range(900)))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"
    malloc = malloc_of(program, "-v")
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with running(command, folder, lambda: answers(port)) as server:
        load = ["ab", "-q", "-n", str(requests), "-c", "16", "-H", "Accept-Encoding: gzip"]
        result, text = under_load(server, lambda: client(*load, f"http://127.0.0.1:{port}/page.txt"))
        result["ops_per_second"] = said(r"Requests per second:\s+([\d.]+)", text, "ab")
        at_rest(server, result, rest)
    return {**result, "malloc": malloc}


TABLE = ["--tables=1", "--table-size=100000", "--db-driver=mysql", "--mysql-user=root", "--mysql-db=bench"]


def mariadb(folder: Path, requests: int, rest: int) -> dict:
    """sysbench selects rows by key with eight connections, from a table that is made before."""
    data, address = folder / "data", f"{folder}/s"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    client(*install, "--auth-root-authentication-method=normal")
    malloc = malloc_of("mariadbd", "--version")
    arguments = ["--no-defaults", f"--datadir={data}", f"--socket={address}", "--skip-networking", "--user=root"]
    arguments += ["--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"]
    query = ["mariadb", "--no-defaults", f"--socket={address}", "--user=root", "-e"]

    def ready() -> bool:
        return subprocess.run([*query, "select 1"], env=client_environment(), capture_output=True).returncode == 0

    with running(["mariadbd", *arguments], folder, ready) as server:
        client(*query, "create database bench")
        base = ["sysbench", "oltp_point_select", *TABLE, f"--mysql-socket={address}"]
        client(*base, "prepare")
        load = [*base, "--threads=8", "--time=0", f"--events={requests}", "--percentile=99", "run"]
        result, text = under_load(server, lambda: client(*load))
        result["ops_per_second"] = said(r"queries:\s+\d+\s+\(([\d.]+) per sec", text, "sysbench")
        at_rest(server, result, rest, lambda: client(*query, "drop database bench"))
    return {**result, "malloc": malloc}


SERVERS = {"redis": redis, "memcached": memcached, "nginx": nginx, "mariadb": mariadb}


def main() -> int:
    name, requests, rest = sys.argv[1], int(sys.argv[-2]), int(sys.argv[-1])
    # A path of its own for each run, and a short one: that of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="folio-") as scratch:
        print(json.dumps({"program": name, **SERVERS[name](Path(scratch), requests, rest)}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchError, subprocess.TimeoutExpired) as error:
        print(f"servers.py: {error}", file=sys.stderr)
        sys.exit(2)
