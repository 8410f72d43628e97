"""Names -> objects. The only file that knows both a configuration and the classes that it names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stepward import __version__
from stepward.flows.config import LabelConfig
from stepward.flows.grading import make_grader
from stepward.flows.logged import replay_of
from stepward.flows.problems import problems_of
from stepward.flows.verify import verifier_named
from stepward.labeling.allocation.no_rollouts import NoRollouts
from stepward.labeling.allocation.registry import allocation_options, make_allocation
from stepward.labeling.constants import to_json
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.every_mth import EveryMth, EveryMthEstimator
from stepward.labeling.evidence import AllocationRule, LabelingConstants
from stepward.labeling.fusion import fusion_rule
from stepward.labeling.outcomes import Reviews
from stepward.labeling.plan import Engines, Labeling, StepVerifier, TreeSource
from stepward.labeling.policies.embedded import embedded_folder
from stepward.labeling.policies.registry import load_policy, policy_names
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.search.tree_sources import make_tree
from stepward.prm.dataset.manifest import Manifest, config_hash
from stepward.prm.errors import ConfigError, ModelError
from stepward.prm.models.load import load as load_reward_model
from stepward.prm.policy import Policy
from stepward.prm.prompts import PromptTemplate, chat_template, file_template, plain_template
from stepward.prm.types import Allocation, LabelerInfo, Problem, Sampler, TokenIds, Verdict
from stepward.verifiers.base import Verifier
from stepward.verifiers.critiques import StepVotes
from stepward.verifiers.judge import AS_IS, Judge


@dataclass(frozen=True, slots=True)
class LabelingJob:
    """Everything one labelling process needs, built once."""

    plan: Labeling
    engines: Engines
    manifest: Manifest

    async def close(self) -> None:
        """Free the engines."""
        await self.engines.policy.close()
        if self.engines.completer is not self.engines.policy:
            await self.engines.completer.close()
        for other in self.engines.others:
            await other.close()


def build_labeling(
    config: LabelConfig,
    constants: LabelingConstants,
    engines: Engines | None = None,
    *,
    pilot: Mapping[str, Any] | None = None,
) -> LabelingJob:
    """Bind everything that a labelling run names.

    Args:
        config: The run.
        constants: What a pilot fixed (``flows.pilot``).
        engines: Those that are loaded already; None loads them.
        pilot: What the manifest says of the pilot.

    Raises:
        ConfigError: A name that no registry knows.
        ModelError: A checkpoint without tokenizer, or a template that does not fit.
    """
    allocation = _allocation(config, constants)
    kind = allocation.kind if config.search is None else Allocation.TREE_SEARCH
    estimator = make_estimator(
        config.labeler, allocation=kind, truncated_as=config.truncated_as, constants=constants
    )
    if (every := config.steps.label_every) > 1:
        allocation, estimator = EveryMth(allocation, every), EveryMthEstimator(estimator, every)
    engines = engines or build_engines(config)
    template = prompt_template(config.prompt, folder_of(engines.policy))
    sampler = config.sampler.build()
    rollout_sampler = config.rollout_sampler.build() if config.rollout_sampler else sampler
    settings = config.row_settings()
    labeler = LabelerInfo(config.labeler, estimator.version, config_hash(settings))
    policy_info = replace(engines.policy.info, sampler=sampler, prompt_hash=template.hash)
    completer_info = replace(engines.completer.info, sampler=rollout_sampler, prompt_hash=template.hash)
    plan = Labeling(
        num_solutions=config.num_solutions,
        sampler=sampler,
        rollout_sampler=rollout_sampler,
        step_format=config.steps.build(),
        allocation=allocation,
        estimator=estimator,
        seed=config.seed,
        labeler=labeler,
        policy_info=policy_info,
        completer_info=completer_info,
        fusion=fusion_rule(config.fusion_name),
        outcomes_from=config.outcomes,
        constants=constants,
        uniform_from=config.uniform_from,
        unfinished_as_wrong=config.truncated_as == "wrong",
        search=_search(config, engines),
    )
    stored = to_json(constants, allocation.kind) | ({"pilot": dict(pilot)} if pilot else {})
    stored |= _engine_versions(engines)
    manifest = Manifest(
        config=settings,
        code_version=__version__,
        allocation=kind,
        labeler=labeler,
        seeds={"run": config.seed},
        policy=policy_info,
        completer=completer_info,
        constants=stored,
        prompts={template.hash: template.shown},
        step_format=json.loads(config.steps.build().to_json()),
        tokenizer_hash=engines.completer.tokenizer.hash,
    )
    return LabelingJob(plan, engines, manifest)


def _search(config: LabelConfig, engines: Engines) -> TreeSource | None:
    if config.search is None:
        return None
    folder = folder_of(engines.policy)
    template = chat_template(folder) if folder is not None and _has_chat_template(folder) else AS_IS
    scorer = None if engines.reward_model is None else ScoreQueue(engines.reward_model)
    return TreeSource(
        config.search, make_tree(config.search, config.search_options, template), scorer, config.search_tokens
    )


def _engine_versions(engines: Engines) -> dict[str, dict[str, str]]:
    """Versions of engines whose draws depend on them: with another one a run is another run."""
    roles = {"policy": engines.policy, "completer": engines.completer}
    said = {role: str(v) for role, p in roles.items() if (v := getattr(p, "version", None))}
    return {"engine_versions": said} if said else {}


def build_engines(config: LabelConfig) -> Engines:
    """Load policy, completer, prompt, grader, step verifiers, judge and reward model of a run."""
    policy = load_policy_for(config.policy, config)
    same = config.completer in (None, config.policy)
    verifiers = [verifier_named(name) for name in config.verifiers if name != "judge"]
    judge = None if config.judge is None else _judge(config)
    spark = config.outcomes == "spark"
    if judge is not None and not spark:
        verifiers.append(judge)
    return Engines(
        policy=policy,
        completer=policy if same else load_policy_for(str(config.completer), config),
        render=partial(_render, prompt_template(config.prompt, folder_of(policy)), policy),
        grader=make_grader(),
        verify_steps=_step_verifier(verifiers),
        reward_model=None if config.hint is None else load_reward_model(config.hint),
        reviews=_reviews(judge) if judge is not None and spark else None,
        others=() if judge is None else (judge.policy,),
    )


def _judge(config: LabelConfig) -> Judge:
    """The judge of a run, prompted through its own chat template where it has one."""
    assert config.judge is not None
    policy = load_policy_for(config.judge, config)
    folder = folder_of(policy)
    return Judge(
        policy=policy,
        template=chat_template(folder) if folder is not None and _has_chat_template(folder) else AS_IS,
        sampler=Sampler(temperature=0.7, top_p=0.95, max_tokens=config.judge_max_tokens),
        num_samples=config.judge_samples,
        meta_critique=config.judge_meta_critique,
        seed=config.seed,
    )


def _reviews(judge: Judge) -> Reviews:
    async def reviews(
        problem: Problem, steps: Sequence[str]
    ) -> tuple[Sequence[StepVotes], list[tuple[Verdict, ...]]]:
        votes = await judge.votes(problem, steps)
        return votes.steps, judge.verdicts(votes, len(steps))

    return reviews


def load_policy_for(name: str, config: LabelConfig | None = None) -> Policy:
    """The policy of that name, for a labelling run where one is given.

    A replay of solutions needs the run's problems to know which problem a solution belongs to.
    """
    engine, _, argument = name.partition(":")
    if engine == "replay" and config is not None:
        return replay_of(Path(argument), problems_of(config))
    ours = engine in ("embedded", "transformers") or engine not in policy_names()
    if not ours or config is None:
        return load_policy(name)
    return load_policy(name, batch_size=config.batch_size, prefix_cache_mib=config.prefix_cache_mib)


def checkpoint_folder(name: str) -> Path | str:
    """The folder of a checkpoint by name: ``embedded``, a folder, or a Hub id (which is left as it is)."""
    return embedded_folder() if name == "embedded" else name


def prompt_template(name: str | None, folder: Path | None) -> PromptTemplate:
    """A prompt template by name.

    Args:
        name: ``plain``, ``chat``, a Jinja file, or None: the checkpoint's own (``prompt.jinja``, else its chat
            template), else plain.
        folder: Where the checkpoint lies; None for a log or a text-only endpoint, which has none.

    Raises:
        ModelError: ``chat`` without a chat template, or a template file that cannot be read.
    """
    if name == "chat" and folder is None:
        raise ModelError("prompt 'chat': this policy has no checkpoint folder; name plain or a Jinja file")
    if name == "plain" or (name is None and folder is None):
        return plain_template()
    if name == "chat":
        assert folder is not None
        return chat_template(folder)
    if name is not None:
        return file_template(name)
    assert folder is not None
    if (folder / "prompt.jinja").is_file():
        return file_template(folder / "prompt.jinja")
    return chat_template(folder) if _has_chat_template(folder) else plain_template()


def folder_of(policy: Policy) -> Path | None:
    """Where a policy's checkpoint lies, whatever name it was loaded by; None where it has none."""
    folder: object = getattr(policy, "folder", None)
    return folder if isinstance(folder, Path) else None


def _has_chat_template(folder: Path) -> bool:
    config = folder / "tokenizer_config.json"
    stated = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    return (folder / "chat_template.jinja").is_file() or bool(stated.get("chat_template"))


def _allocation(config: LabelConfig, constants: LabelingConstants) -> AllocationRule:
    if config.allocation == "none":
        return NoRollouts()
    known = allocation_options(config.allocation)
    given: dict[str, object] = dict(config.allocation_options)
    if unknown := sorted(set(given) - set(known) | set(given) & {"constants"}):
        raise ConfigError(
            [
                f"allocation_options: {config.allocation} has no {u!r}; it has {', '.join(known)}"
                for u in unknown
            ]
        )
    if "constants" in known:
        given["constants"] = constants
    if "num_rollouts" in known:
        given.setdefault("num_rollouts", config.num_rollouts)
    if "truncated_as_wrong" in known:
        given.setdefault("truncated_as_wrong", config.truncated_as == "wrong")
    try:
        return make_allocation(config.allocation, **given)
    except (TypeError, ValueError) as fault:
        raise ConfigError([f"allocation_options: {fault}"]) from fault


def _render(template: PromptTemplate, policy: Policy, problem: Problem) -> TokenIds:
    return template.render(problem, policy.tokenizer).ids


def _step_verifier(verifiers: list[Verifier]) -> StepVerifier | None:
    """All verdicts of all verifiers on each step, in the order in which they were named."""
    if not verifiers:
        return None

    async def verify(problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        per_verifier = [await v.verify(problem, steps) for v in verifiers]
        return [
            tuple(v for verdicts in at_step for v in verdicts) for at_step in zip(*per_verifier, strict=True)
        ]

    return verify
