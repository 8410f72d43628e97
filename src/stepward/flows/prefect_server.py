"""A Prefect server whose start can neither fail a command nor make it wait for long.

A running server (``PREFECT_API_URL``) is used as it is. Else one is started beside the command's own set-up
(loading torch and a model takes as long) and lives as long as the command. Where it does not answer in time the
same functions run without Prefect, and a line says so. Telemetry and update checks are off unless the user set
them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

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


def _start_own() -> None:
    """Start Prefect's own per-process server: its clients find it, and it stops itself when the process ends."""
    from prefect.server.api.server import SubprocessASGIServer

    SubprocessASGIServer().start(timeout=int(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"]))


def _ask_health(url: str) -> None:
    import httpx

    response = httpx.get(url.rstrip("/") + "/health", timeout=5.0)
    response.raise_for_status()
