"""A Prefect server that fails under a run costs its page, not a row: locked, dying, or dead from the start."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import prefect
import pytest
from benchmarks.soak import command, write_inputs

from stepward.prm.dataset.store import open_dataset

pytestmark = [pytest.mark.slow, pytest.mark.alone]


class Server:
    """Answers as healthy, and everything else as ``answer`` says; counts what it was asked."""

    def __init__(self, status: int) -> None:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def _say(self) -> None:
                asked.append(self.path)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                well = {
                    "/api/health": True,
                    "/api/admin/version": prefect.__version__,
                    "/api/csrf-token": None,
                }
                healthy = well.get(self.path.partition("?")[0])
                body = json.dumps(healthy or {"exception_message": "database is locked"}).encode()
                self.send_response(200 if healthy else status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = _say  # noqa: N815  (names that http.server looks for)

            def log_message(self, *_: object) -> None:
                return

        self.asked = asked
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def run(folder: Path, url: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {
        "PREFECT_API_URL": url, "PREFECT_HOME": str(folder / "prefect"), "PREFECT_CLIENT_MAX_RETRIES": "1",
        "PREFECT_CLIENT_RETRY_JITTER_FACTOR": "0", "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    assert sys.executable
    return subprocess.run(
        command(folder, folder / "out", prefect=True), env=env, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("status", [503, 500])
def test_a_server_whose_database_is_locked_is_asked_again_and_then_done_without(tmp_path, status):
    write_inputs(tmp_path)
    server = Server(status)
    try:
        done = run(tmp_path, server.url)
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    assert f"Prefect's server failed (PrefectHTTPStatusError {status}" in done.stderr
    assert ("PostgreSQL" in done.stderr) == (status == 503)
    assert open_dataset(tmp_path / "out").manifest.fingerprint is not None
    if status == 503:
        assert Counter(server.asked).most_common(1)[0][1] >= 2


def test_a_dead_server_is_named_and_the_run_goes_on(tmp_path):
    write_inputs(tmp_path)
    done = run(tmp_path, "http://127.0.0.1:9/api")
    assert done.returncode == 0, done.stderr
    assert "no Prefect server: ConnectError" in done.stderr
    assert len(open_dataset(tmp_path / "out")) == 240
