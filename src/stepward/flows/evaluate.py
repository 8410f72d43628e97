"""``stepward evaluate``: a reward model on solutions with known first errors, and on stored samples."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.flows.config import EvaluateConfig
from stepward.prm.errors import InputError
from stepward.prm.evaluation.aggregation import AGGREGATIONS, LearnedAggregation, learn_aggregation
from stepward.prm.evaluation.baselines import (
    fit_position,
    labels_up_to_first_error,
    logprob_scores,
    sibling_scores,
)
from stepward.prm.evaluation.best_of_n import BestOfNResult, SamplePool, classes_by_test, evaluate_pools
from stepward.prm.evaluation.intervals import Bootstrap, Measure
from stepward.prm.evaluation.items import Item, Scores
from stepward.prm.evaluation.processbench import difference, tune_threshold
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.evaluation.results import Results, score_run
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.evaluation.thresholds import Threshold
from stepward.prm.models.load import load
from stepward.prm.policy import Policy, RewardModel
from stepward.prm.prompts import PromptTemplate
from stepward.prm.steps import StepFormat
from stepward.prm.types import Prefix, Problem, TokenIds, VerdictKind
from stepward.verifiers.answer import equivalent

PASS_AT = (1, 2, 4, 8, 16, 32, 64)


def run_evaluation(config: EvaluateConfig) -> Results:
    """Score, choose the threshold on the other split, report, and write the results folder.

    The reward model's run comes first, then the baselines'; ``differences`` holds its F1 minus each baseline's.

    Raises:
        InputError: A file that cannot be read, or splits that share problems.
        ModelError: The reward model cannot be loaded or gives scores that are not finite.
    """
    prm = load(config.prm)
    bootstrap = Bootstrap(num_resamples=config.bootstrap, seed=config.seed)
    items = [item for path in config.processbench for item in read_items(path)]
    tuning = read_items(config.threshold_from) if config.threshold_from is not None else []
    scorers: dict[str, tuple[list[Scores], list[Scores]]] = {}
    if items:
        scorers[prm.name] = (_score(prm, tuning), _score(prm, items))
        if config.baseline_policy is not None:
            scorers |= baselines(config.baseline_policy, prm.description.step_format, tuning, items)
    runs = [
        score_run(items, scores, _threshold(config, tuning, tuned), scorer=name, bootstrap=bootstrap)
        for name, (tuned, scores) in scorers.items()
    ]
    differences = {
        f"{prm.name} - {run.result.scorer}": difference(
            items, runs[0].predictions, run.predictions, bootstrap=bootstrap
        )
        for run in runs[1:]
    }
    results = Results(
        title=f"Evaluation of {prm.name}",
        items=tuple(items),
        runs=tuple(runs),
        differences=differences,
        best_of_n=_best_of_n(config, prm, bootstrap) if config.samples is not None else (),
        manifest={
            "prm": prm.name,
            "weights": prm.description.training.get("dataset_fingerprint"),
            "processbench": [path.name for path in config.processbench],
            "threshold_from": config.threshold_from.name if config.threshold_from is not None else None,
            "samples": config.samples.name if config.samples is not None else None,
            "aggregation_from": config.aggregation_from.name if config.aggregation_from is not None else None,
            "seed": config.seed,
            "num_resamples": config.bootstrap,
        },
    )
    write_results(config.out, results)
    return results


def best_baseline(results: Results) -> tuple[str, Measure] | None:
    """The baseline of highest F1 and how far the reward model is above it, or None without baselines."""
    best = max(results.runs[1:], key=lambda run: run.result.macro.f1.value or 0.0, default=None)
    if best is None:
        return None
    name = best.result.scorer
    return name, results.differences[f"{results.runs[0].result.scorer} - {name}"]["macro"]


def _threshold(config: EvaluateConfig, tuning: Sequence[Item], scores: Sequence[Scores]) -> Threshold:
    if config.threshold is not None:
        return Threshold(config.threshold, "given by hand")
    return tune_threshold(tuning, scores, source=Path(str(config.threshold_from)).name)


def _score(prm: RewardModel, items: Sequence[Item]) -> list[Scores]:
    return (
        list(prm.score([_problem(item) for item in items], [item.steps for item in items])) if items else []
    )


def _problem(item: Item) -> Problem:
    return Problem(item.id, item.problem)


def baselines(
    policy_name: str, step_format: StepFormat, tuning: Sequence[Item], items: Sequence[Item]
) -> dict[str, tuple[list[Scores], list[Scores]]]:
    """What a scorer must beat: position and length, the policy's mean log-probability, the sibling pass rate.

    The logistic model is fitted on the tuning split's own labels, which favours it.
    """
    lengths = [[len(s) for s in item.steps] for item in tuning]
    position = fit_position(lengths, [labels_up_to_first_error(len(i.steps), i.first_error) for i in tuning])
    logprobs = asyncio.run(_logprobs(policy_name, step_format, [*tuning, *items]))

    def positions(part: Sequence[Item]) -> list[Scores]:
        return [position.score([len(s) for s in item.steps]) for item in part]

    return {
        "position and length": (positions(tuning), positions(items)),
        "policy log-probability": (logprobs[: len(tuning)], logprobs[len(tuning) :]),
        "sibling pass rate": (_siblings(tuning), _siblings(items)),
    }


async def _logprobs(policy_name: str, step_format: StepFormat, items: Sequence[Item]) -> list[Scores]:
    policy = load_policy_for(policy_name)
    template = prompt_template(None, folder_of(policy))
    try:
        return list(
            await asyncio.gather(*(_mean_logprobs(policy, template, step_format, item) for item in items))
        )
    finally:
        await policy.close()


async def _mean_logprobs(
    policy: Policy, template: PromptTemplate, step_format: StepFormat, item: Item
) -> Scores:
    """Scores from the mean log-probability of each step's tokens under the policy.

    The last step is read without a separator, which no policy writes there and which would look like an error.
    """
    prompt = template.render(_problem(item), policy.tokenizer).ids
    steps = step_format.encode_steps(item.steps, policy.tokenizer)
    steps[-1] = policy.tokenizer.encode(item.steps[-1])
    continuation: TokenIds = tuple(i for ids in steps for i in ids)
    values = await policy.loglikelihood(Prefix(item.id, prompt), continuation)
    position, per_step = 0, []
    for ids in steps:
        per_step.append(values[position : position + len(ids)])
        position += len(ids)
    return logprob_scores(per_step)


def _siblings(items: Sequence[Item]) -> list[Scores]:
    """Each solution's steps all get the pass rate of the problem's other solutions."""
    by_problem: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_problem[item.problem].append(item)
    scores: list[Scores] = []
    for item in items:
        others = [o for o in by_problem[item.problem] if o.id != item.id]
        scores.append(
            sibling_scores(len(item.steps), sum(bool(o.final_answer_correct) for o in others), len(others))
        )
    return scores


def _best_of_n(
    config: EvaluateConfig, prm: RewardModel, bootstrap: Bootstrap
) -> tuple[BestOfNResult, BestOfNResult]:
    """Best-of-N over a file of samples (ProcessBench's format with problem_id, final_answer, outcome, tokens).

    Twice: against the number of samples, and against the tokens that so many samples cost on average.
    """
    pools = sample_pools(Path(str(config.samples)), prm)
    most = max(len(pool.classes) for pool in pools)
    numbers = [n for n in PASS_AT if n <= most]
    tokens = [t for pool in pools for t in pool.tokens]
    aggregations = dict(AGGREGATIONS)
    if config.aggregation_from is not None:
        aggregations["learned"] = learned_aggregation(config.aggregation_from, prm)

    def curves(cuts: Sequence[int], cut_by: str) -> BestOfNResult:
        return evaluate_pools(
            pools,
            cuts,
            cut_by=cut_by,
            aggregations=aggregations,
            num_orders=config.num_orders,
            seed=config.seed,
            bootstrap=bootstrap,
        )

    # A budget holds what its samples cost with a reward model's reading: generated and scored.
    budgets = [max(1, round(2 * n * sum(tokens) / len(tokens))) for n in numbers]
    return curves(numbers, "samples"), curves(list(dict.fromkeys(budgets)), "tokens")


def learned_aggregation(path: Path, prm: RewardModel) -> LearnedAggregation:
    """The aggregation fitted on samples of other problems than those that are reported.

    Raises:
        EmptySideError: All of them are right, or all wrong.
    """
    rows = [
        (pool.problem_id, scores, right)
        for pool in sample_pools(path, prm)
        for scores, right in zip(pool.scores, pool.right, strict=True)
        if right is not None
    ]
    return learn_aggregation([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def sample_pools(path: Path, prm: RewardModel) -> list[SamplePool]:
    """The samples of each problem, scored.

    Raises:
        InputError: A row lacks a field that best-of-N needs.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    needed = ("problem_id", "problem", "steps", "final_answer", "outcome", "tokens")
    for number, row in enumerate(rows, 1):
        if missing := [name for name in needed if name not in row]:
            raise InputError(
                f"{path}:{number}: a sample needs {', '.join(needed)}; missing: {', '.join(missing)}"
            )
    scores = prm.score([Problem(r["problem_id"], r["problem"]) for r in rows], [r["steps"] for r in rows])
    by_problem: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_problem[row["problem_id"]].append(i)
    pools: list[SamplePool] = []
    for problem_id, members in by_problem.items():
        outcomes = [rows[i]["outcome"] for i in members]
        pools.append(
            SamplePool(
                problem_id,
                classes_by_test([rows[i]["final_answer"] for i in members], _same_answer),
                tuple(_right(outcome) for outcome in outcomes),
                tuple(rows[i]["tokens"] for i in members),
                tuple(scores[i] for i in members),
            )
        )
    return pools


def _right(outcome: str) -> bool | None:
    """A truncated or missing answer is the policy's own doing and not right; a fault of ours is unknown."""
    return {"right": True, "wrong": False, "truncated": False, "no_answer": False}.get(outcome)


def _same_answer(a: str, b: str) -> bool:
    return a.strip() == b.strip() or equivalent(gold=a, answer=b).kind is VerdictKind.SUPPORTED
