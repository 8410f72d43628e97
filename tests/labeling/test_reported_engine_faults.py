"""Public fault reports on rollout engines, each with its right value. P081 stands in test_engine_check and
tests/flows/test_reported_run_faults too, P087 in test_policies_vllm and tests/prm/test_prompts, P091's outcomes in
tests/verifiers/test_answer_grading."""

import asyncio
import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import SolutionEvidence
from stepward.labeling.policies.openai import load_openai
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.policies.transformers import load_transformers
from stepward.labeling.policies.vllm_server import completion_body, load_vllm_server
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.tokenizer import tokenizer_from_json
from stepward.prm.types import Allocation, Counts, FinishReason, Outcome, Prefix, Problem, Sampler
from stepward.verifiers.answer import Grader


def module(name: str) -> ModuleType:
    full = f"stepward_tests_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


h = module("annotating")


def drawn(problems: list[Problem]) -> dict[tuple[str, str, int], tuple[int, str]]:
    """Seed and text of every draw of a labelling of these problems, all in flight at once."""
    echo = scripted_policy(lambda problem, so_far, seed: f"{seed}\nThe answer is 6.")
    plan = h.labelling(echo, allocation=FixedK(4), num_solutions=4)
    results = [h.run(echo, plan, p) for p in problems]
    return {
        (r.problem_id, f"{key}@{r.num_steps}", r.index): (r.seed, r.text)
        for result in results
        for key, r in result.rollouts
    }


def test_p062_seeds_come_from_the_unit_of_work_whatever_the_order() -> None:
    p1, p2 = Problem("p1", "What is 6?", ("6",)), Problem("p2", "What is 6?", ("6",))
    found = drawn([p1, p2])
    at_root = [v for (_, place, _), v in found.items() if place.endswith("@0")]
    assert len({seed for seed, _ in at_root}) == 8
    assert len({text for _, text in at_root}) == 8
    assert len({seed for seed, _ in found.values()}) == len(found), "no seed occurs twice anywhere"
    assert drawn([p2, p1]) == found, "another order"
    assert drawn([p1]) | drawn([p2]) == found, "two workers, a problem each"
    # The seeds themselves: run seed 42, problem, step 0, rollout.
    seeds = {derive_seed(42, p, 0, i) for p in ("p1", "p2") for i in range(4)}
    assert len(seeds) == 8
    assert all(0 <= s < 1 << 63 for s in seeds)


def test_p061_two_workers_with_the_same_prompt_and_no_seed_of_the_users_draw_differently() -> None:
    one, other = (drawn([Problem(p, "What is 6?", ("6",))]) for p in ("shard-a", "shard-b"))
    assert not {seed for seed, _ in one.values()} & {seed for seed, _ in other.values()}
    assert not {text for _, text in one.values()} & {text for _, text in other.values()}


def test_p091_draws_cut_by_length_leave_the_denominator_and_are_counted() -> None:
    # 3 right and 3 wrong ended by themselves, 2 were cut: soft 3 / 6, never 3 / 8. A quarter cut is over the tenth
    # from which a prefix gets no hard label here: the report's own rule, any right, would say 1.
    rolled = (Outcome.RIGHT,) * 3 + (Outcome.WRONG,) * 3 + (Outcome.TRUNCATED,) * 2
    evidence = SolutionEvidence(2, (5, 5), Outcome.RIGHT, ((), rolled, ()))
    counts = [Counts(), Counts(right=3, wrong=3, truncated=2, n_unique=8), Counts(right=1, n_unique=1)]
    rule = make_estimator("math_shepherd_soft", allocation=Allocation.FIXED_K, truncated_as="exclude")
    (found,) = rule.estimate([evidence], [counts])
    assert found.estimates[1].value == 0.5
    assert found.estimates[1].counts == counts[1]
    # All eight cut: nothing is known.
    all_cut = (Outcome.TRUNCATED,) * 8
    (found,) = rule.estimate(
        [SolutionEvidence(2, (5, 5), Outcome.RIGHT, ((), all_cut, ()))],
        [[Counts(), Counts(truncated=8, n_unique=8), counts[2]]],
    )
    assert found.labels[0].label is None


@pytest.mark.parametrize("engine", ["vllm_server", "openai"])
async def test_p070_a_stop_string_ends_the_rollout_for_stop_and_stands_in_it_once(
    tiny_tokenizer: Path, engine: str
) -> None:
    # The stand-in ignores stop strings altogether, as a path on which the option is inert does.
    server = module("stand_in_server").StandIn(num_tokens=24)
    url = await server.start()
    load: Any = load_vllm_server if engine == "vllm_server" else load_openai
    options: dict[str, Any] = {"tokenizer": tiny_tokenizer} if engine == "vllm_server" else {}
    policy = await asyncio.to_thread(load, url, **options)
    prompt = Prefix("p", tuple(policy.tokenizer.encode("What is 6?")))
    whole = await policy.sample(SampleRequest(prompt, Sampler(max_tokens=40), 7))
    at = next(i for i in range(3, len(whole.text)) if whole.text[i].isascii() and whole.text[i].isprintable())
    stop = whole.text[at]
    stopped = await policy.sample(SampleRequest(prompt, Sampler(max_tokens=40, stop=(stop,)), 7))
    await policy.close()
    await server.stop()
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text == whole.text[: whole.text.find(stop) + 1]
    assert stopped.text.count(stop) == 1


async def test_p071_answers_come_from_the_ids_where_the_servers_text_lost_its_tail(
    tiny_tokenizer: Path,
) -> None:
    from stepward.prm.tokenizer import load_tokenizer

    ids = load_tokenizer(tiny_tokenizer).encode("so the answer is \\boxed{42}")

    class Short(module("stand_in_server").StandIn):
        def _completed(self, body: dict[str, Any], fault: str | None) -> dict[str, Any]:
            answer = super()._completed(body, fault)
            answer["choices"][0] |= {"token_ids": list(ids), "text": "so the answer is \\boxed{4"}
            return answer

    server = Short()
    url = await server.start()
    policy = await asyncio.to_thread(load_vllm_server, url, tokenizer=tiny_tokenizer)
    rollout = await policy.sample(SampleRequest(Prefix("p", (5, 6)), Sampler(max_tokens=60), 1))
    await policy.close()
    await server.stop()
    assert rollout.text.endswith("\\boxed{42}")
    grade = await Grader().grade(Problem("p", "?", ("42",)), rollout.text, rollout.finish_reason)
    assert grade.outcome is Outcome.RIGHT


async def test_p074_a_bundled_generation_config_changes_no_token_and_every_field_is_sent(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    bundled = json.loads((tiny_checkpoint / "generation_config.json").read_text())
    assert bundled["repetition_penalty"] == 1.05
    bare = tmp_path / "bare"
    shutil.copytree(tiny_checkpoint, bare)
    (bare / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    asked = SampleRequest(Prefix("p", (20, 30, 40)), Sampler(max_tokens=12, temperature=0.9), 5)
    texts = []
    for folder in (tiny_checkpoint, bare):
        policy = load_transformers(folder, exact=True)
        texts.append((await policy.sample(asked)).token_ids)
        await policy.close()
    assert texts[0] == texts[1]
    sent = completion_body("m", asked, 96, frozenset({0}))
    fields = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    )
    assert [sent[f] for f in fields] == [0.9, 1.0, 0, 0.0, 1.0, 0.0, 0.0]


def test_p068_a_row_says_that_a_boundary_lies_inside_a_token() -> None:
    # One token holds the end of the first line, the line break and the beginning of the second.
    pieces = ["<unk>", ".\nT", *sorted(set("What is 2+?46\nTheansweris.\\boxed{}"))]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(pieces)}, merges=[], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    tokenizer = tokenizer_from_json(inner.to_str())

    class Merging:
        hash, bos_id, eos_ids = tokenizer.hash, None, frozenset[int]()
        decode, offsets = tokenizer.decode, tokenizer.offsets

        def encode(self, text: str) -> tuple[int, ...]:
            parts = text.split(".\nT")
            ids = tokenizer.encode(parts[0])
            for part in parts[1:]:
                ids = (*ids, 1, *tokenizer.encode(part))
            return ids

    said = ["2+2 is 4.\nThe answer is 6.", "2+2 is 4\nThe answer is 6."]
    policy = h.script(said, lambda so_far: "The answer is 6.")
    policy = replace(policy, tokenizer=Merging())
    plan = h.labelling(policy, allocation=FixedK(1))
    inside, apart = h.run(policy, plan, Problem("p", "What is 2+2+2?", ("6",))).solutions
    assert "boundary_in_token" in inside.marks
    assert "boundary_in_token" not in apart.marks
    assert inside.solution.steps[0].token_ids[-1] == 1, "the token stays whole, in the earlier step"
    assert [s.text for s in inside.solution.steps] == ["2+2 is 4.", "The answer is 6."]
