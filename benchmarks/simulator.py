"""The labelling simulator: solutions whose first error and whose prefix values are known exactly.

Every distribution is that of the specification beside the algorithms' notes (``simulator.json``), whose figures
are the constants below. c = first wrong step counted from 1, T+1 = none; prefix t holds the first t steps.
Each quantity has a random stream of its own, so that a scenario changes only what it says it changes.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

MAX_STEPS = 60
NUM_SIBLINGS = 7
SCENARIOS = (
    "base", "clean", "drift", "rho20", "corr", "hard", "easy", "long", "phi15", "spiky", "badtool", "storm",
)  # fmt: skip
BASE_RATE, PRECISION, RECALL, COVERAGE = 0.06, 0.97, 0.6, 0.5
HINT_SHIFT = 1.2


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario changes."""

    phi: float = 0.04
    eta: float = 0.02
    rho_mean: float = 0.03
    s: float = 0.7
    drift: bool = False
    corr: bool = False
    ep: str = "beta"
    long: bool = False
    fpr_factor: float = 1.0


def scenario(name: str) -> Scenario:
    """The scenario of that name. Raises KeyError on an unknown one."""
    base = Scenario()
    return {
        "base": base,
        "clean": replace(base, phi=0.01, eta=0.01, rho_mean=0.01),
        "drift": replace(base, drift=True),
        "rho20": replace(base, rho_mean=0.2),
        "corr": replace(base, corr=True),
        "hard": replace(base, ep="hard"),
        "easy": replace(base, ep="easy"),
        "long": replace(base, long=True),
        "phi15": replace(base, phi=0.15),
        "spiky": replace(base, s=1.5),
        "badtool": replace(base, fpr_factor=8.0),
        "storm": replace(base, phi=0.15, rho_mean=0.15, s=1.5, drift=True, corr=True),
    }[name]


@dataclass(frozen=True, slots=True)
class Sample:
    """n solutions; arrays over steps or prefixes are padded to MAX_STEPS and 0 beyond a solution's end.

    Attributes:
        num_steps: T, [n].
        first_error: c in 1..T+1, [n].
        value: V_t of the path, [n, MAX_STEPS + 1].
        chance: What a rollout at t succeeds with: V_t, or under ``corr`` the prefix's shared draw around it.
        good, bad: V_good(t) and V_bad(t) before drift, for the genie.
        error_rate: e_t of step t at column t, for the genie; column 0 unused.
        rho: Recovery a step, [n].
        right: The own outcome, [n].
        siblings: (right, number) of the other solutions, [n, 2].
        rest: Expected tokens of a rollout from t: the solution's own tokens after it, [n, MAX_STEPS + 1].
        tool: -1 no verdict, 0 ok, 1 flag for step t at column t - 1, [n, MAX_STEPS].
        hint: z of step t at column t - 1, [n, MAX_STEPS].
        problem: Which problem the solution belongs to, [n].
        eta, phi: The scenario's.
    """

    num_steps: NDArray[np.int64]
    first_error: NDArray[np.int64]
    value: NDArray[np.float64]
    chance: NDArray[np.float64]
    good: NDArray[np.float64]
    bad: NDArray[np.float64]
    error_rate: NDArray[np.float64]
    rho: NDArray[np.float64]
    right: NDArray[np.bool_]
    siblings: NDArray[np.int64]
    rest: NDArray[np.float64]
    tool: NDArray[np.int8]
    hint: NDArray[np.float64]
    problem: NDArray[np.int64]
    eta: float
    phi: float

    def __len__(self) -> int:
        return len(self.num_steps)

    def head(self, n: int) -> "Sample":
        """The first n solutions."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        return Sample(**{name: a[:n] if isinstance(a, np.ndarray) else a for name, a in arrays.items()})


def _lengths(rng: np.random.Generator, n: int, long: bool) -> NDArray[np.int64]:
    if long:
        drawn = np.exp(rng.normal(np.log(30), 0.4, n))
        return np.clip(drawn.astype(np.int64), 15, MAX_STEPS)
    r, mean = 3, 5.5
    usual = np.minimum(20, 4 + rng.negative_binomial(r, r / (r + mean), n))
    heavy = np.clip(np.exp(rng.normal(np.log(22), 0.5, n)).astype(np.int64), 4, MAX_STEPS)
    return np.where(rng.random(n) < 0.1, heavy, usual)


def simulate(name: str, n: int, seed: int, solutions: int = 1) -> Sample:
    """Draw ``n`` solutions of a scenario.

    Args:
        name: One of SCENARIOS.
        n: Number of solutions.
        seed: Seed; test seeds must differ from tuning seeds.
        solutions: Solutions a problem; with more than one they share ep and rho, and the siblings of a
            solution are the others of its problem. 1 draws seven siblings' outcomes beside each solution.

    Raises:
        ValueError: n is no multiple of ``solutions``.
    """
    if n % solutions:
        raise ValueError(f"simulating {n} solutions, {solutions} a problem: n must be a multiple of it")
    what = scenario(name)
    streams = np.random.SeedSequence([seed, solutions]).spawn(12)
    rng = [np.random.default_rng(s) for s in streams]
    problems = n // solutions
    problem = np.repeat(np.arange(problems), solutions)
    num_steps = _lengths(rng[0], n, what.long)
    column = np.arange(MAX_STEPS + 1)
    step = (column >= 1) & (column <= num_steps[:, None])

    if what.ep == "beta":
        ep = rng[1].beta(0.9, 9.0, problems)[problem]
    else:
        low, high = (0.02, 0.10) if what.ep == "hard" else (0.92, 0.98)
        ep = 1 - rng[1].uniform(low, high, problems)[problem] ** (1 / num_steps)
    spread = np.exp(rng[2].normal(-(what.s**2) / 2, what.s, (n, MAX_STEPS + 1)))
    error_rate = np.where(step, np.minimum(0.9, ep[:, None] * spread), 0.0)
    rho = rng[3].beta(0.6, 0.6 * (1 / what.rho_mean - 1), problems)[problem]

    good = np.zeros((n, MAX_STEPS + 2))
    bad = np.zeros((n, MAX_STEPS + 2))
    rows = np.arange(n)
    good[rows, num_steps], bad[rows, num_steps] = 1 - what.eta, what.phi
    for t in range(MAX_STEPS - 1, -1, -1):
        inside = t < num_steps
        e, g, b = error_rate[:, t + 1], good[:, t + 1], bad[:, t + 1]
        good[:, t] = np.where(inside, (1 - e) * g + e * b, good[:, t])
        bad[:, t] = np.where(inside, rho * g + (1 - rho) * b, bad[:, t])
    good, bad = good[:, :-1], bad[:, :-1]

    moves = rng[4].random((n, MAX_STEPS + 1))
    wrong_path = np.zeros((n, MAX_STEPS + 1), bool)
    new_error = np.zeros((n, MAX_STEPS + 1), bool)
    for t in range(1, MAX_STEPS + 1):
        was = wrong_path[:, t - 1]
        new_error[:, t] = ~was & (moves[:, t] < error_rate[:, t]) & step[:, t]
        wrong_path[:, t] = np.where(was, moves[:, t] >= rho, new_error[:, t])
    any_error = new_error.any(axis=1)
    first_error = np.where(any_error, new_error.argmax(axis=1), num_steps + 1)
    at_end = wrong_path[rows, num_steps]
    right = rng[5].random(n) < np.where(at_end, what.phi, 1 - what.eta)

    value = np.where(wrong_path, bad, good)
    inner = (column >= 1) & (column < num_steps[:, None])
    if what.drift:
        logit = np.log(value.clip(1e-9)) - np.log((1 - value).clip(1e-9))
        noise = np.zeros(n)
        for t in range(1, MAX_STEPS + 1):
            noise = 0.6 * noise + rng[6].normal(0, 0.8, n)
            logit[:, t] += noise
        value = np.where(inner, 1 / (1 + np.exp(-logit)), value)
    value = np.where(column <= num_steps[:, None], value, 0.0)
    chance = value
    if what.corr:
        shared = rng[7].beta(4 * value + 1e-3, 4 * (1 - value) + 1e-3)
        chance = np.where(column < num_steps[:, None], shared, value)

    tokens = np.where(step, np.exp(rng[8].normal(np.log(45), 0.6, (n, MAX_STEPS + 1))), 0.0)
    rest = tokens.sum(axis=1, keepdims=True) - np.cumsum(tokens, axis=1)
    if solutions == 1:
        siblings = np.stack([rng[9].binomial(NUM_SIBLINGS, good[:, 0]), np.full(n, NUM_SIBLINGS)], axis=1)
    else:
        total = np.bincount(problem, right, problems)[problem].astype(np.int64)
        siblings = np.stack([total - right, np.full(n, solutions - 1)], axis=1)

    fpr = RECALL * BASE_RATE * (1 - PRECISION) / (PRECISION * (1 - BASE_RATE)) * what.fpr_factor
    draws = rng[10].random((2, n, MAX_STEPS))
    flagged = draws[0] < np.where(new_error[:, 1:], RECALL, fpr)
    tool = np.where((draws[1] < COVERAGE) & step[:, 1:], flagged.astype(np.int8), np.int8(-1))
    hint = rng[11].normal(0, 1, (n, MAX_STEPS))
    hint += HINT_SHIFT * (column[1:] == first_error[:, None])
    return Sample(
        num_steps=num_steps, first_error=first_error, value=value, chance=chance, good=good, bad=bad,
        error_rate=error_rate, rho=rho, right=right, siblings=siblings, rest=np.maximum(rest, 0.0),
        tool=tool, hint=hint, problem=problem, eta=what.eta, phi=what.phi,
    )  # fmt: skip


def rollout_tokens(sample: Sample, rows: NDArray[np.integer], prefixes: NDArray[np.integer],
                   rng: np.random.Generator) -> NDArray[np.float64]:  # fmt: skip
    """Tokens of one rollout at each (row, prefix): what is left of the solution times LogNormal(-1/32, 1/4)."""
    return sample.rest[rows, prefixes] * np.exp(rng.normal(-0.03125, 0.25, len(rows)))


def f1(first_error: NDArray[np.integer], predicted: NDArray[np.integer], num_steps: NDArray[np.integer],
       weights: NDArray[np.floating] | None = None) -> float:  # fmt: skip
    """Harmonic mean of exact-first-error accuracy on erroneous and of 'none' accuracy on correct solutions."""
    weights = np.ones(len(first_error)) if weights is None else weights
    hit = weights * (first_error == predicted)
    wrong = first_error <= num_steps
    on_wrong = hit[wrong].sum() / weights[wrong].sum()
    on_right = hit[~wrong].sum() / weights[~wrong].sum()
    return float(2 * on_wrong * on_right / max(on_wrong + on_right, 1e-12))
