"""``stepward engine check``: is an engine fit for labelling? Every probe gives findings with a remedy.

A probe samples a little and compares what came back with what a labelling relies on: ids that survive, seeds that
count, limits and stop strings that are kept. What an engine does not offer (likelihoods, cache counts) is said and
does not fail.
"""

import asyncio
from collections.abc import Callable, Sequence

from stepward.labeling.policies.check.findings import Bench, Finding, Probe, State, Unfit
from stepward.labeling.policies.check.limits import LIMIT_PROBES
from stepward.labeling.policies.check.prompt import check_prompt
from stepward.labeling.policies.check.sampling import SAMPLING_PROBES
from stepward.labeling.policies.check.speed import SPEED_PROBES
from stepward.prm.errors import EngineError, ReplayExhausted, StepwardError
from stepward.prm.policy import Policy
from stepward.prm.prompts import PromptTemplate
from stepward.prm.types import Problem


async def check_engine(
    policy: Policy,
    template: PromptTemplate,
    problems: Sequence[Problem],
    *,
    seed: int = 0,
    num_tokens: int = 32,
    deadline_s: float = 60.0,
    watch: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Probe an engine, one probe after another.

    Args:
        policy: The engine, loaded; the caller closes it.
        template: The prompt that a labelling would use.
        problems: At least two with different statements.
        seed: Of the probes.
        num_tokens: Length of probing rollouts.
        deadline_s: Longest a probe may take.
        watch: Called with each finding as it is made.

    Returns:
        All findings. A labelling should not start where one has ``State.FAILED``.

    Raises:
        ValueError: Fewer than two problems were given.
    """

    if len({p.text for p in problems}) < 2:
        raise ValueError("checking an engine needs two problems with different statements")
    findings: list[Finding] = []

    def add(made: Sequence[Finding]) -> None:
        findings.extend(made)
        for finding in made:
            watch(finding)

    made, prompts = check_prompt(policy.tokenizer, template, problems)
    add(made)
    if len(prompts) < len(problems):
        return findings
    if max(map(len, prompts)) + 2 > policy.context_length:
        longest = max(map(len, prompts))
        what = f"a prompt of {longest} tokens leaves no room in the context of {policy.context_length}"
        add([Finding("prompt", State.FAILED, what, "use a shorter prompt, or serve a longer context")])
        return findings
    room = policy.context_length - max(map(len, prompts))
    bench = Bench(policy, template, tuple(problems), tuple(prompts), seed, max(2, min(num_tokens, room // 2)))
    for name, probe in (*SAMPLING_PROBES, *LIMIT_PROBES, *SPEED_PROBES):
        add(await _probed(name, probe, bench, deadline_s))
    return findings


async def _probed(name: str, probe: Probe, bench: Bench, deadline_s: float) -> Sequence[Finding]:
    """What a probe finds; whatever goes wrong in it becomes a finding."""
    try:
        async with asyncio.timeout(deadline_s):
            return await probe(bench)
    except TimeoutError:
        what = f"no answer within {deadline_s:g} s"
        return [
            Finding(
                name, State.FAILED, what, "the engine hangs or is very slow: see its log, or raise --deadline"
            )
        ]
    except ReplayExhausted as fault:
        return [Finding(name, State.UNKNOWN, f"the log cannot serve this probe: {fault}")]
    except Unfit as fault:
        return [Finding(name, State.FAILED, fault.what, fault.remedy)]
    except EngineError as fault:
        remedy = "the engine refuses what every labelling asks for: see the message and the engine's log"
        return [Finding(name, State.FAILED, str(fault), remedy)]
    except StepwardError as fault:
        return [Finding(name, State.FAILED, str(fault), "see the message")]
