"""``stepward view`` from the command line."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepward.flows.cli.main import app
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.results import Results, score_run
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.evaluation.thresholds import Threshold

FAST = Bootstrap(num_resamples=20)


def write(folder: Path) -> None:
    items = [Item(f"i{k}", f"p{k}", ("a", "b"), 1 if k % 2 else None, "s") for k in range(4)]
    scores = [(0.9, 0.1 if k % 2 else 0.9) for k in range(4)]
    run = score_run(items, scores, Threshold(0.5, "dev"), scorer="prm", bootstrap=FAST)
    write_results(folder, Results(folder.name, tuple(items), (run,)))


@pytest.mark.slow
def test_view_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write(tmp_path / "results")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from stepward.flows.cli.main import main; main()",
            "view",
            str(tmp_path),
            "--no-browser",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url + "api/folders", timeout=30) as answer:
            assert b'"results"' in answer.read()
        process.send_signal(2)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()


def test_view_tells_what_it_did_not_find(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["view", str(tmp_path), "--no-browser"])
    assert "holds neither a dataset" in str(shown.exception)
