"""Problems -> labelled solutions. The one door that flows use.

For one problem: sample solutions (or take the user's, or those of a tree search with its rollouts), decide their
outcomes, let tools, judge and reward model look at the steps, then let the allocation ask for rollouts round by round
until it has enough, grade those, derive labels from the counts, and fuse them with what the others said. Problems are
independent of one another, so any number may be in flight; a decision about a problem reads only that problem's
results, in request order, whatever finishes first.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stepward.labeling.degenerate import counted_once, is_degenerate
from stepward.labeling.drawing import cut, draw_all, encode, graded, sample_solutions, solution_id
from stepward.labeling.evidence import Draw, SolutionEvidence, prefix_nodes
from stepward.labeling.hard_luck import given_up, marks_of, solve_rate_mark
from stepward.labeling.outcomes import Basis, Draft, from_answers, from_consensus, from_votes
from stepward.labeling.plan import Engines, GivenSolution, Labeling
from stepward.labeling.recovery import with_recoveries
from stepward.labeling.searched import Searched, search_solutions
from stepward.labeling.source_quality import read_through
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import (
    Allocation,
    Counts,
    FinishReason,
    LabeledSolution,
    Outcome,
    Prefix,
    Problem,
    Rollout,
    Solution,
    StepLabel,
    TokenIds,
    Verdict,
)

_Known = dict[tuple[object, TokenIds, FinishReason], Rollout]
"""A rollout that was graded, by the state that it goes on from, its ids and why it ended."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """All rows of one problem.

    Attributes:
        problem: The problem.
        solutions: Its labelled solutions.
        rollouts: (solution id, rollout) of every draw, the solutions themselves included at prefix 0.
        tokens: Tokens sampled for the problem.
        exhausted: Draws that a replay log could not serve.
        skipped: Why the problem has no rows, or None.
    """

    problem: Problem
    solutions: tuple[LabeledSolution, ...] = ()
    rollouts: tuple[tuple[str, Rollout], ...] = ()
    tokens: int = 0
    exhausted: int = 0
    skipped: str | None = None


@dataclass(slots=True)
class _Work:
    """One solution while it is being labelled: its evidence grows draw by draw.

    What every round asks for is kept small and apart from the rows: with thousands of problems in flight each round
    finds the memory of its own problem cold.
    """

    solution: Solution
    prefixes: tuple[Prefix, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    scores: tuple[float, ...]
    nodes: tuple[int, ...]
    draws: list[list[Rollout]]
    searched_tokens: int = 0
    outcomes: list[tuple[Outcome, ...]] = field(init=False)
    step_tokens: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.outcomes = [tuple(_outcome(r) for r in at_prefix) for at_prefix in self.draws]
        self.step_tokens = tuple(len(s.token_ids) for s in self.solution.steps)

    def add(self, prefix: int, rollout: Rollout) -> None:
        """Take in one more rollout from a prefix."""
        self.draws[prefix].append(rollout)
        self.outcomes[prefix] += (_outcome(rollout),)

    def evidence(self, on_policy: bool, plan: Labeling, *, everything: bool = False) -> SolutionEvidence:
        """What is known; returns alone where the fusion keeps them apart from verdicts and hints."""
        told = everything or plan.fusion.in_posterior
        scores = self.scores if told or plan.allocation.kind is Allocation.TWO_FIDELITY else ()
        hint = plan.constants.hint
        return SolutionEvidence(
            num_steps=len(self.step_tokens),
            step_tokens=self.step_tokens,
            outcome=self.solution.outcome or Outcome.ERROR,
            draws=tuple(self.outcomes),
            verdicts=self.verdicts if told else (),
            prm_scores=read_through(hint, scores) if hint is not None and scores else scores,
            on_policy=on_policy,
            nodes=self.nodes,
        )


async def annotate(
    problem: Problem, plan: Labeling, engines: Engines, given: Sequence[GivenSolution] | None = None
) -> ProblemResult:
    """Label the solutions of one problem.

    Args:
        problem: The problem. Where nothing can be compared with (no gold, no majority) its solutions are kept with
            outcome ``NO_GOLD`` and cost no rollouts.
        plan: What shapes the rows.
        engines: Policy, completer, prompt, grader, step verifiers.
        given: The user's solutions of this problem; None samples ``plan.num_solutions``.

    Returns:
        The rows; ``skipped`` where there are none (empty solutions, prompt over the context).

    Raises:
        EngineError: The engine is gone. A single failed rollout is a row with outcome ``ERROR`` instead.
    """
    prompt = engines.render(problem)
    if len(prompt) >= engines.policy.context_length:
        return ProblemResult(
            problem,
            skipped=f"prompt of {len(prompt)} tokens does not fit the context of {engines.policy.context_length}",
        )
    samples: list[Rollout] = []
    exhausted = 0
    found: Searched | None = None
    if plan.search is not None:
        found = await search_solutions(problem, prompt, plan, engines)
        drafted, texts = list(found.solutions), list(found.texts)
    elif given is None:
        samples, exhausted = await sample_solutions(problem, prompt, plan, engines)
        drafted = [cut(problem, r, plan, engines) for r in samples]
        texts = [(r.text, r.finish_reason) for r in samples]
    else:
        encoded = [encode(problem, i, g, plan, engines) for i, g in enumerate(given)]
        drafted, texts = [s for s, _ in encoded], [(text, FinishReason.STOP) for _, text in encoded]
    drafts = [Draft(t, f, tuple(x.text for x in s.steps)) for s, (t, f) in zip(drafted, texts, strict=True)]
    basis = await _basis(problem, plan, engines, drafts)
    solutions = [_with_outcome(s, basis, i, plan) for i, s in enumerate(drafted)]
    samples = [
        r if r.outcome is not None else replace(r, outcome=s.outcome, answer=s.final_answer)
        for r, s in zip(samples, solutions, strict=False)
    ]
    works = await _start(problem, prompt, solutions, basis, engines, found)
    on_policy = given is None and found is None and plan.policy_info == plan.completer_info
    uniform = solve_rate_mark([r.outcome for r in samples], at_least=max(plan.uniform_from, 2))
    if basis.reference.answers and not (plan.uniform_from and uniform):
        exhausted += await _run_allocation(problem, basis.reference, plan, engines, works, on_policy)
    return _rows(problem, basis.reference, prompt, plan, engines, works, samples, exhausted, on_policy)


async def _basis(problem: Problem, plan: Labeling, engines: Engines, drafts: Sequence[Draft]) -> Basis:
    if plan.outcomes_from == "votes":
        return await from_votes(problem, drafts, engines.grader)
    if plan.outcomes_from == "spark":
        if engines.reviews is None:
            raise ValueError(
                f"labelling problem {problem.id}: outcomes from 'spark' need a judge; hand one in"
            )
        return await from_consensus(problem, drafts, engines.grader, engines.reviews)
    return await from_answers(problem, drafts, engines.grader)


def _with_outcome(solution: Solution, basis: Basis, index: int, plan: Labeling) -> Solution:
    found = basis.found[index]
    source = plan.outcomes_from
    if solution.outcome is not None or solution.finish_reason is FinishReason.ABORT:
        # The engine failed: neither votes nor a judge say anything of half a text.
        return replace(solution, outcome=solution.outcome or Outcome.ERROR, outcome_from=source)
    return replace(
        solution,
        outcome=found.outcome,
        final_answer=found.answer,
        outcome_from=source,
        outcome_share=found.share,
    )


async def _start(
    problem: Problem,
    prompt: TokenIds,
    solutions: Sequence[Solution],
    basis: Basis,
    engines: Engines,
    found: Searched | None,
) -> list[_Work]:
    """The solutions that have steps, with what tools, judge and reward model say of them and what a search drew."""
    kept = [i for i, s in enumerate(solutions) if s.steps]
    texts = [[x.text for x in solutions[i].steps] for i in kept]
    verdicts: list[Sequence[tuple[Verdict, ...]]] = [[() for _ in t] for t in texts]
    if engines.verify_steps is not None:
        verdicts = list(await asyncio.gather(*(engines.verify_steps(problem, t) for t in texts)))
    scores: list[tuple[float, ...]] = [()] * len(kept)
    if engines.reward_model is not None and kept:
        scored = await asyncio.to_thread(engines.reward_model.score, [problem] * len(kept), texts)
        scores = [tuple(round(p, 4) for p in row) for row in scored]
    works: list[_Work] = []
    nodes = prefix_nodes([[x.token_ids for x in solutions[i].steps] for i in kept])
    for i, at_steps, row, path in zip(kept, verdicts, scores, nodes, strict=True):
        prefixes = [Prefix(problem.id, prompt)]
        ids: TokenIds = ()
        for t, step in enumerate(solutions[i].steps):
            ids += step.token_ids
            prefixes.append(Prefix(problem.id, prompt, ids, t + 1))
        by_judge = basis.found[i].verdicts or [()] * len(at_steps)
        both = tuple((*a, *b) for a, b in zip(at_steps, by_judge, strict=True))
        draws: list[list[Rollout]] = [list(at) for at in found.draws[i]] if found else [[] for _ in prefixes]
        tokens = found.own_tokens[i] if found else 0
        works.append(_Work(solutions[i], tuple(prefixes), both, row, path, draws, tokens))
    return works


async def _run_allocation(
    problem: Problem,
    reference: Problem,
    plan: Labeling,
    engines: Engines,
    works: list[_Work],
    on_policy: bool,
) -> int:
    """Draw what the allocation asks for, round by round. Returns draws that a replay log could not serve.

    A solution is given up where none of its first rollouts can be judged: the others would not be either. Rollouts
    that say the same from the same place are independent draws, but are graded once and share their ids and text.
    """
    exhausted = 0
    known: _Known = {}
    while asked := plan.allocation.next_draws([w.evidence(on_policy, plan) for w in works]):
        lost = [given_up(w.outcomes, plan.unfinished_as_wrong) for w in works]
        draws = [d for d in asked if not lost[d.solution]]
        if not draws:
            break
        requests = _requests(problem, plan, works, draws)
        drawn = await draw_all(engines.completer, requests)
        exhausted += sum(r is None for r in drawn)
        for draw, request, rollout in zip(draws, requests, drawn, strict=True):
            if rollout is not None:
                await _take(works[draw.solution], draw, request, rollout, reference, engines, known)
        if all(r is None for r in drawn):
            break
    return exhausted


async def _take(
    work: _Work,
    draw: Draw,
    request: SampleRequest,
    rollout: Rollout,
    reference: Problem,
    engines: Engines,
    known: _Known,
) -> None:
    """Grade a rollout, unless its like is known, and add it to its solution."""
    state = work.nodes[draw.prefix] if work.nodes else (draw.solution, draw.prefix)
    key = (state, rollout.token_ids, rollout.finish_reason)
    same = known.get(key) if rollout.outcome is None else None
    if same is not None:
        judged = replace(
            rollout, token_ids=same.token_ids, text=same.text, outcome=same.outcome, answer=same.answer
        )
    else:
        text = engines.completer.tokenizer.decode(request.prefix.solution_ids + rollout.token_ids)
        judged = await graded(reference, rollout, text, engines.grader)
        if rollout.outcome is None and judged.outcome in (Outcome.RIGHT, Outcome.WRONG):
            known[key] = judged
    work.add(draw.prefix, judged)


def _requests(
    problem: Problem, plan: Labeling, works: Sequence[_Work], draws: Sequence[Draw]
) -> list[SampleRequest]:
    """One request a draw; its seed names problem, solution, prefix and rollout index, so none occurs twice."""
    counters: dict[tuple[int, int], int] = {}
    requests: list[SampleRequest] = []
    for draw in draws:
        key = (draw.solution, draw.prefix)
        index = counters.get(key, len(works[draw.solution].draws[draw.prefix]))
        counters[key] = index + 1
        requests.append(
            SampleRequest(
                works[draw.solution].prefixes[draw.prefix],
                plan.rollout_sampler,
                derive_seed(plan.seed, problem.id, "rollout", draw.solution, draw.prefix, index),
                index,
            )
        )
    return requests


def _rows(
    problem: Problem,
    reference: Problem,
    prompt: TokenIds,
    plan: Labeling,
    engines: Engines,
    works: Sequence[_Work],
    samples: Sequence[Rollout],
    exhausted: int,
    on_policy: bool,
) -> ProblemResult:
    told, told_samples, copies = _independent(plan, works, samples)
    counts = [_prefix_counts(w, told_samples) for w in told]
    returns = plan.estimator.estimate([w.evidence(on_policy, plan) for w in told], counts)
    fused = [
        plan.fusion.fuse(found, w.evidence(on_policy, plan, everything=True))
        for found, w in zip(returns, told, strict=True)
    ]
    labels = [with_recoveries(w.solution.steps, found) for found, w in zip(fused, told, strict=True)]
    root = [r.outcome for r in told_samples] + [r.outcome for w in told for r in w.draws[0]]
    rows: list[LabeledSolution] = []
    # A sample that is no solution (blank text) has no row but stays among the draws and the cost.
    rollouts = [(solution_id(problem, s.index), s) for s in samples]
    for work, derived in zip(works, labels, strict=True):
        drawn = [r for at_prefix in work.draws for r in at_prefix]
        own = [s for s in samples if solution_id(problem, s.index) == work.solution.id]
        rollouts += [(work.solution.id, r) for r in drawn]
        own_tokens = work.searched_tokens + sum(len(s.token_ids) for s in own)
        rows.append(
            LabeledSolution(
                problem=problem,
                solution=work.solution,
                prefixes=derived.estimates,
                labels=_with_hints(derived.labels, work.scores),
                first_error=derived.first_error,
                policy=plan.policy_info,
                completer=plan.completer_info,
                tokenizer_hash=engines.completer.tokenizer.hash,
                seed=plan.seed,
                allocation=plan.kind,
                prompt_tokens=len(prompt),
                generated_tokens=own_tokens + sum(len(r.token_ids) for r in drawn),
                labeler=plan.labeler,
                marks=marks_of(
                    root,
                    work.outcomes,
                    on_policy=on_policy,
                    no_majority=plan.outcomes_from != "answers" and not reference.answers,
                    unfinished_as_wrong=plan.unfinished_as_wrong,
                )
                + (("degenerate",) if copies else ())
                + (("boundary_in_token",) if _straddles(plan, engines, work.solution) else ()),
            )
        )
    tokens = sum(len(r.token_ids) for _, r in rollouts) + sum(w.searched_tokens for w in works)
    skipped = None if rows else "no solution with a step in it"
    return ProblemResult(problem, tuple(rows), tuple(rollouts), tokens, exhausted, skipped)


def _independent(
    plan: Labeling, works: Sequence[_Work], samples: Sequence[Rollout]
) -> tuple[list[_Work], list[Rollout], bool]:
    """What labels may rest on, and whether copies were left out: a degenerate set counts once, its cost whole."""
    copied_samples = is_degenerate([samples], plan.sampler)
    copied_draws = is_degenerate([d for w in works for d in w.draws], plan.rollout_sampler)
    told = [replace(w, draws=[counted_once(d) for d in w.draws]) if copied_draws else w for w in works]
    if copied_samples or copied_draws:
        # Copies drawn for two solutions from one state are still copies: none is evidence on the other.
        told = [replace(w, nodes=()) for w in told]
    told_samples = counted_once(samples) if copied_samples else list(samples)
    return told, told_samples, copied_samples or copied_draws


def _straddles(plan: Labeling, engines: Engines, solution: Solution) -> bool:
    tokenizer = (engines.completer if solution.ids_from == "encoded" else engines.policy).tokenizer
    return bool(plan.step_format.straddling_tokens(solution.token_ids, tokenizer))


def _with_hints(labels: Sequence[StepLabel], scores: Sequence[float]) -> tuple[StepLabel, ...]:
    return tuple(replace(x, hint=p) for x, p in zip(labels, scores, strict=True)) if scores else tuple(labels)


def _prefix_counts(work: _Work, samples: Sequence[Rollout]) -> list[Counts]:
    """T+1 counts: all sampled solutions at prefix 0, the solution's own outcome at prefix T."""
    last = len(work.prefixes) - 1
    counts = [Counts.of([*(samples if t == 0 else ()), *drawn]) for t, drawn in enumerate(work.draws)]
    own = replace(Counts(n_unique=1), **{(work.solution.outcome or Outcome.ERROR).value: 1})
    counts[last] = _add(counts[last], own) if counts[last].total else own
    return counts


def _add(a: Counts, b: Counts) -> Counts:
    return Counts(**{name: getattr(a, name) + getattr(b, name) for name in Counts.__dataclass_fields__})


def _outcome(rollout: Rollout) -> Outcome:
    if rollout.outcome is None:
        raise ValueError(f"rollout {rollout.index} of problem {rollout.problem_id} is not graded")
    return rollout.outcome
