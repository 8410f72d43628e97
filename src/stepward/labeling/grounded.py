"""GroundedPRM's reward of a simulated path, as its code and as its paper have it, and its decayed backup.

Verdicts v are +1 (supported) or -1 (refuted); a step on which no tool could decide counts 0, never -1. F is +1
where the path ends in a right answer, -1 where in a wrong one; a path without such an end gives no reward.
"""

from collections.abc import Callable, Sequence

from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome, Verdict, VerdictKind

DECAY = 0.9
"""Of the backup, a step (paper and code); of the verdicts in the paper's form too."""
FINAL_WEIGHT = 1.0
"""beta of the paper's form. Its value was not verified against the paper."""
_END = {Outcome.RIGHT: 1, Outcome.WRONG: -1}


def code_reward(verdicts: Sequence[int], final: int) -> float:
    """R = (1/N) sum_{i=0}^{N-1} v_i (N - i)/N + (1/N) F, over the N verdicts left without the node's own and the last.

    F's coefficient is 1 where none remains.

    Args:
        verdicts: For each step of the simulated path, the expanded node's own first.
        final: F.
    """
    inner = verdicts[1:-1]
    n = len(inner)
    if n == 0:
        return float(final)
    return sum(v * (n - i) / n for i, v in enumerate(inner)) / n + final / n


def paper_reward(verdicts: Sequence[int], final: int) -> float:
    """u_i = 1/(T-1-i) sum_{j=i+1}^{T-1} d^(j-i-1) v_j + beta F: the mean of the decayed later verdicts, and the end.

    The paper's notation was not checked against its text: d is taken as the backup's decay, beta as 1. Beside the
    code's form: the last step's verdict counts, weights fall geometrically, and F is not divided by N.

    Args:
        verdicts: As in ``code_reward``.
        final: F.
    """
    later = verdicts[1:]
    if not later:
        return FINAL_WEIGHT * final
    return sum(DECAY**j * v for j, v in enumerate(later)) / len(later) + FINAL_WEIGHT * final


def backed_up(
    evidence: SolutionEvidence, reward: Callable[[Sequence[int], int], float]
) -> list[float | None]:
    """Summed rewards at the node of each step: from every path that starts there or below, decayed by .9 a step.

    Paths are the solution's own continuation from each of its nodes, with its verdicts, and the rollouts, which
    bring none: their reward is F. Only ends that are right or wrong count.

    Returns:
        T numbers; None where no path reached the node.
    """
    steps = evidence.num_steps
    own = [_sign(v) for v in evidence.verdicts] or [0] * steps
    sums: list[float | None] = [None] * steps
    carried: float | None = None
    for t in range(steps - 1, -1, -1):
        here = [reward((0,), _END[o]) for o in evidence.draws[t + 1] if o in _END]
        if evidence.outcome in _END:
            here.append(reward(own[t:], _END[evidence.outcome]))
        if carried is not None or here:
            carried = DECAY * (carried or 0.0) + sum(here)
        sums[t] = carried
    return sums


def _sign(verdicts: Sequence[Verdict]) -> int:
    kinds = {v.kind for v in verdicts}
    return -1 if VerdictKind.REFUTED in kinds else int(VerdictKind.SUPPORTED in kinds)
