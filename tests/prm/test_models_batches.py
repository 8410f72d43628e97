"""How solutions are laid out for a pass: what shares a row, what keeps the fast kernel, what is read once."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from stepward.prm.models import discriminative
from stepward.prm.models.batches import MAX_SHARED_ROW, batches_by_prompt, make_batch
from stepward.prm.models.discriminative import DiscriminativePRM, attention_inputs
from stepward.prm.models.heads import build_head, head_spec
from stepward.prm.models.inputs import EncodedSolution
from stepward.prm.models.reward_model import DiscriminativeRewardModel


def solution(prompt: tuple[int, ...], own: int, first: int = 7) -> EncodedSolution:
    """A solution of one step of ``own`` ids behind a prompt."""
    ids = prompt + tuple((first + k) % 50 + 1 for k in range(own))
    return EncodedSolution(ids, len(prompt), (len(ids) - 1,))


@pytest.fixture(scope="module")
def model() -> DiscriminativePRM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = LlamaModel(
            LlamaConfig(
                vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
            )
        )  # fmt: skip
        return DiscriminativePRM(backbone, build_head(16, head_spec("scalar"))).eval()


def test_a_padded_causal_batch_reaches_attention_without_a_mask(model: DiscriminativePRM, monkeypatch):
    seen: list[bool] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, is_causal=False, **given):
        seen.append(attn_mask is None and is_causal)
        return attend(*args, attn_mask=attn_mask, is_causal=is_causal, **given)

    batch = make_batch([solution((1, 2, 3), 5), solution((4, 5), 12)])
    assert attention_inputs(model.backbone, batch, causal=True) == {"use_cache": False}
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with torch.no_grad():
        padded = model(batch)
    assert seen == [True, True]  # two layers
    with torch.no_grad():
        alone = torch.cat([model(make_batch([s])) for s in (solution((1, 2, 3), 5), solution((4, 5), 12))])
    assert torch.allclose(padded, alone, atol=1e-6)


def test_solutions_that_share_no_prompt_are_batched_apart_from_those_that_do():
    lone = [solution((k,), 20) for k in range(1, 5)]
    sharing = [solution((9, 9, 9), 4, first=k) for k in range(3)]
    groups = batches_by_prompt([*lone, *sharing], 10_000)
    assert groups == [[0, 1, 2, 3], [4, 5, 6]]
    assert make_batch(lone, share_prompts=True).plain
    assert make_batch(sharing, share_prompts=True).input_ids.shape == (1, 3 + 3 * 4)


def test_long_solutions_of_one_prompt_are_not_put_into_one_row():
    # 100 + 300 + 300 is over 512, so each has a row, and rows of one solution need no mask.
    prompt = tuple(range(1, 51)) * 2
    pair = [solution(prompt, MAX_SHARED_ROW - 212, first=k) for k in range(2)]
    batch = make_batch(pair, share_prompts=True)
    assert batch.plain
    assert batch.input_ids.shape == (2, 400)
    assert sorted(i for group in batches_by_prompt(pair, 10_000) for i in group) == [0, 1]


def test_equal_solutions_are_read_once_and_each_has_its_score(model: DiscriminativePRM, monkeypatch):
    made = discriminative.DiscriminativePRM.forward
    read: list[int] = []

    def counted(self, batch, logprobs=None):
        read.append(len(batch.starts))
        return made(self, batch, logprobs)

    monkeypatch.setattr(discriminative.DiscriminativePRM, "forward", counted)
    rewards = DiscriminativeRewardModel("m", SimpleNamespace(model=model, reference=None))  # pyright: ignore
    a, b = solution((1, 2), 6), solution((1, 2), 6, first=20)
    assert a != b
    scores = rewards.score_encoded([a, b, a, a, b])
    assert sum(read) == 2
    assert scores[0] == scores[2] == scores[3] != scores[1] == scores[4]
    assert rewards.score_encoded([b])[0] == pytest.approx(scores[1], abs=1e-6)
    assert rewards.score_encoded([]) == []
