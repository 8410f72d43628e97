"""The shipped checkpoint through the exact engine."""

import asyncio

import pytest

from stepward.labeling.policies.embedded import embedded_folder, load_embedded
from stepward.labeling.policies.registry import load_policy
from stepward.prm.policy import SampleRequest
from stepward.prm.prompts import file_template
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Prefix, Problem, Rollout, Sampler

pytestmark = pytest.mark.skipif(
    not embedded_folder().is_dir(), reason="this checkout has no embedded_checkpoint folder"
)


async def test_it_solves_problems_the_same_for_any_batch() -> None:
    rows: list[list[Rollout]] = []
    for batch_size in (1, 7, 64):
        policy = load_embedded(batch_size=batch_size)
        assert policy.deterministic
        problem = Problem("p", "Tom has 3 apples. He gets 4 more. How many apples does he have?")
        prompt = file_template(policy.folder / "prompt.jinja").render(problem, policy.tokenizer)
        assert prompt.ids[0] == policy.tokenizer.bos_id
        asked = [
            SampleRequest(Prefix("p", prompt.ids), Sampler(max_tokens=80), derive_seed(0, k), k, True)
            for k in range(8)
        ]
        rows.append(await asyncio.gather(*(policy.sample(r) for r in asked)))
        await policy.close()
    assert rows[0] == rows[1] == rows[2]
    assert all(r.finish_reason is FinishReason.STOP for r in rows[0])
    assert len({r.text for r in rows[0]}) > 1


def test_rows_name_it_without_a_folder() -> None:
    policy = load_policy("embedded")
    assert (policy.info.name, policy.info.engine) == ("stepward/embedded", "embedded")
