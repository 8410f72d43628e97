"""Twenty kills at random moments, three of them under Prefect: the same bytes, no row lost or doubled."""

import pytest
from benchmarks.soak import soak

from stepward.flows.orchestration.prefect_server import lasting_server


@pytest.mark.slow
def test_a_run_survives_twenty_kills_and_the_damage_of_crashes(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    (tmp_path / "soak").mkdir()
    with lasting_server(say=lambda line: None) as url:
        result = soak(tmp_path / "soak", kills=20, prefect_kills=3, seed=7, api_url=url)
    assert result.faults == []
    assert result.kills.total() == 20
    assert result.finished >= 1
