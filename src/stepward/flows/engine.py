"""``stepward engine check``: load an engine as a labelling would, and probe it."""

import asyncio
from collections.abc import Callable
from itertools import islice

from stepward.flows.build import folder_of, load_policy_for, prompt_template
from stepward.flows.config import LabelConfig
from stepward.labeling.policies.check.findings import Finding, State
from stepward.labeling.policies.check.run import check_engine
from stepward.prm.errors import ConfigError, StepwardError
from stepward.prm.policy import Policy
from stepward.prm.problems import read_problems
from stepward.prm.prompts import PromptTemplate

_PROBLEMS = 4


def check_engine_named(config: LabelConfig, *, deadline_s: float, watch: Callable[[Finding], None]) -> bool:
    """Probe the policy of a configuration with its prompt, on its first few problems.

    Args:
        config: Names policy, prompt and problems.
        deadline_s: Longest a probe may take.
        watch: Called with each finding as it is made.

    Returns:
        True where nothing failed.

    Raises:
        ConfigError: There are no two different problems.
    """
    problems = list(islice(read_problems(config.problems), _PROBLEMS))
    if len({p.text for p in problems}) < 2:
        raise ConfigError(
            [f"problems: {config.problems} holds no two different problems; the check needs them"]
        )
    try:
        policy = load_policy_for(config.policy, config)
    except StepwardError as fault:
        watch(Finding("loading", State.FAILED, str(fault), "name the engine as in stepward label --policy"))
        return False
    info = policy.info
    said = f"{info.name} {info.revision} by {info.engine} {getattr(policy, 'version', '')}".rstrip()
    watch(Finding("loading", State.OK, f"{said}, context {policy.context_length:,}"))
    try:
        template = prompt_template(config.prompt, folder_of(policy))
    except StepwardError as fault:
        watch(
            Finding("prompt", State.FAILED, str(fault), "name another one: --prompt plain, or a Jinja file")
        )
        asyncio.run(policy.close())
        return False

    async def probe(policy: Policy, template: PromptTemplate) -> list[Finding]:
        try:
            return await check_engine(policy, template, problems, deadline_s=deadline_s, watch=watch)
        finally:
            await policy.close()

    return all(f.state is not State.FAILED for f in asyncio.run(probe(policy, template)))


def shown(finding: Finding) -> str:
    """A finding as lines of text."""
    line = f"{finding.state.value:<8}{finding.probe:<20}{finding.what}"
    return f"{line}\n{'':<8}{'':<20}-> {finding.remedy}" if finding.remedy else line
