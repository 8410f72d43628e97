"""Per-step credit for RL trainers, in the columns of verl and of TRL. Only written.

The credit of a step is what it changed: V_t - V_{t-1}, the value of the prefix after it less that before it
(PAV's advantage with the policy as its own prover). Where a value is not known the credit is null, never 0.
"""

from collections.abc import Sequence
from itertools import pairwise

from stepward.prm.formats.foreign import Row
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution, Outcome

SEPARATOR = "\n\n"
_REWARD = {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0}


def step_credits(solution: LabeledSolution) -> list[float | None]:
    """V_t - V_{t-1} for each step, in [-1, 1], or None where either is unknown."""
    values = [estimate.value for estimate in solution.prefixes]
    return [None if before is None or after is None else after - before for before, after in pairwise(values)]


def _step_ends(texts: Sequence[str]) -> list[int]:
    """Where each step ends, as a character index into the steps joined by blank lines."""
    ends: list[int] = []
    place = 0
    for text in texts:
        place += len(text)
        ends.append(place)
        place += len(SEPARATOR)
    return ends


def _token_ends(solution: LabeledSolution) -> list[int] | None:
    """Where each step ends among the solution's token ids; None where a step has none."""
    lengths = [len(step.token_ids) for step in solution.solution.steps]
    if not all(lengths):
        return None
    return [sum(lengths[: at + 1]) for at in range(len(lengths))]


def _messages(solution: LabeledSolution) -> list[Row]:
    statement = solution.problem.statement
    if isinstance(statement, str):
        return [{"role": "user", "content": statement}]
    return [{"role": m.role, "content": m.content} for m in statement]


def _verl(solution: LabeledSolution) -> Row | str:
    credit = step_credits(solution)
    if all(c is None for c in credit):
        return "no step has a value before and after it"
    answers = solution.problem.answers
    texts = [step.text for step in solution.solution.steps]
    return {
        "data_source": solution.problem.source,
        "prompt": _messages(solution),
        "ability": str(solution.problem.check.kind),
        "reward_model": {"style": "rule", "ground_truth": answers[0] if answers else None},
        "extra_info": {
            "index": solution.solution.id,
            "response": SEPARATOR.join(texts),
            "response_ids": list(solution.solution.token_ids),
            "step_token_ends": _token_ends(solution),
            "step_rewards": credit,
            "outcome_reward": _REWARD.get(solution.solution.outcome or Outcome.ERROR),
        },
    }


def _trl(solution: LabeledSolution) -> Row | str:
    credit = step_credits(solution)
    if all(c is None for c in credit):
        return "no step has a value before and after it"
    texts = [step.text for step in solution.solution.steps]
    return {
        "prompt": _messages(solution),
        "completion": [{"role": "assistant", "content": SEPARATOR.join(texts)}],
        "step_rewards": credit,
        "step_ends": _step_ends(texts),
        "reward": _REWARD.get(solution.solution.outcome or Outcome.ERROR),
    }


VERL_CREDIT = Format("verl_credit", "per-step credit in verl's columns", write=row_by_row(_verl))
TRL_CREDIT = Format(
    "trl_credit", "per-step credit beside TRL's prompt and completion", write=row_by_row(_trl)
)
