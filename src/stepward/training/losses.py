"""Losses of process reward models, each a pure function of tensors.

Every function returns unreduced losses, one a unit (a step, a solution or a pair): the trainer divides their sum by
the weight of all units of the whole effective batch, so that how it is cut into micro-batches changes nothing.
``logit`` is the log-odds that a step is right, ``[n]``; ``target`` lies in [0, 1]; ``weight`` is not negative.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def binary_cross_entropy(logit: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy with hard or soft targets and confidence weights (Lightman et al. 2023; Math-Shepherd).

    The same for a scalar head, for two classes and for two vocabulary tokens: the two-class cross-entropy is that
    of the difference of the logits.

    Args:
        logit: ``[n]``.
        target: ``[n]`` in [0, 1].
        weight: ``[n]``.

    Returns:
        ``[n]``.
    """
    return weight * functional.binary_cross_entropy_with_logits(logit, target, reduction="none")


def mean_squared_error(probability: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """(p - target)^2, ``[n]`` (AlphaMath, ReST-MCTS*)."""
    return weight * (probability - target) ** 2


def outcome_cross_entropy(raw: Tensor, outcome: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy over wrong 0, right 1 and unfinished 2 (VGS).

    Args:
        raw: ``[n, 3]``.
        outcome: ``[n]`` long.
        weight: ``[n]``.

    Returns:
        ``[n]``.
    """
    return weight * functional.cross_entropy(raw, outcome, reduction="none")


def ensemble_cross_entropy(raw: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy of each member, averaged over members (ActPRM).

    Args:
        raw: ``[n, members]`` logits.
        target: ``[n]``.
        weight: ``[n]``.

    Returns:
        ``[n]``.
    """
    spread = target[:, None].expand_as(raw)
    return weight * functional.binary_cross_entropy_with_logits(raw, spread, reduction="none").mean(dim=1)


def q_ranking(q: Tensor, right: Tensor, solution_of: Tensor, num_solutions: int, zeta: float = 4.0) -> Tensor:
    """PQM's comparative loss (Li and Li 2024, equation 10), one value a solution.

    With right steps c_1..c_m, wrong steps W and Q_0 = 0: the mean over t of
    ``-log(e^Q_ct / (sum over q <= t of e^Q_cq + sum over w in W of e^(Q_w + zeta)))``, where q and t run from 0 and
    the term t = 0 counts only if W is not empty.

    Args:
        q: ``[n]`` logits in order of solution, then step.
        right: ``[n]`` bool.
        solution_of: ``[n]`` index of the solution.
        num_solutions: Solutions in the batch.
        zeta: Margin between right and wrong.

    Returns:
        ``[num_solutions]``; 0 for a solution without labelled steps.
    """
    losses: list[Tensor] = []
    for index in range(num_solutions):
        mine = solution_of == index
        good, bad = q[mine & right], q[mine & ~right]
        chain = torch.cat([good.new_zeros(1), good])
        below = torch.logcumsumexp(chain, dim=0)
        if len(bad):
            below = torch.logaddexp(below, torch.logsumexp(bad + zeta, dim=0))
        terms = below - chain
        if not len(bad):
            terms = terms[1:]
        losses.append(terms.mean() if len(terms) else q.sum() * 0.0)
    return torch.stack(losses) if losses else q.new_zeros(0)


def pairwise_ranking(better: Tensor, worse: Tensor, weight: Tensor) -> Tensor:
    """Bradley-Terry over pairs of siblings: ``-log sigmoid(r+ - r-)`` (rStar-Math PPM, Tree-PLV).

    Args:
        better: ``[pairs]`` logits of the preferred steps.
        worse: ``[pairs]`` logits of the others.
        weight: ``[pairs]``; PPM gives each pair of a node 1 / (chosen x rejected).

    Returns:
        ``[pairs]``.
    """
    return -weight * functional.logsigmoid(better - worse)


def beta_binomial(
    logit: Tensor, kappa: Tensor, right: Tensor, trials: Tensor, weight: Tensor, penalty: float = 1e-2
) -> Tensor:
    """Negative log-likelihood of the counts under Beta(mu kappa, (1 - mu) kappa) (BetaPRM).

    ``-[log C(N, K) + log B(K + A, N - K + B) - log B(A, B)] + penalty * |mu - K/N| * kappa`` with
    A = mu kappa + 1e-6, B = (1 - mu) kappa + 1e-6; no gradient passes through mu in the penalty, which keeps the
    model from claiming certainty where it is wrong.

    Args:
        logit: ``[n]`` log-odds of mu.
        kappa: ``[n]`` concentration, positive.
        right: ``[n]`` K.
        trials: ``[n]`` N > 0.
        weight: ``[n]``.
        penalty: lambda.

    Returns:
        ``[n]``.
    """
    mu = torch.sigmoid(logit)
    a, b = mu * kappa + 1e-6, (1 - mu) * kappa + 1e-6
    wrong = trials - right
    choose = torch.lgamma(trials + 1) - torch.lgamma(right + 1) - torch.lgamma(wrong + 1)
    likelihood = choose + _log_beta(right + a, wrong + b) - _log_beta(a, b)
    return weight * (-likelihood + penalty * (mu.detach() - right / trials).abs() * kappa)


def soft_minimum(reward: Tensor, solution_of: Tensor, num_solutions: int, temperature: float = 0.1) -> Tensor:
    """PURE's min-form: ``sum over t of softmax(-r / T)_t r_t``, one value a solution (Cheng et al. 2025).

    Args:
        reward: ``[n]`` step rewards in [-1, 1]: P(right) - P(wrong).
        solution_of: ``[n]``.
        num_solutions: Solutions in the batch; each has at least one step.
        temperature: T > 0; towards 0 the smooth minimum becomes the minimum.

    Returns:
        ``[num_solutions]`` in [-1, 1].
    """
    weights = min_form_weights(reward, solution_of, num_solutions, temperature)
    return reward.new_zeros(num_solutions).index_add(0, solution_of, weights * reward)


def min_form_weights(
    reward: Tensor, solution_of: Tensor, num_solutions: int, temperature: float = 0.1
) -> Tensor:
    """softmax(-r / T) within each solution, ``[n]``."""
    scaled = -reward / temperature
    peak = scaled.new_full((num_solutions,), -torch.inf).scatter_reduce(0, solution_of, scaled, "amax")
    raised = torch.exp(scaled - peak[solution_of])
    total = raised.new_zeros(num_solutions).index_add(0, solution_of, raised)
    return raised / total[solution_of]


def soft_minimum_outcome(
    probability: Tensor,
    outcome: Tensor,
    solution_of: Tensor,
    weight: Tensor,
    temperature: float = 0.1,
) -> Tensor:
    """Cross-entropy of a solution's outcome under its weakest step.

    P(solution is right) = (soft minimum of the rewards 2p - 1, plus 1) / 2: a wrong outcome blames the weakest step,
    a right one clears all of them. Trains step scores on outcomes alone.

    Args:
        probability: ``[n]`` P(step is right).
        outcome: ``[solutions]`` in [0, 1].
        solution_of: ``[n]``.
        weight: ``[solutions]``.
        temperature: T of the soft minimum.

    Returns:
        ``[solutions]``.
    """
    weakest = (soft_minimum(2 * probability - 1, solution_of, len(outcome), temperature) + 1) / 2
    return weight * functional.binary_cross_entropy(weakest.clamp(1e-6, 1 - 1e-6), outcome, reduction="none")


def implicit_outcome(log_ratio: Tensor, outcome: Tensor, weight: Tensor, beta: float = 0.05) -> Tensor:
    """Cross-entropy of the outcome under ``sigmoid(beta log pi/pi_ref)`` (ImplicitPRM, Yuan et al. 2024).

    Args:
        log_ratio: ``[solutions]`` log pi(y|x) - log pi_ref(y|x), summed over the solution's tokens.
        outcome: ``[solutions]`` in [0, 1].
        weight: ``[solutions]``.
        beta: Scale of the implicit reward.

    Returns:
        ``[solutions]``.
    """
    return binary_cross_entropy(beta * log_ratio, outcome, weight)


def effective_reward(
    values: Sequence[float], alpha: float = 0.5, prover_samples: int = 4
) -> tuple[float, ...]:
    """PAV's step score Q_t + alpha A_t, moved into [0, 1] (Setlur et al. 2024).

    The prover is best-of-K of the policy itself: Q^mu = 1 - (1 - Q)^K, A_t = Q^mu_t - Q^mu_(t-1). The score lies in
    [-alpha, 1 + alpha] and is mapped linearly onto [0, 1].

    Args:
        values: T+1 values Q of prefixes 0 to T, each in [0, 1].
        alpha: Weight of the advantage.
        prover_samples: K.

    Returns:
        T targets.
    """
    prover = [1 - (1 - q) ** prover_samples for q in values]
    return tuple(
        (values[t] + alpha * (prover[t] - prover[t - 1]) + alpha) / (1 + 2 * alpha)
        for t in range(1, len(values))
    )


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
