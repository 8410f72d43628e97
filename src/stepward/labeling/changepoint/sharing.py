"""Solutions that begin alike are in one state: what was drawn there for one of them is evidence on all.

A state is known by its token ids (``evidence.prefix_nodes``). Three things follow, all exact under the chain:

- rollouts from a state count for every solution that passes through it, and one rollout serves them all;
- a solution that leaves another's path after d steps is, for that other one, a rollout from its prefix d, which cost
  nothing (on policy: it was drawn by the completer, given those d steps);
- what a problem tells about theta is counted once: of solutions with a step in common one speaks for all, with the
  outcomes of the others among its counts.

Where nothing but the question is shared this changes nothing. The root is left as it is: that all solutions share it
is what pooling rests on.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.evidence import SolutionEvidence

Ints = NDArray[np.int64]


def node_table(solutions: Sequence[SolutionEvidence]) -> Ints:
    """Node of each prefix, [solutions, longest + 1]; -1, which is equal to none, where no other can be there."""
    table = np.full((len(solutions), max(s.num_steps for s in solutions) + 1), -1)
    for row, evidence in enumerate(solutions):
        if evidence.nodes:
            table[row, : evidence.num_steps + 1] = evidence.nodes
    return table


def mostly_shared(nodes: Ints) -> bool:
    """Whether half of a problem's solutions or more begin with a step that another begins with too.

    Then their errors sit at the same few steps, which one hazard a problem does not know, and pooled they talk each
    other into it. On replayed rollouts of such a policy reading them one by one, equal states merged, was better at
    every budget; where solutions go their own ways pooling saves a quarter of the tokens.
    """
    known = nodes[nodes[:, 1] >= 0, 1]
    _, times = np.unique(known, return_counts=True)
    return bool(2 * times[times > 1].sum() >= len(nodes))


def merge(
    nodes: Ints,
    steps: Ints,
    outcome: Ints,
    right: Ints,
    trials: Ints,
    siblings_are_draws: bool,
    merged_right: Ints,
    merged_trials: Ints,
    root: Ints,
    speaks: NDArray[np.bool_],
) -> None:
    """Merge the counts of equal states; loops over small integers, which ``compiled`` compiles.

    Args:
        nodes: As of ``node_table``, [S, M+1].
        steps: T of each solution, [S].
        outcome: 1 right, 0 wrong, -1 unknown, [S].
        right, trials: Of each solution's own draws, [S, M+1].
        siblings_are_draws: Count a solution's outcome as a rollout where it leaves another's path; False (another
            completer) counts it at the root, which is how a sibling's outcome is read anyway.
        merged_right, merged_trials: Results, [S, M+1].
        root: Result, [S, 2]: right and wrong outcomes of others that say something of V_0 alone.
        speaks: Result, [S, S]: whether the evidence on j is to inform the theta of i.
    """
    count = steps.shape[0]
    for i in range(count):
        root[i, 0] = root[i, 1] = 0
        for t in range(steps[i] + 1):
            merged_right[i, t] = right[i, t]
            merged_trials[i, t] = trials[i, t]
        for j in range(count):
            speaks[i, j] = i != j
            if i == j:
                continue
            depth = 0
            while depth < steps[i] and depth < steps[j] and nodes[i, depth + 1] >= 0 and (
                nodes[i, depth + 1] == nodes[j, depth + 1]
            ):  # fmt: skip
                depth += 1
                merged_right[i, depth] += right[j, depth]
                merged_trials[i, depth] += trials[j, depth]
            speaks[i, j] = depth == 0
            # A copy of the whole solution ends in the same state: its outcome is the own one over again.
            copy = depth == steps[i] or depth == steps[j]
            if outcome[j] < 0 or (copy and siblings_are_draws):
                continue
            if depth and siblings_are_draws:
                merged_right[i, depth] += outcome[j]
                merged_trials[i, depth] += 1
            else:
                root[i, 1 - outcome[j]] += 1
    # Of solutions with a first step in common the first one speaks.
    for j in range(count):
        for first in range(j):
            if nodes[j, 1] >= 0 and nodes[first, 1] == nodes[j, 1]:
                for i in range(count):
                    speaks[i, j] = False
