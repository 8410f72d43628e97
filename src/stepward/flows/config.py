"""What a user can set, checked as text comes in. Below ``flows`` no configuration object exists.

``row_settings`` holds what shapes the rows and nothing else: the output folder, the number of workers and the
budgets can change between a run and its resumption without changing a byte.
"""

from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stepward.labeling.fusion import RULES
from stepward.labeling.outcomes import OutcomesFrom
from stepward.prm.errors import ConfigError
from stepward.prm.steps import StepFormat
from stepward.prm.types import Sampler

RECIPES = Path(__file__).parent / "recipes"


class Config(BaseModel):
    """Settings of one command: unknown keys are refused, and nothing changes once it is checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplerConfig(Config):
    """How tokens are drawn; see ``prm.types.Sampler``."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    max_tokens: int = Field(default=1024, ge=1)
    stop: tuple[str, ...] = ()

    def build(self) -> Sampler:
        """The record that engines take."""
        return Sampler(**self.model_dump())


class StepsConfig(Config):
    """Where steps begin and end (``prm.steps.StepFormat``), and which prefixes are labelled (``every_mth``)."""

    delimiter: str = "newline"
    min_step_tokens: int = Field(default=0, ge=0)
    max_step_tokens: int = Field(default=0, ge=0)
    confidence: float = Field(default=0.8, gt=0, lt=1)
    label_every: int = Field(default=1, ge=1)

    def build(self) -> StepFormat:
        """The StepFormat; ``label_every`` is the labelling's and no part of it."""
        return StepFormat(**self.model_dump(exclude={"label_every"}))


class PricesConfig(Config):
    """What a run costs, in one currency; read by ``stepward plan`` alone.

    Attributes:
        million_prompt_tokens: A million tokens of prompts and prefixes.
        million_generated_tokens: A million sampled tokens.
        gpu_hour: An hour of one GPU.
        hour: An hour of the machine.
        currency: Its name.
    """

    million_prompt_tokens: float = Field(default=0.0, ge=0)
    million_generated_tokens: float = Field(default=0.0, ge=0)
    gpu_hour: float = Field(default=0.0, ge=0)
    hour: float = Field(default=0.0, ge=0)
    currency: str = "USD"


class LabelConfig(Config):
    """A labelling run.

    Attributes:
        problems: JSONL, Parquet, a ``datasets`` folder, a Hub id, or ``generator:N``.
        out: The dataset folder.
        fold: ``i/n``: only the problems whose ids hash to the i-th of n folds, which share none.
        limit: Only so many of the first problems.
        solutions: A file of solutions to label instead of sampling them.
        policy: Who samples solutions: ``embedded``, a folder, a Hub id, ``replay:FILE``, ``vllm:MODEL``, ...
        completer: Who samples rollouts; None = the policy.
        allocation: Which prefix gets the next rollout.
        labeler: Counts -> labels.
        search: A tree search that solutions and their first rollouts come from (``labeling.search.tree_sources``);
            None samples solutions.
        search_options: Options of the search by name.
        search_tokens: Most tokens that a problem's search may sample.
        num_rollouts: K, where the allocation has one.
        price: Nats a token below which information is not bought (``information_gain``); None = by a pilot, so that
            a rollout as long as a solution has to tell .025 nat.
        allocation_options: Options of the allocation by name, as its class has them.
        verifiers: Tool verifiers of steps.
        judge: Who judges steps: a policy by name. Its verdicts join the tools'.
        judge_samples: Reviews a solution.
        judge_max_tokens: Most tokens a review may have.
        judge_meta_critique: Each review is criticised and merged before it votes (SPARK's meta-critique): three turns
            in place of one.
        hint: A reward model, folder or Hub id, that scores every step before the first rollout.
        fusion: How verdicts and hints enter the labels; None = in the posterior where the labeler has one and there
            is anything to fuse, else returns alone.
        verifier_quality: Precision and recall of verifiers: ``assumed``, ``learned`` (Dawid-Skene on the pilot), or
            a labelled file of ProcessBench's format, which must not be reported on.
        outcomes: What outcomes rest on: the problems' ``answers``, ``votes`` of the solutions, or ``spark``.
        uniform_from: Draws from the bare problem from which one whose draws are all right, or all wrong, gets no
            rollouts; 0 = never.
        grid: The posterior's grid: the ``default``, or the one that predicts K = 8 rollouts at every prefix of the
            pilot's problems best (``pilot``: other points or fitted weights where they clearly do). ``auto`` is
            ``pilot`` where the run is large enough to pay for it (``flows.pilot``), else ``default``.
        pilot_problems: Problems of the pilot that fixes constants.
        shard_problems: Problems a shard; the unit of resumption.
        problems_in_flight: Problems labelled at the same time in one worker.
        workers: Processes, each with an engine of its own.
        batch_size: Rollouts that an engine of ours decodes at once.
        prefix_cache_mib: Memory for keys and values of prefixes in an engine of ours. The run says how often what it
            dropped was computed again (``prefix_hits_of_possible``) and warns below .9.
        budget_tokens: Stop at a problem boundary once so many tokens were sampled. With ``information_gain`` and no
            price of its own, a new run's price is bisected on the pilot so that the budget covers all problems.
        budget_hours: The same for hours.
        gpus: GPUs that the engines hold, for ``stepward plan``.
        prices: A price table, for ``stepward plan``.
        metrics_port: Serve the run's figures to Prometheus on this port of the loopback; None = do not.
    """

    problems: str
    out: Path
    solutions: Path | None = None
    fold: str | None = Field(default=None, pattern=r"^[1-9]\d*/[1-9]\d*$")
    limit: int | None = Field(default=None, ge=1)
    policy: str = "embedded"
    completer: str | None = None
    prompt: str | None = None
    sampler: SamplerConfig = SamplerConfig()
    rollout_sampler: SamplerConfig | None = None
    steps: StepsConfig = StepsConfig()
    num_solutions: int = Field(default=4, ge=1)
    search: str | None = None
    search_options: dict[str, float | int | bool] = Field(default_factory=dict)
    search_tokens: int | None = Field(default=None, ge=1)
    allocation: str = "information_gain"
    num_rollouts: int = Field(default=4, ge=0)
    labeler: str = "changepoint"
    truncated_as: Literal["exclude", "wrong", "bounds"] = "bounds"
    price: float | None = Field(default=None, gt=0)
    allocation_options: dict[str, float | int | bool] = Field(default_factory=dict)
    verifiers: tuple[str, ...] = ()
    judge: str | None = None
    judge_samples: int = Field(default=8, ge=1)
    judge_max_tokens: int = Field(default=2048, ge=1)
    judge_meta_critique: bool = False
    hint: str | None = None
    fusion: str | None = None
    verifier_quality: str = "assumed"
    outcomes: OutcomesFrom = "answers"
    uniform_from: int = Field(default=8, ge=0)
    grid: Literal["auto", "default", "pilot"] = "auto"
    pilot_problems: int = Field(default=16, ge=1)
    seed: int = Field(default=0, ge=0)
    shard_problems: int = Field(default=50, ge=1)
    problems_in_flight: int = Field(default=256, ge=1)
    workers: int = Field(default=1, ge=1)
    batch_size: int = Field(default=128, ge=1)
    prefix_cache_mib: int = Field(default=256, ge=1)
    budget_tokens: int | None = Field(default=None, ge=1)
    budget_hours: float | None = Field(default=None, gt=0)
    gpus: int = Field(default=0, ge=0)
    prices: PricesConfig | None = None
    metrics_port: int | None = Field(default=None, ge=0, le=65535)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.allocation not in ("none", "information_gain") and self.num_rollouts == 0:
            raise ValueError("num_rollouts is 0: name allocation 'none' to label without rollouts")
        if faults := [*self._fusion_faults(), *self._search_faults()]:
            raise ValueError("; ".join(faults))
        return self

    def _search_faults(self) -> list[str]:
        if self.search is None:
            return (
                ["search_options and search_tokens are of a search: name one"] if self.search_options else []
            )
        from stepward.labeling.search.tree_sources import tree_faults

        faults = tree_faults(self.search, self.search_options, has_scores=self.hint is not None)
        if self.solutions is not None:
            faults.append("search finds solutions: give solutions or a search, not both")
        if self.policy.startswith("replay:"):
            faults.append("search draws where it likes: a replay log cannot serve it")
        if self.completer not in (None, self.policy) or self.rollout_sampler not in (None, self.sampler):
            faults.append(
                "search draws solutions and rollouts alike: leave completer and rollout_sampler out"
            )
        if self.outcomes != "answers":
            faults.append(f"search follows outcomes, which need reference answers, not {self.outcomes!r}")
        if self.steps.delimiter == "low_confidence":
            faults.append(
                "search cuts steps by their text: another step delimiter than low_confidence is needed"
            )
        return faults

    def _fusion_faults(self) -> list[str]:
        faults: list[str] = []
        speakers = bool(self.verifiers or self.judge)
        if self.fusion is not None and self.fusion not in RULES:
            faults.append(f"fusion {self.fusion!r} is unknown; one of {', '.join(RULES)}")
        elif self.fusion is not None:
            rule = RULES[self.fusion]
            if rule.needs_verdicts and not speakers:
                faults.append(f"fusion {rule.name!r} needs verdicts: name verifiers or a judge")
            if rule.in_posterior and self.labeler != "changepoint":
                faults.append(f"fusion 'posterior' needs labeler 'changepoint', not {self.labeler!r}")
            if rule.name == "consensus" and self.judge is None:
                faults.append("fusion 'consensus' needs a judge to agree with: name one")
        if "judge" in self.verifiers and self.judge is None:
            faults.append("verifier 'judge' needs to know who judges: give judge, a policy")
        if self.judge_meta_critique and self.judge is None:
            faults.append("judge_meta_critique needs to know who judges: give judge, a policy")
        if self.outcomes == "spark" and self.judge is None:
            faults.append("outcomes 'spark' rest on a judge's reviews: give judge, a policy")
        if self.verifier_quality != "assumed" and not speakers:
            faults.append(f"verifier_quality {self.verifier_quality!r} needs verifiers or a judge")
        if self.verifier_quality not in ("assumed", "learned") and not Path(self.verifier_quality).is_file():
            faults.append(f"verifier_quality: no file {self.verifier_quality}; give one, assumed or learned")
        return faults

    @property
    def fusion_name(self) -> str:
        """The fusion rule, by name."""
        if self.fusion is not None:
            return self.fusion
        anything = bool(self.verifiers or self.judge or self.hint)
        return "posterior" if anything and self.labeler == "changepoint" else "returns"

    @property
    def reads_posterior(self) -> bool:
        """Whether anything reads the change-point posterior."""
        return self.labeler == "changepoint" or self.allocation == "information_gain"

    @property
    def fuses_in_posterior(self) -> bool:
        """Whether the posterior itself reads verdicts and hints."""
        return RULES[self.fusion_name].in_posterior

    def row_settings(self) -> dict[str, Any]:
        """What the manifest holds and hashes: JSON values, file names without their folders."""
        settings = self.model_dump(mode="json", exclude=set(_NOT_ROW_SHAPING))
        settings["problems"] = _portable(self.problems)
        if self.solutions is not None:
            settings["solutions"] = self.solutions.name
        for role in ("policy", "completer", "judge", "hint", "verifier_quality"):
            if settings[role] is not None:
                settings[role] = _portable(settings[role])
        # Left out at their defaults, so that folders from before a setting could be named are of the same run; one
        # without a grid goes on with the constants that it holds.
        if self.grid == "auto":
            del settings["grid"]
        if not self.judge_meta_critique:
            del settings["judge_meta_critique"]
        if self.search is None:
            for name in ("search", "search_options", "search_tokens"):
                del settings[name]
        return settings


_NOT_ROW_SHAPING = (
    "out",
    "workers",
    "batch_size",
    "prefix_cache_mib",
    "problems_in_flight",
    "budget_tokens",
    "budget_hours",
    "gpus",
    "prices",
    "metrics_port",
)


class TrainConfig(Config):
    """A PRM training run.

    Attributes:
        data: Dataset folder.
        more_data: Further dataset folders, labelled with the same steps.
        out: Where the PRM goes.
        base: Backbone: ``embedded``, a folder, or a Hub id.
        prompt: How the problem is put to the model; None = as the base wants it.
        reference: A frozen language model inside the PRM whose token log-probabilities are an extra input.
        loss: Name of the loss, see ``training.objectives``.
        head: Name of the head; None = the loss's usual one.
        target: What a step's label is turned into, see ``training.collate``.
        rollouts_per_problem: Train on so many of each problem's rollouts too: for losses on outcomes and pairs.
        block_tokens: n > 0 puts the outcome at every n-th step token (VGS); ``target`` then has no say.
        pair_margin: Least difference of targets within a pair.
        pair_scope: Pairs are of siblings, or of any two steps of a problem.
        share_prompts: A problem's solutions share a batch and one copy of its prompt (causal models).
        row_tokens: Pack solutions into rows of so many ids; 0 = one solution a row.
        micro_batch_tokens: Most ids of one forward pass.
        save_every_steps: A checkpoint every so many steps, besides one an epoch.
        validation_share: Share of problems held out for validation, split by problem.
        device: Where to compute; under ``accelerate launch`` its own configuration decides.
        lora_rank: Train adapters of this rank instead of all weights; 0 = all.
        frozen_backbone: Train the head alone.
        trackers: Names that accelerate knows: ``tensorboard``, ``wandb``, ...
        licence: Of the weights, for the model card.
    """

    data: Path
    more_data: tuple[Path, ...] = ()
    out: Path
    base: str = "embedded"
    prompt: str | None = None
    reference: str | None = None
    loss: str = "bce"
    head: str | None = None
    target: str = "label"
    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=2e-3, gt=0)
    weight_decay: float = Field(default=0.05, ge=0)
    rollouts_per_problem: int = Field(default=0, ge=0)
    block_tokens: int = Field(default=0, ge=0)
    pair_margin: float = Field(default=0.2, gt=0, le=1)
    pair_scope: Literal["siblings", "problem"] = "siblings"
    share_prompts: bool = False
    row_tokens: int = Field(default=0, ge=0)
    micro_batch_tokens: int = Field(default=8192, ge=1)
    save_every_steps: int = Field(default=0, ge=0)
    validation_share: float = Field(default=0.05, ge=0, lt=1)
    device: str = "cpu"
    bfloat16: bool = False
    lora_rank: int = Field(default=0, ge=0)
    frozen_backbone: bool = False
    gradient_checkpointing: bool = False
    liger: bool = False
    trackers: tuple[str, ...] = ()
    licence: str = "unknown"
    seed: int = Field(default=0, ge=0)


class EvaluateConfig(Config):
    """An evaluation of a PRM on solutions with known first errors.

    Attributes:
        prm: The PRM: a folder or a Hub id.
        out: Results folder.
        processbench: Files of ProcessBench's format whose F1 is reported.
        threshold_from: A file of the same format, of other problems, that the threshold is chosen on.
        threshold: A threshold fixed by hand, instead.
        samples: A file of sampled solutions for best-of-N.
        aggregation_from: A file of samples of other problems, on which an aggregation of step scores is learned.
        baseline_policy: Also score by position and length, by this policy's log-probability, and by the pass rate
            of a problem's other solutions.
        num_orders: Orders of each problem's samples that best-of-N is averaged over.
        bootstrap: Resamples of problems for the intervals.
    """

    prm: str
    out: Path
    processbench: tuple[Path, ...] = ()
    threshold_from: Path | None = None
    threshold: float | None = Field(default=None, ge=0, le=1)
    samples: Path | None = None
    aggregation_from: Path | None = None
    baseline_policy: str | None = None
    num_orders: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0)
    bootstrap: int = Field(default=2000, ge=100)

    @model_validator(mode="after")
    def _has_threshold(self) -> Self:
        if self.processbench and (self.threshold is None) == (self.threshold_from is None):
            raise ValueError(
                "processbench needs a threshold that was not chosen on it: give threshold_from FILE (a split of "
                "other problems) or threshold VALUE, and not both"
            )
        return self


C = TypeVar("C", bound=Config)


def parse(kind: type[C], recipe: str | Path | None = None, **given: Any) -> C:
    """A configuration from a recipe and from what was given on top (None = not given).

    Args:
        kind: The configuration's class.
        recipe: A YAML file, or the name of one in ``flows/recipes``.
        given: Values by field name; a dot-free nested field is given as a dict.

    Raises:
        ConfigError: All faults at once.
    """
    settings = _read_recipe(recipe) if recipe is not None else {}
    for name, value in given.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            settings[name] = {**settings[name], **{k: v for k, v in value.items() if v is not None}}
        elif isinstance(value, dict):
            settings[name] = {k: v for k, v in value.items() if v is not None}
        elif value is not None:
            settings[name] = value
    try:
        return kind.model_validate(settings)
    except ValidationError as fault:
        raise ConfigError([_describe(error, kind) for error in fault.errors()]) from None


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    path = Path(recipe)
    if not path.suffix and not path.exists():
        path = RECIPES / f"{recipe}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in RECIPES.glob("*.yaml"))
        raise ConfigError([f"recipe: no file {path}; give a YAML file or one of {', '.join(known)}"])
    try:
        settings = yaml.safe_load(path.read_text())
    except yaml.YAMLError as fault:
        raise ConfigError([f"recipe {path}: not YAML: {fault}"]) from None
    if not isinstance(settings, dict):
        raise ConfigError(
            [f"recipe {path}: a mapping of settings is needed, found {type(settings).__name__}"]
        )
    return settings


def _describe(error: Any, kind: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "settings"
    if error["type"] == "extra_forbidden":
        known = _model_at(kind, error["loc"][:-1]).model_fields
        return f"{place}: unknown key; known keys: {', '.join(sorted(known))}"
    said = error["msg"].removeprefix("Value error, ")
    return f"{place}: {said} (got {error.get('input')!r:.200})" if error["loc"] else f"{place}: {said}"


def _model_at(kind: type[BaseModel], place: tuple[str | int, ...]) -> type[BaseModel]:
    """The class of the settings at a place, such as ``SamplerConfig`` at ``sampler``."""
    for name in place:
        annotation = kind.model_fields[name].annotation if isinstance(name, str) else None
        choices = (annotation, *get_args(annotation))
        kind = next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), kind)
    return kind


def _portable(name: str) -> str:
    """A source's name without the folders of one machine."""
    kind, colon, rest = name.partition(":")
    if colon and Path(rest).exists():
        return f"{kind}:{Path(rest).name}"
    return Path(name).name if Path(name).exists() else name
