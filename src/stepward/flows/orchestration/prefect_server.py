"""A Prefect server whose start can neither fail a command nor make it wait for long.

A running server (``PREFECT_API_URL``) is used as it is. Else one is started beside the command's own set-up
(loading torch and a model takes as long) and lives as long as the command. Where it does not answer in time the
same functions run without Prefect, and a line says so. Telemetry and update checks are off unless the user set
them.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO

import httpx

from stepward.prm.errors import ConfigError

_QUIET_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
}
_MESSAGE_AFTER_S = 3.0
PATIENCE_S = 28.0


def set_quiet_defaults() -> None:
    """Turn telemetry and chatter off; what the user set stays. Call before anything imports prefect."""
    for name, value in _QUIET_DEFAULTS.items():
        os.environ.setdefault(name, value)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class PrefectServer:
    """The command's Prefect server.

    Args:
        say: Where messages for the user go.
    """

    def __init__(self, say: Callable[[str], None] = _say) -> None:
        self._say = say
        self._ready = threading.Event()
        self._fault: str | None = None

    def start(self) -> "PrefectServer":
        """Begin to start the server and return at once."""
        set_quiet_defaults()
        threading.Thread(target=self._run, name="prefect-server", daemon=True).start()
        return self

    def ready(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait until the server answers.

        Returns:
            False where it failed or did not answer within ``patience_s``; the user has then been told.
        """
        began = time.monotonic()
        if not self._ready.wait(min(_MESSAGE_AFTER_S, patience_s)):
            self._say("waiting for a local Prefect server (--no-prefect does without it) ...")
            self._ready.wait(max(0.0, patience_s - (time.monotonic() - began)))
        if self._ready.is_set() and self._fault is None:
            return True
        reason = self._fault or f"it did not answer within {patience_s:.0f} s"
        self._say(f"no Prefect server: {reason}; the run goes on without it (same work, same rows)")
        return False

    def _run(self) -> None:
        try:
            url = os.environ.get("PREFECT_API_URL")
            if url:
                _ask_health(url)
            else:
                _start_own()
        except Exception as fault:
            # Whatever goes wrong in a server that is only a companion must not end the run.
            self._fault = (
                f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else 'no message'}"
            )
        finally:
            self._ready.set()


# A schedule of months must not fill a disk: what is older is vacuumed. Labels and their history are in the folders.
_BOUNDED = {
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(14 * 86400),
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "P2D",
}


def is_of_server(fault: Exception) -> bool:
    """Whether a fault is Prefect's server's: engines and the Hub raise Stepward's own errors."""
    unreached = isinstance(fault, RuntimeError) and str(fault).startswith("Failed to reach API")
    return unreached or isinstance(fault, httpx.HTTPError)


def set_bounds() -> None:
    """Bound the books of a server of ours; what the user set stays."""
    for name, value in _BOUNDED.items():
        os.environ.setdefault(name, value)


@contextmanager
def lasting_server(say: Callable[[str], None] = _say) -> Generator[str]:
    """A server for schedules, as long as the block lasts: the one at PREFECT_API_URL, else one that is started.

    Yields:
        Its API's address, which is also set in the environment, for the processes of runs.

    Raises:
        ConfigError: None answers; the message says why.
    """
    set_quiet_defaults()
    if url := os.environ.get("PREFECT_API_URL"):
        try:
            _ask_health(url)
        except Exception as fault:
            raise ConfigError(
                [
                    f"PREFECT_API_URL={url}: no Prefect server answers ({type(fault).__name__}); start it, or unset it"
                ]
            ) from fault
        yield url
        return
    set_bounds()
    port = _free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  (as long as the server)
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        say(f"starting a Prefect server at {url} (its page: http://127.0.0.1:{port}) ...")
        _wait_until_healthy(process, url, log)
        os.environ["PREFECT_API_URL"] = url
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, log: IO[str]) -> None:
    end = time.monotonic() + float(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"])
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            said = log.read().strip().splitlines()[-3:]
            raise ConfigError([f"the Prefect server ended at once: {' / '.join(said)[:400]}"])
        try:
            _ask_health(url)
        except Exception:
            time.sleep(0.5)
        else:
            return
    raise ConfigError(
        [f"the Prefect server did not answer at {url} in time; start one by hand and set PREFECT_API_URL"]
    )


def _free_port() -> int:
    """A port of the system's choice: a fixed one would be another schedule's server as often as not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start_own() -> None:
    """Start Prefect's own per-process server: its clients find it, and it stops itself when the process ends."""
    from prefect.server.api.server import SubprocessASGIServer

    SubprocessASGIServer().start(timeout=int(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"]))


def _ask_health(url: str) -> None:
    response = httpx.get(url.rstrip("/") + "/health", timeout=5.0)
    response.raise_for_status()
