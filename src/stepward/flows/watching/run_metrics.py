"""What a run is doing, in figures: shares, rates and ages, and which of them should worry somebody.

Nothing here reaches a row. Shares are kept over the whole run and over a recent window, so that a change shows.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepward.labeling.annotate import ProblemResult
from stepward.labeling.policies.metered import Meter, MeteredPolicy
from stepward.prm.types import Outcome, Rollout

WINDOW = 200
"""Draws, or solutions, of the recent window."""


@dataclass(slots=True)
class Share:
    """How many of how many: over all, and over at least the last ``WINDOW``."""

    hits: int = 0
    total: int = 0
    recent_hits: int = 0
    recent_total: int = 0
    _recent: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])

    def add(self, hits: int, total: int) -> None:
        """Count ``hits`` of ``total`` more."""
        if not total:
            return
        self.hits, self.total = self.hits + hits, self.total + total
        self._recent.append((hits, total))
        self.recent_hits, self.recent_total = self.recent_hits + hits, self.recent_total + total
        while self.recent_total - self._recent[0][1] >= WINDOW:
            old_hits, old_total = self._recent.popleft()
            self.recent_hits, self.recent_total = self.recent_hits - old_hits, self.recent_total - old_total

    @property
    def share(self) -> float | None:
        """Over the whole run; None before there is one."""
        return self.hits / self.total if self.total else None

    @property
    def recent(self) -> float | None:
        """Over the window; None until it is full."""
        return self.recent_hits / self.recent_total if self.recent_total >= WINDOW else None

    @property
    def earlier(self) -> float | None:
        """Before the window; None until as many lie before it."""
        total = self.total - self.recent_total
        return (self.hits - self.recent_hits) / total if total >= WINDOW else None

    def change_z(self) -> float:
        """Standard errors between the window and what lay before it (pooled); 0 where one is not known."""
        recent, earlier, pooled = self.recent, self.earlier, self.share
        if recent is None or earlier is None or pooled is None or pooled in (0.0, 1.0):
            return 0.0
        earlier_total = self.total - self.recent_total
        spread = math.sqrt(pooled * (1 - pooled) * (1 / self.recent_total + 1 / earlier_total))
        return (recent - earlier) / spread


@dataclass(slots=True)
class RunMetrics:
    """The figures of one process of a run.

    Attributes:
        meter: Of its engines.
        policies: Its engines, for their own counts of cached tokens and retries.
        total_problems: To do in this process, ``found`` of which were finished before.
        problems: Finished here.
        solutions: Rows made.
        skipped: Problems without rows.
        shards: Written here.
        tokens: Sampled for the finished problems.
        draws: Rollouts by outcome, solutions included.
        faults: Share of draws that failed in the engine.
        solved: Share of right ones among solutions judged right or wrong.
        drift: The same, shard by shard: within one, what ends first is short and rather right.
        fresh: Share of new texts among the draws beyond the first at their prefix: 1 = no two alike, 0 = copies.
        degenerate: Problems with the mark ``degenerate``.
        began: ``time.monotonic()`` at the start.
    """

    meter: Meter
    policies: Sequence[MeteredPolicy] = ()
    total_problems: int = 0
    found: int = 0
    problems: int = 0
    solutions: int = 0
    skipped: int = 0
    shards: int = 0
    tokens: int = 0
    draws: Counter[Outcome] = field(default_factory=Counter[Outcome])
    faults: Share = field(default_factory=Share)
    solved: Share = field(default_factory=Share)
    drift: Share = field(default_factory=Share)
    fresh: Share = field(default_factory=Share)
    degenerate: int = 0
    began: float = field(default_factory=time.monotonic)
    _open: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def add(self, result: ProblemResult, shard: int = 0) -> None:
        """Count a finished problem of a shard."""
        self.problems += 1
        self.solutions += len(result.solutions)
        self.skipped += result.skipped is not None
        self.tokens += result.tokens
        self.degenerate += any("degenerate" in row.marks for row in result.solutions)
        outcomes = [r.outcome or Outcome.ERROR for _, r in result.rollouts]
        self.draws.update(outcomes)
        self.faults.add(outcomes.count(Outcome.ERROR), len(outcomes))
        own = [row.solution.outcome for row in result.solutions]
        right = own.count(Outcome.RIGHT)
        judged = right + own.count(Outcome.WRONG)
        self.solved.add(right, judged)
        before = self._open.get(shard, (0, 0))
        self._open[shard] = (before[0] + right, before[1] + judged)
        for at_prefix in by_prefix(result).values():
            if len(at_prefix) > 1:
                self.fresh.add(len({r.text for r in at_prefix}) - 1, len(at_prefix) - 1)

    def close(self, shard: int) -> None:
        """Count a shard that is written."""
        self.shards += 1
        self.drift.add(*self._open.pop(shard, (0, 0)))

    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens that the engines did not compute again; None where none of them says."""
        shares = [s for p in self.policies if (s := p.cached_share()) is not None]
        return sum(shares) / len(shares) if shares else None

    def hits_of_possible(self) -> float | None:
        """The same over what a cache without limits would have had; None where none of them says."""
        shares = [s for p in self.policies if (s := p.hits_of_possible()) is not None]
        return sum(shares) / len(shares) if shares else None

    def snapshot(self) -> dict[str, object]:
        """Everything as JSON values; null where not known, as the engine's figures of worker processes are."""
        now = time.monotonic()
        seconds = max(1e-9, now - self.began)
        here = self.meter.began is not None
        drawn = max(1, self.draws.total())
        usages = [u for p in self.policies if (u := p.usage) is not None]
        return {
            "seconds": round(seconds, 3),
            "problems_planned": self.total_problems,
            "problems_found": self.found,
            "problems": self.problems,
            "problems_without_rows": self.skipped,
            "problems_degenerate": self.degenerate,
            "solutions": self.solutions,
            "shards": self.shards,
            "tokens": max(self.tokens, self.meter.tokens),
            "prompt_tokens": self.meter.prompt_tokens if here else None,
            "tokens_per_s": round(self.meter.tokens_per_s(now) if here else self.tokens / seconds, 2),
            "in_flight": self.meter.in_flight if here else None,
            "queue_age_s": round(self.meter.queue_age_s(now), 3) if here else None,
            "prefix_hit_rate": _rounded(self.prefix_hit_rate()),
            "prefix_hits_of_possible": _rounded(self.hits_of_possible()),
            "likelihoods": self.meter.likelihoods if here else None,
            "engine_retries": sum(u.retries for u in usages) if usages else None,
            "outcome_shares": {o.value: round(n / drawn, 4) for o, n in sorted(self.draws.items())},
            "finish_reasons": {r.value: n for r, n in sorted(self.meter.finish_reasons.items())},
            "fault_share": _rounded(self.faults.share),
            "solve_rate": _rounded(self.solved.share),
            "n_unique_share": _rounded(self.fresh.share),
        }


def by_prefix(result: ProblemResult) -> dict[tuple[str, int], list[Rollout]]:
    """Draws of a problem that were served, grouped by the prefix that they continue; prefix 0 is one for all."""
    groups: dict[tuple[str, int], list[Rollout]] = {}
    for solution_id, rollout in result.rollouts:
        if rollout.outcome is not Outcome.ERROR:
            key = (solution_id if rollout.num_steps else "", rollout.num_steps)
            groups.setdefault(key, []).append(rollout)
    return groups


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that somebody should look at: which figure, how it changed, what to do."""

    name: str
    what: str
    remedy: str


def alarms(metrics: RunMetrics) -> list[Alarm]:
    """What is wrong now. A change counts from four standard errors on, so that chance hardly raises one."""
    found: list[Alarm] = []
    faults, solved, fresh = metrics.faults, metrics.drift, metrics.fresh
    if faults.recent is not None and faults.recent >= 0.02:
        earlier = faults.earlier
        if (earlier is None and faults.recent >= 0.2) or faults.change_z() >= 4 or (earlier or 0) >= 0.2:
            found.append(
                Alarm(
                    "engine_faults",
                    f"{faults.recent:.0%} of the last {faults.recent_total} rollouts failed in the engine "
                    f"({_share(earlier)} before)",
                    "look at the engine's log; failed rollouts are lost evidence, never wrong answers",
                )
            )
    if (
        solved.recent is not None
        and solved.earlier is not None
        and abs(solved.change_z()) >= 4
        and abs(solved.recent - solved.earlier) >= 0.1
    ):
        found.append(
            Alarm(
                "solve_rate",
                f"{solved.recent:.0%} of the last {solved.recent_total} solutions are right, "
                f"{solved.earlier:.0%} of those before",
                "a file sorted by difficulty does that; else compare the engine's model, prompt and sampler with those "
                "of the start",
            )
        )
    if fresh.recent is not None:
        collapsed = (
            fresh.earlier is not None and fresh.recent < 0.5 * fresh.earlier and fresh.change_z() <= -4
        )
        if collapsed or (fresh.recent < 0.02 and (fresh.earlier is None or fresh.earlier < 0.02)):
            found.append(
                Alarm(
                    "n_unique",
                    f"{fresh.recent:.0%} of the last {fresh.recent_total} repeated draws brought a new text "
                    f"({_share(fresh.earlier)} before)",
                    "the engine repeats itself: check that seed and temperature reach it (stepward engine check)",
                )
            )
    possible, drawn = metrics.hits_of_possible(), metrics.meter.finished
    if possible is not None and possible < 0.9 and drawn >= 1000:
        found.append(
            Alarm(
                "prefix_cache",
                f"{1 - possible:.0%} of the prefix tokens that were computed before are computed again",
                "give the prefix cache more memory (prefix_cache_mib; for vLLM its own setting) or lower "
                "problems_in_flight",
            )
        )
    return found


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.0%}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
