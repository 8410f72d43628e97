"""Real model text through the command: problems read, answers extracted and graded as the record has it."""

import asyncio
import gzip
import json
from collections import Counter

import pytest

from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.prm.dataset.store import open_dataset
from stepward.prm.publishing.hub import plan_publication


@pytest.mark.slow
def test_logged_solutions_of_real_models_get_the_recorded_outcomes(data_dir, tmp_path):
    log = data_dir / "solutions" / "gsm8k_test_pool.jsonl.gz"
    config = LabelConfig(
        problems=str(data_dir / "problems" / "gsm8k_test.jsonl"),
        out=tmp_path / "replayed",
        policy=f"replay:{log}",
        limit=100,
        num_solutions=13,
        allocation="none",
        num_rollouts=0,
        labeler="math_shepherd",
    )
    asyncio.run(label(config))
    recorded = {}
    with gzip.open(log, "rt", encoding="utf-8") as lines:
        for _, line in zip(range(100), lines, strict=False):
            row = json.loads(line)
            recorded |= {(row["question"].strip(), s["text"]): s["correct"] for s in row["samples"]}
    dataset = open_dataset(config.out)
    question = {row.solution.id: row.problem.text.strip() for row in dataset.solutions()}
    seen = Counter(
        (recorded[question[solution], rollout.text], rollout.outcome.value)
        for solution, rollout in dataset.rollouts()
    )
    # Seven disagreements, each looked at in docs/quickstart.md; three of them are faults of the record.
    assert seen.total() == 1300
    assert seen[True, "right"] + seen[False, "wrong"] >= 1293
    assert "by_construction" in dataset.manifest.contamination
    assert "by construction" in plan_publication(config.out, "me/replayed").refusals["contamination"]
