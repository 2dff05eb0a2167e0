"""`folio profile PID --listen`: heap profiles for collectors (Grafana's, Parca's), as Go programs serve theirs.

/debug/pprof/heap     what is live       both since the command was started; with ?seconds=N only what was
/debug/pprof/allocs   what was allocated allocated within the next N seconds
"""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from folio import output
from folio.book import Columns
from folio.errors import FolioError
from folio.metrics import parse_listen
from folio.pprof import build
from folio.profiling import Profile, Session, Stop, profiled

SECONDS_MOST = 600
FOLD_ROWS = 100_000  # of freed samples that are kept one by one
DEFAULTS = {"/debug/pprof/heap": "inuse_space", "/debug/pprof/allocs": "alloc_space"}


class Collector:
    """Looks at the samples in a thread, and makes profiles for others."""

    def __init__(self, session: Session) -> None:
        self.session, self.lock = session, threading.Lock()
        self.stop = threading.Event()
        self.waiting = 0  # requests for a delta: nothing is folded meanwhile
        self.problem = ""

    def run(self) -> None:
        self.session.start_feed()
        while not self.stop.wait(self.session.pause):
            try:
                with self.lock:
                    self.poll()
            except FolioError as error:
                self.problem = str(error)
                self.stop.set()
        self.session.stop_feed()

    def poll(self) -> None:
        self.session.poll()
        if not self.waiting and len(self.session.book.rows) - len(self.session.book.row_of) > FOLD_ROWS:
            self.session.book.fold()

    def profile(self) -> Profile:
        with self.lock:
            if self.problem:
                raise FolioError(self.problem)
            self.poll()
            self.session.poll_pages()
            return self.session.profile()

    def delta(self, seconds: float) -> Profile:
        """Of what is allocated from now on."""
        with self.lock:
            self.waiting += 1
        try:
            begun = self.profile().began if self.session.made_last == 0 else self.session.made_last
            self.stop.wait(seconds)
            return since(self.profile(), begun, seconds)
        finally:
            with self.lock:
                self.waiting -= 1


def since(profile: Profile, number: int, seconds: float) -> Profile:
    columns = profile.columns
    chosen = columns.number > number
    fields = {name: getattr(columns, name)[chosen] for name in Columns.__dataclass_fields__}
    return replace(profile, columns=Columns(**fields), resident=profile.resident[chosen], seconds=seconds, began=number)


class Handler(BaseHTTPRequestHandler):
    server_version = "folio"
    collector: Collector

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        default = DEFAULTS.get(url.path)
        if default is None:
            known = "\n".join(DEFAULTS)
            self.answer(404 if url.path != "/" else 200, f"there is\n{known}\n".encode(), "text/plain")
            return
        try:
            seconds = float(parse_qs(url.query).get("seconds", ["0"])[0])
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= SECONDS_MOST or not np.isfinite(seconds):
            self.answer(400, f"seconds: 0 to {SECONDS_MOST}\n".encode(), "text/plain")
            return
        try:
            profile = self.collector.delta(seconds) if seconds else self.collector.profile()
        except FolioError as error:
            self.answer(503, f"{error}\n".encode(), "text/plain")
            return
        self.answer(200, build(profile, default), "application/octet-stream")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if kind == "application/octet-stream":
            self.send_header("Content-Disposition", 'attachment; filename="profile.pb.gz"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(session: Session, listen: str) -> int:
    """Until Ctrl-C, a signal, or the end of the process."""
    host, port = parse_listen(listen)
    with Stop() as stop, profiled(session):
        collector = Collector(session)
        handler = type("Bound", (Handler,), {"collector": collector})
        try:
            server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise FolioError(f"--listen {listen}: {error.strerror}; choose another address or port") from None
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        polls = threading.Thread(target=collector.run, daemon=True)
        polls.start()
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/debug/pprof/heap"
        output.note(f"serves process {session.reader.process.pid} at {url} (and allocs); Ctrl-C ends")
        output.note(f"next: go tool pprof {url}")
        while not (stop.wait(0.2) or collector.stop.is_set()):
            pass
        collector.stop.set()
        polls.join(timeout=10)
        server.shutdown()
        if collector.problem:
            raise FolioError(collector.problem)
    return 0
