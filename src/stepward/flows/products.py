"""Products of a dataset beside its step labels: preference pairs, per-step credit, critical steps, rationales.

Everything is read from the stored solutions and rollouts, problem by problem; only credit from log-probabilities asks
a policy. One JSON line a pair or a solution; what is not known is null, never 0.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.labeling import advantages
from stepward.labeling.preferences import StepPair, critical_pairs, sibling_pairs, step_dpo
from stepward.labeling.rationales import with_rationales
from stepward.labeling.row_trees import RowTree, tree_of
from stepward.labeling.signatures import expressions
from stepward.prm.dataset.manifest import Manifest
from stepward.prm.dataset.schema import rollout_of, rows_of, solution_of, solutions_table
from stepward.prm.dataset.store import Dataset, ShardStore
from stepward.prm.errors import ConfigError
from stepward.prm.policy import Policy
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import LabeledSolution, Outcome, Prefix, Rollout

Row = dict[str, Any]
Credit = list[list[float | None]]
"""For each solution of a problem one number a step."""

_REWARD = {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0}


@dataclass(frozen=True, slots=True)
class Filters:
    """Which pairs are kept.

    Attributes:
        min_gap: Least difference of values, exclusive.
        min_edit: Least number of characters that two steps do not share.
        min_leaves: Least graded ends below either step.
        doubt_below: P(right) below which a step of a failed solution is doubted (``cso``).
    """

    min_gap: float = 0.0
    min_edit: int = 0
    min_leaves: int = 1
    doubt_below: float = 0.5


@dataclass(frozen=True, slots=True)
class ProblemRows:
    """One problem's stored rows."""

    solutions: list[LabeledSolution]
    rollouts: list[tuple[str, Rollout]]
    step_format: StepFormat

    def tree(self) -> RowTree:
        """The tree of solutions and rollouts."""
        return tree_of(self.solutions, self.rollouts, self.step_format)


# --- pairs ------------------------------------------------------------------------------------------------


def _siblings(rows: ProblemRows, filters: Filters, *, weigh_by_gap: bool) -> Iterator[Row]:
    grown = rows.tree()
    pairs = sibling_pairs(
        grown.tree, margin=filters.min_gap, min_leaves=filters.min_leaves, weigh_by_gap=weigh_by_gap,
        texts=grown.texts, min_edit=filters.min_edit,
    )  # fmt: skip
    return (_pair_row(rows, grown, p) for p in pairs)


def _certain(rows: ProblemRows, filters: Filters) -> Iterator[Row]:
    grown = rows.tree()
    return (_pair_row(rows, grown, p) for p in step_dpo(grown.tree) if _enough(p, filters))


def _critical(rows: ProblemRows, filters: Filters) -> Iterator[Row]:
    grown = rows.tree()
    for row, path in zip(rows.solutions, grown.paths, strict=True):
        if row.solution.outcome is not Outcome.WRONG:
            continue
        for pair in critical_pairs(grown.tree, path, _doubts(row), doubt_below=filters.doubt_below):
            if _enough(pair, filters):
                step = path.index(pair.rejected)
                yield {
                    "solution_id": row.solution.id,
                    "step": step,
                    "p_right": _doubts(row)[step],
                    **_pair_row(rows, grown, pair),
                }


def _doubts(row: LabeledSolution) -> list[float | None]:
    """P(step is right): the reward model's score, else 1 - P(first error)."""
    return [
        x.hint if x.hint is not None else None if x.p_first_error is None else 1.0 - x.p_first_error
        for x in row.labels
    ]


def _enough(pair: StepPair, filters: Filters) -> bool:
    leaves = min(pair.chosen_leaves, pair.rejected_leaves)
    return leaves >= filters.min_leaves and pair.gap > filters.min_gap


def _pair_row(rows: ProblemRows, grown: RowTree, pair: StepPair) -> Row:
    problem = rows.solutions[0].problem
    before = [grown.texts[n] for n in grown.tree.path(pair.parent)[1:]]
    return {
        "problem_id": problem.id,
        "prompt": "".join(text + "\n\n" for text in (problem.text, *before)),
        "chosen": grown.texts[pair.chosen],
        "rejected": grown.texts[pair.rejected],
        "chosen_value": pair.chosen_value,
        "rejected_value": pair.rejected_value,
        "chosen_leaves": pair.chosen_leaves,
        "rejected_leaves": pair.rejected_leaves,
        "weight": pair.weight,
    }


PAIRS: dict[str, Callable[[ProblemRows, Filters], Iterator[Row]]] = {
    "siblings": partial(_siblings, weigh_by_gap=False),
    "step_apo": partial(_siblings, weigh_by_gap=True),
    "step_dpo": _certain,
    "cso": _critical,
}


# --- credit -----------------------------------------------------------------------------------------------


def _by_node(rows: ProblemRows, of: Callable[..., Any]) -> Credit:
    grown = rows.tree()
    values = of(grown.tree)
    return [[_known(values[n]) for n in path] for path in grown.paths]


def _tree_grpo(rows: ProblemRows) -> Credit:
    """Every solution with its rollouts is a tree; its own leaf's advantage goes to all its steps."""
    trees: list[list[float]] = []
    for row in rows.solutions:
        own = [(i, r) for i, r in rows.rollouts if i == row.solution.id]
        ends = [_REWARD[o] for _, o in tree_of([row], own, rows.step_format).episodes if o in _REWARD]
        trees.append(ends)
    found = advantages.tree_grpo(trees)
    return [
        _even(row, float(a[0]) if row.solution.outcome in _REWARD and len(a) else None)
        for row, a in zip(rows.solutions, found, strict=True)
    ]


def _gigpo(rows: ProblemRows) -> Credit:
    grown = rows.tree()
    kept = [(path, _REWARD[o]) for path, o in grown.episodes if o in _REWARD]
    state = grown.tree.parent
    episodes = [[(int(state[n]), reward if n == path[-1] else 0.0) for n in path] for path, reward in kept]
    return _of_solutions(rows, grown, kept, advantages.gigpo(episodes) if kept else [])


def _rtmc(rows: ProblemRows) -> Credit:
    """States and actions by the expressions in them."""
    grown = rows.tree()
    tokenizer = ByteTokenizer()
    sign = expressions(tokenizer)
    kept = [(path, _REWARD[o]) for path, o in grown.episodes if o in _REWARD]
    known: dict[int, str] = {}

    def state(node: int) -> str:
        if node not in known:
            texts = "\n".join(grown.texts[n] for n in grown.tree.path(node)[1:])
            known[node] = sign(tokenizer.encode(texts))
        return known[node]

    episodes = [
        ([(state(int(grown.tree.parent[n])), sign(tokenizer.encode(grown.texts[n]))) for n in path], reward)
        for path, reward in kept
    ]
    return _of_solutions(rows, grown, kept, advantages.rtmc(episodes))


def _of_solutions(
    rows: ProblemRows, grown: RowTree, kept: Sequence[tuple[list[int], float]], found: Sequence[Any]
) -> Credit:
    """The credit of the solutions' own episodes; a solution without a verdict has none."""
    by_path = {tuple(path): [float(x) for x in credit] for (path, _), credit in zip(kept, found, strict=True)}
    return [
        list(by_path.get(tuple(path), []) or [None] * len(path))
        if row.solution.outcome in _REWARD
        else [None] * len(path)
        for row, path in zip(rows.solutions, grown.paths, strict=True)
    ]


def _pav(rows: ProblemRows) -> Credit:
    credit: Credit = []
    for row in rows.solutions:
        values = [math.nan if e.value is None else e.value for e in row.prefixes]
        credit.append([_known(x) for x in advantages.prover_advantage(values)])
    return credit


def _baseline(rows: ProblemRows, *, quantile: float) -> Credit:
    graded = [
        _REWARD[r.solution.outcome]
        for r in rows.solutions
        if r.solution.outcome is not None and r.solution.outcome in _REWARD
    ]
    found = iter(advantages.group_baseline(graded, quantile=quantile).tolist() if graded else [])
    return [_even(r, next(found) if r.solution.outcome in _REWARD else None) for r in rows.solutions]


def _even(row: LabeledSolution, value: float | None) -> list[float | None]:
    return [value] * len(row.labels)


def _known(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


CREDIT: dict[str, Callable[[ProblemRows], Credit]] = {
    "tree_rpo": lambda rows: _by_node(rows, advantages.tree_rpo),
    "tree_rl": lambda rows: _by_node(rows, advantages.tree_rl),
    "tree_grpo": _tree_grpo,
    "gigpo": _gigpo,
    "rtmc": _rtmc,
    "pav": _pav,
    "median": partial(_baseline, quantile=0.5),
    "quantile": partial(_baseline, quantile=0.4),
}


# --- credit from log-probabilities ------------------------------------------------------------------------


async def _information_gain(rows: ProblemRows, policy: Policy, _: Policy, answer: str) -> Credit:
    """Marginal information gain: log p(gold answer | steps so far), credited where it reaches a new high."""
    credit: Credit = []
    for row in rows.solutions:
        if not row.problem.answers:
            credit.append(_even(row, None))
            continue
        said = policy.tokenizer.encode(answer.format(answer=row.problem.answers[0]))
        prefixes = _prefixes(row, policy)
        scores = await asyncio.gather(*(policy.loglikelihood(p, said) for p in prefixes))
        credit.append([float(x) for x in advantages.information_gain([sum(s) for s in scores])])
    return credit


async def _progress(rows: ProblemRows, policy: Policy, reference: Policy, _: str) -> Credit:
    """Implicit credit: beta log pi / pi_ref over the tokens of each step."""
    credit: Credit = []
    for row in rows.solutions:
        both: list[list[list[float]]] = []
        for model in (policy, reference):
            prefixes = _prefixes(row, model)
            ids = prefixes[-1].solution_ids
            logprobs = await model.loglikelihood(replace(prefixes[0], solution_ids=()), ids)
            ends = [len(p.solution_ids) for p in prefixes]
            both.append([list(logprobs[a:b]) for a, b in pairwise(ends)])
        if [len(s) for s in both[0]] != [len(s) for s in both[1]]:
            raise ConfigError(["progress_advantage: policy and reference cut the steps into other tokens"])
        credit.append([float(x) for x in advantages.progress_advantage(both[0], both[1])])
    return credit


def _prefixes(row: LabeledSolution, policy: Policy) -> list[Prefix]:
    """Prefix 0 to T in a policy's own ids: those of the row where its tokenizer is the row's, else encoded."""
    template = prompt_template(None, folder_of(policy))
    prompt = template.render(row.problem, policy.tokenizer).ids
    same = policy.tokenizer.hash == row.tokenizer_hash and all(s.token_ids for s in row.solution.steps)
    prefixes = [Prefix(row.problem.id, prompt)]
    ids: tuple[int, ...] = ()
    for t, step in enumerate(row.solution.steps):
        ids += step.token_ids if same else policy.tokenizer.encode(step.text + "\n")
        prefixes.append(Prefix(row.problem.id, prompt, ids, t + 1))
    return prefixes


FROM_LOGPROBS = {"information_gain": _information_gain, "progress_advantage": _progress}

PRODUCTS = (*PAIRS, *CREDIT, *FROM_LOGPROBS)


# --- a dataset --------------------------------------------------------------------------------------------


def by_problem(dataset: Dataset) -> Iterator[ProblemRows]:
    """The dataset problem by problem; a shard is in memory at a time."""
    step_format = StepFormat(**dataset.manifest.step_format) if dataset.manifest.step_format else StepFormat()
    for index in range(len(dataset.manifest.shards)):
        rollouts: dict[str, list[tuple[str, Rollout]]] = {}
        for solution_id, rollout in map(rollout_of, rows_of(dataset.shard("rollouts", index))):
            rollouts.setdefault(rollout.problem_id, []).append((solution_id, rollout))
        rows = map(solution_of, rows_of(dataset.shard("solutions", index)))
        for problem_id, group in groupby(rows, key=lambda r: r.problem.id):
            yield ProblemRows(list(group), rollouts.get(problem_id, []), step_format)


def products(
    name: str,
    dataset: Dataset,
    *,
    filters: Filters | None = None,
    policy: str | None = None,
    reference: str | None = None,
    answer: str = "The answer is {answer}.",
) -> Iterator[Row]:
    """Rows of a product.

    Args:
        name: One of ``PRODUCTS``.
        dataset: The dataset.
        filters: For pairs.
        policy: For ``information_gain`` and ``progress_advantage``.
        reference: The reference policy of ``progress_advantage``.
        answer: How the gold answer is said, for ``information_gain``.

    Raises:
        ConfigError: No such product, or a policy that it needs is not named.
    """
    if name not in PRODUCTS:
        raise ConfigError([f"product: {name!r} is unknown; one of {', '.join(PRODUCTS)}"])
    if name in PAIRS:
        for rows in by_problem(dataset):
            yield from PAIRS[name](rows, filters or Filters())
        return
    if name in CREDIT:
        for rows in by_problem(dataset):
            yield from _credit_rows(name, rows, CREDIT[name](rows))
        return
    if policy is None or (name == "progress_advantage" and reference is None):
        needed = "a policy and a reference" if name == "progress_advantage" else "a policy"
        raise ConfigError([f"product {name!r} reads log-probabilities: name {needed}"])
    asked = load_policy_for(policy)
    against = asked if reference in (None, policy) else load_policy_for(str(reference))
    with asyncio.Runner() as runner:
        for rows in by_problem(dataset):
            yield from _credit_rows(name, rows, runner.run(FROM_LOGPROBS[name](rows, asked, against, answer)))
        runner.run(asked.close())


def _credit_rows(name: str, rows: ProblemRows, credit: Credit) -> Iterator[Row]:
    for row, values in zip(rows.solutions, credit, strict=True):
        yield {
            "problem_id": row.problem.id,
            "solution_id": row.solution.id,
            "method": name,
            "steps": [s.text for s in row.solution.steps],
            "credit": values,
            "outcome": row.solution.outcome,
        }


def write_rationales(source: Dataset, folder: Path) -> Manifest:
    """A new dataset whose steps have rationales from their evidence; the one it is made from stays as it is."""
    manifest = replace(
        source.manifest,
        config={"rationales": "from tool evidence and counts", "labelled_with": source.manifest.config},
        derived_from={"fingerprint": source.manifest.fingerprint, "run_id": source.manifest.run_id},
        totals=None,
        shards=(),
        fingerprint=None,
    )
    with ShardStore.create_or_resume(folder, manifest) as store:
        for index in range(len(source.manifest.shards)):
            rows = map(solution_of, rows_of(source.shard("solutions", index)))
            store.write_tables(
                index, solutions_table(map(with_rationales, rows)), source.shard("rollouts", index)
            )
        return store.seal()
