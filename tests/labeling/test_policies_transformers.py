"""The transformers engine on a tiny random model."""

import asyncio
import dataclasses
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stepward.labeling.policies.decoding import Decoder
from stepward.labeling.policies.metered import Meter, MeteredPolicy
from stepward.labeling.policies.model_call import CausalModel
from stepward.labeling.policies.sampling import gumbel
from stepward.labeling.policies.transformers import TransformersPolicy, load_transformers
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Outcome, Prefix, Rollout, Sampler

PROMPT = tuple(range(1, 30))


def requests(
    sampler: Sampler, *, problems: int = 3, solutions: int = 2, draws: int = 3
) -> list[SampleRequest]:
    """Rollouts at all prefixes of made-up solutions, as a labelling asks for them."""
    asked: list[SampleRequest] = []
    for p in range(problems):
        prompt = tuple((i * (p + 2)) % 299 + 1 for i in range(12 + p))
        for s in range(solutions):
            solution = tuple((i * (s + 3) + p) % 299 + 1 for i in range(18))
            for t in range(4):
                prefix = Prefix(f"p{p}", prompt, solution[: t * 6], t)
                asked += [
                    SampleRequest(prefix, sampler, derive_seed(1, p, s, t, k), k, True) for k in range(draws)
                ]
    return asked


async def sample_all(policy: Policy, asked: list[SampleRequest], in_flight: int = 10_000) -> list[Rollout]:
    gate = asyncio.Semaphore(in_flight)

    async def one(request: SampleRequest) -> Rollout:
        async with gate:
            return await policy.sample(request)

    return await asyncio.gather(*(one(r) for r in asked))


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(max_tokens=12),
        Sampler(temperature=0.6, top_p=0.8, top_k=20, max_tokens=9),
        Sampler(temperature=0, max_tokens=6),
    ],
)
async def test_the_same_request_gives_the_same_rollout_for_any_batch_and_concurrency(
    tiny_checkpoint: Path, sampler: Sampler
) -> None:
    await same_rows(tiny_checkpoint, requests(sampler, problems=2, solutions=1, draws=1))


@pytest.mark.slow
async def test_the_same_request_gives_the_same_rollout_for_any_batch_when_there_are_many(
    tiny_checkpoint: Path,
) -> None:
    await same_rows(tiny_checkpoint, requests(Sampler(max_tokens=40), problems=6, solutions=3, draws=4))


async def same_rows(tiny_checkpoint: Path, asked: list[SampleRequest]) -> None:
    rows: list[list[Rollout]] = []
    for batch_size, in_flight, cache in ((1, 1, 0), (7, 72, 1), (64, 72, 256), (64, 5, 0)):
        policy = load_transformers(tiny_checkpoint, exact=True, batch_size=batch_size, prefix_cache_mib=cache)
        assert policy.deterministic
        rows.append(await sample_all(policy, asked, in_flight))
        await policy.close()
    assert rows[0] == rows[1] == rows[2] == rows[3]
    backwards = load_transformers(tiny_checkpoint, exact=True, batch_size=16)
    assert (await sample_all(backwards, asked[::-1]))[::-1] == rows[0]
    await backwards.close()


def reference(folder: Path, request: SampleRequest) -> tuple[list[int], list[float]]:
    """The same rollout from the model's own forward pass: no cache, no batch, no code of the engine but the noise."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    ids, logprobs = list(request.prefix.token_ids), []
    start = len(ids)
    while len(ids) - start < request.sampler.max_tokens:
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        noise = gumbel(torch.tensor([request.seed]), torch.tensor([len(ids) - start]), len(logits))[0]
        token = int((logits / request.sampler.temperature + noise).argmax())
        logprobs.append(float(logits.log_softmax(-1)[token]))
        ids.append(token)
        if token == 0:
            break
    return ids[start:], logprobs


async def test_tokens_and_log_probabilities_are_the_models_own(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True, batch_size=8)
    asked = requests(Sampler(temperature=0.8, max_tokens=10), problems=1, solutions=1, draws=1)
    rollouts = await sample_all(policy, asked)
    for request, rollout in zip(asked, rollouts, strict=True):
        ids, logprobs = reference(tiny_checkpoint, request)
        assert list(rollout.token_ids) == ids
        assert rollout.logprobs == pytest.approx(logprobs, abs=6e-5)
        assert rollout.text == policy.tokenizer.decode(ids)
    await policy.close()


async def test_log_likelihood_equals_the_log_probabilities_of_sampling(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True, batch_size=8)
    asked = requests(Sampler(max_tokens=8), problems=2, solutions=1, draws=1)
    rollouts = await sample_all(policy, asked)
    scores = await asyncio.gather(
        *(policy.loglikelihood(r.prefix, o.token_ids) for r, o in zip(asked, rollouts, strict=True))
    )
    assert list(scores) == [o.logprobs for o in rollouts]
    assert await policy.loglikelihood(asked[0].prefix, ()) == ()
    await policy.close()


async def test_prefixes_of_one_solution_are_computed_once(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True, batch_size=64)
    await sample_all(policy, requests(Sampler(max_tokens=4), problems=1, solutions=1, draws=5))
    # Prompt of 12 and solution of 18 ids; the last id of the longest prefix is the first decode step's.
    assert policy.decoder.prefilled_tokens == 12 + 18 - 1
    await sample_all(policy, requests(Sampler(max_tokens=3), problems=1, solutions=1, draws=5))
    assert policy.decoder.prefilled_tokens == 29
    await policy.close()


async def test_a_sampled_solution_is_continued_without_computing_it_again(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    root = Prefix("p", PROMPT)
    solution = await policy.sample(SampleRequest(root, Sampler(max_tokens=20), 3))
    before = policy.decoder.prefilled_tokens
    later = Prefix("p", PROMPT, solution.token_ids[:-1], 1)
    rollout = await policy.sample(SampleRequest(later, Sampler(max_tokens=8), 4, 0, True))
    assert policy.decoder.prefilled_tokens == before
    await policy.close()
    fresh = load_transformers(tiny_checkpoint, exact=True)
    assert await fresh.sample(SampleRequest(later, Sampler(max_tokens=8), 4, 0, True)) == rollout
    await fresh.close()


async def test_a_stop_string_is_found_in_text_across_and_inside_tokens(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    free = await policy.sample(SampleRequest(Prefix("p", PROMPT), Sampler(max_tokens=40), 11))
    # Two characters of the free text from two tokens: the same seed must stop at the token that completes them.
    starts = set(policy.tokenizer.offsets(free.token_ids))
    at = next(i for i in range(4, len(free.text)) if i + 1 in starts and free.text[i : i + 2].isascii())
    stop = free.text[at : at + 2]
    end = free.text.find(stop) + len(stop)
    stopped = await policy.sample(
        SampleRequest(Prefix("p", PROMPT), Sampler(max_tokens=40, stop=(stop,)), 11)
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    # The token that completes the stop string is kept whole, and the one before does not complete it.
    assert len(stopped.text) >= end
    assert stop not in policy.tokenizer.decode(stopped.token_ids[:-1])
    await policy.close()


async def test_why_a_rollout_ended_is_told(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True, batch_size=256)
    asked = [SampleRequest(Prefix("p", PROMPT), Sampler(max_tokens=60), seed) for seed in range(150)]
    rollouts = await sample_all(policy, asked)
    reasons = {r.finish_reason for r in rollouts}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    for rollout in rollouts:
        ended = rollout.token_ids[-1] == 0
        assert (rollout.finish_reason is FinishReason.STOP) == ended
        assert ended or len(rollout.token_ids) == 60
        assert 0 not in rollout.token_ids[:-1]
        assert "<|end|>" not in rollout.text
    await policy.close()


async def test_a_completion_ends_at_the_context_and_says_so(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    prefix = Prefix("p", tuple(range(1, 94)))  # 93 of 96 tokens: room for 3.
    rollout = await policy.sample(SampleRequest(prefix, Sampler(max_tokens=50), 2))
    assert len(rollout.token_ids) == 3
    assert rollout.finish_reason is FinishReason.LENGTH
    await policy.close()


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (SampleRequest(Prefix("prob-9", tuple(range(1, 97))), Sampler(), 1), "prob-9.*96 tokens do not fit"),
        (SampleRequest(Prefix("prob-9", ()), Sampler(), 1), "prob-9.*no token"),
        (SampleRequest(Prefix("prob-9", (1, 300)), Sampler(), 1), "prob-9.*id 300"),
        (SampleRequest(Prefix("prob-9", (1,)), Sampler(), 2**63), "prob-9.*seed"),
        (
            SampleRequest(Prefix("prob-9", (1,)), Sampler(top_p=0, temperature=-1), 1),
            "prob-9.*temperature.*top_p",
        ),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    tiny_checkpoint: Path, request_: SampleRequest, says: str
) -> None:
    policy = load_transformers(tiny_checkpoint)
    with pytest.raises(EngineError, match=says):
        await policy.sample(request_)
    await policy.close()


async def test_a_prefix_of_one_token_needs_no_prefill(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    asked = [SampleRequest(Prefix("p", (5,)), Sampler(max_tokens=5), 1, 0, True)]
    asked.append(dataclasses.replace(asked[0], prefix=Prefix("q", PROMPT)))
    together = await sample_all(policy, asked)
    assert policy.decoder.prefilled_tokens == len(PROMPT) - 1
    assert list(together[0].token_ids) == reference(tiny_checkpoint, asked[0])[0]
    await policy.close()


async def test_cancelling_frees_the_place(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, batch_size=2)
    long = Sampler(max_tokens=66)
    tasks = [
        asyncio.create_task(policy.sample(SampleRequest(Prefix("p", PROMPT), long, seed)))
        for seed in range(40)
    ]
    await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    done = await policy.sample(SampleRequest(Prefix("q", PROMPT), Sampler(max_tokens=3), 1))
    assert done.problem_id == "q"
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(e, asyncio.CancelledError) for e in ended)
    assert policy.decoder.decoded_tokens < 40 * 66
    await policy.close()


async def test_closing_ends_the_thread_and_refuses_what_waits(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint, batch_size=1)
    tasks = [
        asyncio.create_task(policy.sample(SampleRequest(Prefix("p", PROMPT), Sampler(max_tokens=66), s)))
        for s in range(20)
    ]
    await asyncio.sleep(0.01)
    await policy.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(e, EngineError) for e in ended)
    assert not [t for t in threading.enumerate() if t.name == "decode tiny-llama"]
    with pytest.raises(EngineError, match="closed"):
        await policy.sample(SampleRequest(Prefix("p", PROMPT), Sampler(), 1))


def broken(policy: TransformersPolicy, fault: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``fault`` with the number of rows before every decode step."""
    step = Decoder.step

    def failing(self: Decoder) -> object:
        fault(len(self.rows))
        return step(self)

    monkeypatch.setattr(Decoder, "step", failing)


async def test_a_batch_that_fails_is_sampled_again_from_the_same_seeds(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(Sampler(max_tokens=6), problems=1)
    policy = load_transformers(tiny_checkpoint, exact=True)
    want = await sample_all(policy, asked)
    steps = 0

    def out_of_memory(rows: int) -> None:
        nonlocal steps
        steps += 1
        if rows > 5 or steps == 9:
            raise RuntimeError("out of memory")

    broken(policy, out_of_memory, monkeypatch)
    assert await sample_all(policy, asked) == want
    await policy.close()


async def test_a_request_that_fails_alone_is_an_error_and_never_wrong(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    step = Decoder.step

    def poisoned(self: Decoder) -> object:
        if any(row.request.prefix.problem_id == "poison" for row in self.rows):
            raise RuntimeError("this prompt kills the kernel")
        return step(self)

    monkeypatch.setattr(Decoder, "step", poisoned)
    asked = requests(Sampler(max_tokens=4), problems=1)
    asked.insert(3, dataclasses.replace(asked[0], prefix=Prefix("poison", (1, 2))))
    rollouts = await sample_all(policy, asked)
    assert rollouts[3].outcome is Outcome.ERROR
    assert rollouts[3].finish_reason is FinishReason.ABORT
    assert "kills the kernel" in (rollouts[3].error or "")
    assert all(r.outcome is None and len(r.token_ids) > 0 for i, r in enumerate(rollouts) if i != 3)
    await policy.close()


async def test_a_dead_engine_is_an_exception(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_transformers(tiny_checkpoint)

    def dead(rows: int) -> None:
        raise RuntimeError("device lost")

    broken(policy, dead, monkeypatch)
    ended = await asyncio.gather(
        *(policy.sample(r) for r in requests(Sampler(max_tokens=4))), return_exceptions=True
    )
    assert sum(isinstance(e, EngineError) and "device lost" in str(e) for e in ended) > 50
    await policy.close()


async def test_logits_that_are_not_finite_raise(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(tiny_checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"nan.*differ|differ.*nan"):
        load_transformers(folder)


async def test_a_row_whose_logits_become_infinite_raises_and_the_others_go_on(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_transformers(tiny_checkpoint, exact=True)
    next_logits = CausalModel.next_logits

    def overflowing(self: CausalModel, ids: torch.Tensor, cache: object) -> torch.Tensor:
        logits = next_logits(self, ids, cache)  # type: ignore[arg-type]
        logits[0, 7] = float("inf")
        return logits

    monkeypatch.setattr(CausalModel, "next_logits", overflowing)
    asked = [SampleRequest(Prefix(f"p{i}", PROMPT), Sampler(max_tokens=1), i) for i in range(3)]
    ended = await asyncio.gather(*(policy.sample(r) for r in asked), return_exceptions=True)
    assert isinstance(ended[0], EngineError)
    assert "p0" in str(ended[0])
    assert all(isinstance(e, Rollout) for e in ended[1:])
    await policy.close()


async def test_the_bundled_generation_config_changes_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    plain = tmp_path / "tiny-llama"
    shutil.copytree(tiny_checkpoint, plain)
    (plain / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    asked = requests(Sampler(max_tokens=8), problems=1)
    rows: list[list[Rollout]] = []
    for folder in (tiny_checkpoint, plain):
        policy = load_transformers(folder, exact=True)
        rows.append(await sample_all(policy, asked))
        await policy.close()
    assert rows[0] == rows[1]


def test_a_row_never_names_a_path_of_the_machine(tiny_checkpoint: Path) -> None:
    policy = load_transformers(tiny_checkpoint)
    assert policy.info.name == "tiny-llama"
    assert len(policy.info.revision) == 16
    assert policy.info.engine == "transformers"


def test_checkpoints_that_cannot_be_used_are_refused_by_name(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load_transformers(tmp_path / "missing")
    pickled = tmp_path / "pickled"
    shutil.copytree(tiny_checkpoint, pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled: the folder has no \*\.safetensors"):
        load_transformers(pickled)
    with pytest.raises(ModelError, match="exact=True computes in float64"):
        load_transformers(tiny_checkpoint, exact=True, dtype="float32")
    with pytest.raises(ModelError, match="no dtype"):
        load_transformers(tiny_checkpoint, dtype="load")


async def test_tokens_computed_again_for_want_of_room_are_told(tiny_checkpoint: Path) -> None:
    asked = requests(Sampler(max_tokens=4), problems=6, solutions=1, draws=2)
    roomy = load_transformers(tiny_checkpoint, exact=True, batch_size=4)
    drawn, possible = await twice(roomy, asked)
    assert possible == 1
    tight = load_transformers(tiny_checkpoint, exact=True, batch_size=4)
    tight.decoder._store.max_bytes = roomy.decoder._store.num_bytes // 3  # room for two problems of six
    again, possible = await twice(tight, asked)
    assert again == drawn
    assert possible is not None
    assert 0.3 < possible < 0.95
    assert tight.decoder.prefilled_tokens - tight.decoder.prefilled_again == roomy.decoder.prefilled_tokens
    await roomy.close()
    await tight.close()


async def twice(policy: Policy, asked: list[SampleRequest]) -> tuple[list[Rollout], float | None]:
    """The rollouts of a second asking, and the share of possible hits over both."""
    watched = MeteredPolicy.watching(policy, Meter())
    await sample_all(watched, asked)
    return await sample_all(watched, asked), watched.hits_of_possible()
