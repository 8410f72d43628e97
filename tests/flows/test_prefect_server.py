"""A Prefect server that does not come up costs a message, not the run."""

import time

import pytest

from stepward.flows.orchestration import prefect_server
from stepward.flows.orchestration.prefect_server import PrefectServer


@pytest.fixture(autouse=True)
def _no_server_of_the_user(monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def test_a_server_that_fails_is_explained_and_the_run_goes_on(monkeypatch):
    def fail():
        raise RuntimeError("port in use\nsecond line")

    monkeypatch.setattr(prefect_server, "_start_own", fail)
    said = []
    assert PrefectServer(said.append).start().ready() is False
    assert said == [
        "no Prefect server: RuntimeError: port in use; the run goes on without it (same work, same rows)"
    ]


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_patience(monkeypatch):
    monkeypatch.setattr(prefect_server, "_start_own", lambda: time.sleep(5))
    monkeypatch.setattr(prefect_server, "_MESSAGE_AFTER_S", 0.05)
    said = []
    began = time.monotonic()
    assert PrefectServer(said.append).start().ready(patience_s=0.2) is False
    assert time.monotonic() - began < 2
    assert said[0].startswith("waiting for a local Prefect server")
    assert "did not answer within" in said[1]


def test_a_dead_server_of_the_user_is_named(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    said = []
    assert PrefectServer(said.append).start().ready() is False
    assert "ConnectError" in said[0]


def test_telemetry_is_off_unless_the_user_set_it(monkeypatch):
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    prefect_server.set_quiet_defaults()
    import os

    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "true"
