"""A labelling by hand: a scripted policy, a grader that reads the last number, and what else a test hands in."""

import asyncio
from dataclasses import replace

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.annotate import annotate
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.fusion import fusion_rule
from stepward.labeling.plan import Engines, Labeling
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.steps import StepFormat
from stepward.prm.types import (
    LabelerInfo,
    Problem,
    Reason,
    Sampler,
    Verdict,
    VerdictKind,
)
from stepward.verifiers.answer import Grader

PROBLEM = Problem("p", "What is 2 + 2 + 2?", ("6",))
RIGHT = "2 + 2 = 4\n4 + 2 = 6\nThe answer is 6."
WRONG = "2 + 2 = 5\n5 + 2 = 7\nThe answer is 7."


def script(solutions, completions):
    """Whole solutions in the order of the draws' seeds; a completion by what has been said so far."""
    left = list(solutions)
    first = {}

    def say(problem_id, so_far, seed):
        if not so_far:
            if seed not in first:
                first[seed] = left.pop(0) if left else RIGHT
            return first[seed]
        return completions(so_far)

    return scripted_policy(say)


def finish(so_far):
    """Goes on as the right and the wrong solution do: what is wrong stays wrong."""
    whole = WRONG if so_far.startswith(WRONG[:9]) else RIGHT
    return whole[len(so_far) :] if whole.startswith(so_far) else "The answer is 6."


def labelling(policy, *, allocation=None, estimator="math_shepherd", sampler=None, **changes) -> Labeling:
    allocation = allocation or FixedK(4)
    sampler = sampler or Sampler(max_tokens=400)
    info = replace(policy.info, sampler=sampler)
    plan = Labeling(
        num_solutions=2,
        sampler=sampler,
        rollout_sampler=sampler,
        step_format=StepFormat(),
        allocation=allocation,
        estimator=make_estimator(estimator, allocation=allocation.kind, constants=changes.get("constants")),
        seed=0,
        labeler=LabelerInfo(estimator, "1", ""),
        policy_info=info,
        completer_info=info,
    )
    if "fusion" in changes:
        changes["fusion"] = fusion_rule(changes["fusion"])
    return replace(plan, **changes)


def run(policy, plan, problem=PROBLEM, given=None, completer=None, **engines):
    hands = Engines(
        policy,
        completer or policy,
        lambda p: policy.tokenizer.encode(p.text + "\n"),
        engines.pop("grader", Grader()),
        **engines,
    )
    return asyncio.run(annotate(problem, plan, hands, given))


def says(kinds, name="tool"):
    """A step verifier: by step text, supported, refuted or unknown."""

    async def verify(problem, steps):
        found = []
        for step in steps:
            kind = kinds.get(step)
            reason = Reason.PARSE if kind is VerdictKind.UNKNOWN else Reason.NONE
            found.append(() if kind is None else (Verdict(kind, name, "1", reason),))
        return found

    return verify
