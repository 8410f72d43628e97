"""The viewer's server: loopback only, GET only, nothing from outside its own folder of static files.

What models wrote is untrusted: it travels as JSON and the page sets it as text. The content policy allows the
page's own script and style and no other; a foreign site cannot read it, because requests with another Host name
than this machine's loopback are refused (a name that an attacker rebinds to 127.0.0.1 would have its own).
"""

import json
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stepward.flows.viewer.dataset_source import DatasetSource
from stepward.flows.viewer.results_source import ResultsSource
from stepward.flows.viewer.source import Query, Source
from stepward.prm.dataset.folder import MANIFEST, PARTIAL
from stepward.prm.errors import InputError

HOST = "127.0.0.1"
_STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/detail.js": ("detail.js", "text/javascript; charset=utf-8"),
    "/tree.js": ("tree.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_ROWS = 500


def discover(folder: Path) -> tuple[list[Source], dict[str, Path]]:
    """What can be browsed in a folder: itself or its subfolders, and the evaluation pages found there.

    Raises:
        InputError: There is neither a dataset nor a results folder.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is no folder; give a dataset folder, a results folder, or a folder that holds them"
        )
    places = [folder, *sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))]
    sources: list[Source] = []
    reports: dict[str, Path] = {}
    for place in places:
        name = _name(place, {source.name for source in sources} | set(reports))
        if (place / MANIFEST).is_file() or (place / PARTIAL).is_file():
            sources.append(DatasetSource(place, name))
        elif (place / "predictions.parquet").is_file() and (place / "items.parquet").is_file():
            sources.append(ResultsSource(place, name))
        if (place / "report.html").is_file() and (place / "results.json").is_file():
            reports[name] = place / "report.html"
    if not sources and not reports:
        raise InputError(
            f"{folder} holds neither a dataset ({MANIFEST}) nor evaluation results (results.json), and no folder in "
            "it does; give the folder that stepward label or stepward evaluate wrote"
        )
    return sources, reports


def _name(place: Path, taken: set[str]) -> str:
    """A folder's own name, told apart from others that are called the same."""
    own = place.name if place.name not in ("", ".", "..") else place.resolve().name
    name, count = own, 2
    while name in taken:
        name, count = f"{own} ({count})", count + 1
    return name


class ViewerServer(ThreadingHTTPServer):
    """The server and what it shows.

    Args:
        sources: Browsable folders.
        reports: Evaluation pages by name.
        port: 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, sources: Sequence[Source], reports: dict[str, Path], port: int = 0) -> None:
        self.sources = {source.name: source for source in sources}
        self.reports = reports
        self._warmed: set[str] = set()
        super().__init__((HOST, port), _Handler)

    def warm(self, source: Source) -> None:
        """Prepare a source beside its first page, so that the first filter need not wait."""
        if source.name not in self._warmed:
            self._warmed.add(source.name)
            threading.Thread(target=source.warm, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"


def serve(folder: Path, *, port: int = 0, ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until interrupted.

    Args:
        folder: See ``discover``.
        port: Port on the loopback, 0 takes a free one.
        ready: Called with the address once it answers.

    Raises:
        InputError: Nothing to show in the folder.
    """
    sources, reports = discover(folder)
    with ViewerServer(sources, reports, port) as server:
        ready(server.url)
        server.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer
    protocol_version = "HTTP/1.1"
    server_version = "stepward"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        if not self._is_local():
            self._send(HTTPStatus.FORBIDDEN, b"asked by a foreign name", "text/plain")
            return
        url = urlsplit(self.path)
        given = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            if url.path in _STATIC:
                name, kind = _STATIC[url.path]
                self._send(
                    HTTPStatus.OK, (files("stepward.flows.viewer") / "static" / name).read_bytes(), kind
                )
            elif url.path.startswith("/report/"):
                self._report(unquote(url.path.removeprefix("/report/")))
            elif url.path.startswith("/api/"):
                self._api(url.path.removeprefix("/api/"), given)
            else:
                self._missing()
        except BrokenPipeError:
            return
        except Exception as fault:  # the page shows it; the server lives on
            self._json({"error": f"{type(fault).__name__}: {fault}"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_local(self) -> bool:
        port = self.server.server_address[1]
        origin = self.headers.get("Origin")
        names = {f"{HOST}:{port}", f"localhost:{port}"}
        return self.headers.get("Host", "") in names and (
            origin is None or origin.removeprefix("http://") in names
        )

    def _api(self, what: str, given: dict[str, str]) -> None:
        if what == "folders":
            self._json({"folders": [s.describe() for s in self.server.sources.values()],
                        "reports": list(self.server.reports)})  # fmt: skip
            return
        source = self.server.sources.get(given.get("folder", ""))
        if source is None:
            self._missing()
        elif what == "page":
            self._json(source.page(_query(given)))
            self.server.warm(source)
        elif what == "solution":
            found = source.solution(given.get("id", ""))
            if found is None:
                self._missing()
            else:
                self._json(found)
        elif what == "rollouts":
            self._json({"rollouts": source.rollouts(given.get("id", ""), int(given.get("prefix", "0")))})
        elif what == "problem":
            self._json(source.problem(given.get("id", "")))
        else:
            self._missing()

    def _report(self, name: str) -> None:
        path = self.server.reports.get(name)
        if path is None:
            self._missing()
            return
        self._send(HTTPStatus.OK, path.read_bytes(), "text/html; charset=utf-8", _REPORT_POLICY)

    def _missing(self) -> None:
        self._json({"error": "not found"}, HTTPStatus.NOT_FOUND)

    def _json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, json.dumps(value, allow_nan=False).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, policy: str = _POLICY) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _query(given: dict[str, str]) -> Query:
    known = {"folder", "offset", "limit", "sort", "search", "problem"}
    return Query(
        offset=max(0, int(given.get("offset", "0"))),
        limit=min(_MOST_ROWS, max(1, int(given.get("limit", "50")))),
        sort=given.get("sort", ""),
        search=given.get("search", "").strip(),
        problem=given.get("problem", ""),
        filters={name: value for name, value in given.items() if name not in known},
    )
