"""Which loss with which head and which labels: the binding of ``losses`` to batches.

An objective gives unreduced losses and, from the labels alone, the weight by which their sum over the effective
batch is divided.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from stepward.prm.errors import InputError
from stepward.prm.models.heads import BetaHead, Head
from stepward.training import losses
from stepward.training.collate import Example

PAIR_SCOPES = ("siblings", "problem")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of a batch's score positions ``[n]``, its solutions ``[b]`` and its pairs of steps ``[p]``.

    Attributes:
        target: ``[n]``, 0 where unknown.
        weight: ``[n]``, 0 where unknown.
        right: ``[n]``.
        trials: ``[n]``.
        solution_of: ``[n]``.
        outcome: ``[b]``, 0 where unknown.
        outcome_weight: ``[b]``, 0 where unknown.
        outcome_class: ``[n]`` long: 0 wrong, 1 right, 2 unfinished.
        outcome_class_weight: ``[n]``.
        last: ``[b]`` index of each solution's last score position.
        better: ``[p]`` score positions.
        worse: ``[p]`` score positions.
        pair_weight: ``[p]``.
    """

    target: Tensor
    weight: Tensor
    right: Tensor
    trials: Tensor
    solution_of: Tensor
    outcome: Tensor
    outcome_weight: Tensor
    outcome_class: Tensor
    outcome_class_weight: Tensor
    last: Tensor
    better: Tensor
    worse: Tensor
    pair_weight: Tensor

    def to(self, device: torch.device | str) -> "Labels":
        """The same labels on another device."""
        return Labels(*(getattr(self, name).to(device) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Objective:
    """A training objective.

    Attributes:
        head: The head that it is usually paired with.
        losses: (raw ``[n, outputs]``, head, labels) -> unreduced losses.
        weight: Labels -> what the sum of the losses is divided by, summed over the effective batch.
        by_problem: Whether a problem's solutions must share a batch (pairs).
        needs_outcome: Whether it learns from outcomes and not from step labels.
        allowed: Heads that it can train; empty = any with a logit.
    """

    head: str
    losses: Callable[[Tensor, Head, Labels], Tensor]
    weight: Callable[[Labels], Tensor]
    by_problem: bool = False
    needs_outcome: bool = False
    allowed: tuple[str, ...] = ()


def _step_weight(labels: Labels) -> Tensor:
    return labels.weight.sum()


def _count_weight(labels: Labels) -> Tensor:
    return (labels.weight * (labels.trials > 0)).sum()


def _ranked_solutions(labels: Labels) -> Tensor:
    """Solutions with a labelled step: each counts once in PQM's loss."""
    known = labels.solution_of[labels.weight > 0]
    return torch.tensor(float(len(known.unique())))


def _q_ranking(raw: Tensor, head: Head, labels: Labels) -> Tensor:
    known = labels.weight > 0
    return losses.q_ranking(
        head.logit(raw)[known], labels.target[known] >= 0.5, labels.solution_of[known], len(labels.outcome)
    )


def _pairwise(raw: Tensor, head: Head, labels: Labels) -> Tensor:
    logit = head.logit(raw)
    return losses.pairwise_ranking(logit[labels.better], logit[labels.worse], labels.pair_weight)


def _beta_binomial(raw: Tensor, head: Head, labels: Labels) -> Tensor:
    known = labels.trials > 0
    return losses.beta_binomial(
        # The counts are of mu, whatever the head's score is read from.
        raw[:, 0][known],
        BetaHead.concentration(raw)[known],
        labels.right[known],
        labels.trials[known],
        labels.weight[known],
    )


def _soft_minimum(raw: Tensor, head: Head, labels: Labels) -> Tensor:
    return losses.soft_minimum_outcome(
        head.probability(raw), labels.outcome, labels.solution_of, labels.outcome_weight
    )


def _implicit(raw: Tensor, head: Head, labels: Labels) -> Tensor:
    # raw is already beta * log ratio, cumulative over the solution: the outcome is read at its end.
    return losses.binary_cross_entropy(head.logit(raw)[labels.last], labels.outcome, labels.outcome_weight)


OBJECTIVES: dict[str, Objective] = {
    "bce": Objective(
        "scalar",
        lambda raw, head, y: losses.binary_cross_entropy(head.logit(raw), y.target, y.weight),
        _step_weight,
    ),
    "mse": Objective(
        "scalar",
        lambda raw, head, y: losses.mean_squared_error(head.probability(raw), y.target, y.weight),
        _step_weight,
    ),
    "pqm": Objective("scalar", _q_ranking, _ranked_solutions),
    "pairwise": Objective("scalar", _pairwise, lambda y: y.pair_weight.sum(), by_problem=True),
    "beta_binomial": Objective("beta", _beta_binomial, _count_weight, allowed=("beta",)),
    "soft_minimum": Objective("scalar", _soft_minimum, lambda y: y.outcome_weight.sum(), needs_outcome=True),
    "ensemble": Objective(
        "ensemble",
        lambda raw, head, y: losses.ensemble_cross_entropy(raw, y.target, y.weight),
        _step_weight,
        allowed=("ensemble",),
    ),
    "outcome_classes": Objective(
        "value3",
        lambda raw, head, y: losses.outcome_cross_entropy(raw, y.outcome_class, y.outcome_class_weight),
        lambda y: y.outcome_class_weight.sum(),
        needs_outcome=True,
        allowed=("value3",),
    ),
    "implicit": Objective(
        "implicit",
        _implicit,
        lambda y: y.outcome_weight.sum(),
        needs_outcome=True,
        allowed=("implicit",),
    ),
}


def make_labels(
    examples: Sequence[Example], *, pairs: bool = False, margin: float = 0.2, scope: str = "siblings"
) -> Labels:
    """Labels of a batch, in the order of ``make_batch(..., score_at=[e.places for e in examples])``.

    Args:
        examples: The batch.
        pairs: Look for pairs of steps.
        margin: Least difference of targets within a pair.
        scope: Which steps make pairs, see ``step_pairs``.
    """
    owner = torch.tensor([i for i, e in enumerate(examples) for _ in e.places], dtype=torch.long)
    target = torch.tensor([t for e in examples for t in e.targets], dtype=torch.float32)
    weight = torch.tensor([w for e in examples for w in e.weights], dtype=torch.float32)
    unknown = target.isnan()
    outcome = torch.tensor([e.outcome for e in examples], dtype=torch.float32)
    unknown_outcome = outcome.isnan()
    classes = torch.tensor(
        [2 if not e.finished else -1 if e.outcome != e.outcome else int(e.outcome) for e in examples]
    )
    found = step_pairs(examples, margin, scope) if pairs else []
    ends = torch.tensor([len(e.places) for e in examples]).cumsum(0) - 1
    return Labels(
        target=target.masked_fill(unknown, 0.0),
        weight=weight.masked_fill(unknown, 0.0),
        right=torch.tensor([float(c) for e in examples for c in e.right]),
        trials=torch.tensor([float(c) for e in examples for c in e.trials]),
        solution_of=owner,
        outcome=outcome.masked_fill(unknown_outcome, 0.0),
        outcome_weight=(~unknown_outcome).float(),
        outcome_class=classes.clamp(min=0)[owner],
        outcome_class_weight=(classes >= 0).float()[owner],
        last=ends,
        better=torch.tensor([b for b, _, _ in found], dtype=torch.long),
        worse=torch.tensor([w for _, w, _ in found], dtype=torch.long),
        pair_weight=torch.tensor([v for _, _, v in found], dtype=torch.float32),
    )


def step_pairs(
    examples: Sequence[Example], margin: float, scope: str = "siblings"
) -> list[tuple[int, int, float]]:
    """Pairs of score positions (better, worse, weight) among solutions of one problem.

    ``siblings``: two steps are siblings where their solutions agree on all ids before them and differ in them; the
    pair counts where the targets differ by ``margin``. Last steps of a right and a wrong solution also make a pair
    (rStar-Math relaxes the shared prefix at the answer step); those of rollouts do not, which are many and would drown
    the siblings. ``problem``: any two steps of a problem whose targets differ by ``margin``, which also puts steps of
    different places on one scale. Each problem's pairs weigh 1 in total.
    """
    starts = [0]
    for e in examples:
        starts.append(starts[-1] + len(e.places))
    members: dict[str, list[int]] = {}
    for i, e in enumerate(examples):
        members.setdefault(e.problem_id, []).append(i)
    result: list[tuple[int, int, float]] = []
    for indices in members.values():
        pairs: set[tuple[int, int]] = set()
        if scope == "problem":
            own = [(starts[i] + k, t) for i in indices for k, t in enumerate(examples[i].targets)]
            pairs = {(x, y) for x, a in own for y, b in own if a - b >= margin}  # False for NaN
            indices = []
        for i, j in combinations(indices, 2):
            a, b = examples[i], examples[j]
            step = _first_difference(a, b)
            if step is not None:
                gap = a.targets[step] - b.targets[step]
                if abs(gap) >= margin:  # False for NaN
                    x, y = starts[i] + step, starts[j] + step
                    pairs.add((x, y) if gap > 0 else (y, x))
            if {a.outcome, b.outcome} == {0.0, 1.0} and not a.rolled_in and not b.rolled_in:
                x, y = starts[i + 1] - 1, starts[j + 1] - 1
                pairs.add((x, y) if a.outcome > b.outcome else (y, x))
        result += [(x, y, 1 / len(pairs)) for x, y in sorted(pairs)]
    return result


def require_pairs(examples: Sequence[Example], margin: float, scope: str) -> None:
    """Refuse a training set for pairs that has none.

    Raises:
        InputError: There is no pair, or no such scope.
    """
    if scope not in PAIR_SCOPES:
        raise InputError(f"unknown pair_scope {scope!r}; known: {', '.join(PAIR_SCOPES)}")
    if not step_pairs(examples, margin, scope):
        raise InputError(
            f"training on pairs: in {len(examples)} solutions no steps of the scope {scope!r} differ by {margin} in "
            "their targets, and no two solutions of a problem in their outcomes; label several solutions a problem, "
            "train on rollouts too (rollouts_per_problem), or lower pair_margin"
        )


def _first_difference(a: Example, b: Example) -> int | None:
    """Index of the first step whose ids differ, or None where one solution is the beginning of the other."""
    for step, (x, y) in enumerate(zip(a.places, b.places, strict=False)):
        if a.encoded.token_ids[: x + 1] != b.encoded.token_ids[: y + 1]:
            return step
    return None
