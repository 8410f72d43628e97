"""What a labelling is given: everything that shapes a row, and who does the work."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from stepward.labeling.evidence import AllocationRule, Estimator, LabelingConstants
from stepward.labeling.fusion import RULES, FusionRule
from stepward.labeling.outcomes import Grader, OutcomesFrom, Reviews
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.search.tree_sources import Grow
from stepward.prm.policy import Policy, RewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.types import Allocation, LabelerInfo, PolicyInfo, Problem, Sampler, TokenIds, Verdict

StepVerifier = Callable[[Problem, Sequence[str]], Awaitable[Sequence[tuple[Verdict, ...]]]]
"""Tool verdicts for each step of a solution, given the problem and the step texts."""

PromptRenderer = Callable[[Problem], TokenIds]
"""A problem's prompt as token ids (``prm.prompts``, bound to the policy's tokenizer)."""


@dataclass(frozen=True, slots=True)
class GivenSolution:
    """A solution that the user already has: a text, or a list of steps, and who wrote it."""

    problem_id: str
    steps: tuple[str, ...]
    text: str | None = None
    generator: str = "unknown"


@dataclass(frozen=True, slots=True)
class TreeSource:
    """A tree search that solutions and their first rollouts come from.

    Attributes:
        name: Of ``labeling.search.tree_sources``.
        grow: Grows one problem's tree.
        scorer: The run's reward model, for a search that values by one.
        max_tokens: Most tokens that a problem's search may sample; None = no limit.
    """

    name: str
    grow: Grow
    scorer: ScoreQueue | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Labeling:
    """All that shapes a row, apart from the engines.

    Attributes:
        num_solutions: Solutions to sample a problem; those given by the user come instead. With ``search``: so many of
            its completions of the bare problem have rows of their own.
        sampler: For solutions.
        rollout_sampler: For rollouts.
        step_format: Where steps begin and end.
        allocation: Which prefix gets the next rollout.
        estimator: Counts -> labels.
        seed: The run's seed.
        labeler: Name, version and config hash for the rows.
        policy_info: Who samples solutions, with sampler and prompt hash filled in.
        completer_info: Who samples rollouts, likewise.
        fusion: How verdicts and hints enter the labels.
        outcomes_from: What outcomes rest on.
        constants: What a pilot fixed; a reward model's scores are read through ``constants.hint``.
        uniform_from: Draws from the bare problem from which one whose draws are all right, or all wrong, gets no
            rollouts; 0 = never.
        unfinished_as_wrong: Draws without an answer count as wrong, so that they tell something.
        search: A tree search that solutions and their first rollouts come from, in place of sampling.
    """

    num_solutions: int
    sampler: Sampler
    rollout_sampler: Sampler
    step_format: StepFormat
    allocation: AllocationRule
    estimator: Estimator
    seed: int
    labeler: LabelerInfo
    policy_info: PolicyInfo
    completer_info: PolicyInfo
    fusion: FusionRule = RULES["returns"]
    outcomes_from: OutcomesFrom = "answers"
    constants: LabelingConstants = field(default_factory=LabelingConstants)
    uniform_from: int = 8
    unfinished_as_wrong: bool = False
    search: TreeSource | None = None

    @property
    def kind(self) -> Allocation:
        """How rollouts were spread, for the rows: by the search where there is one, whatever came on top."""
        return self.allocation.kind if self.search is None else Allocation.TREE_SEARCH


@dataclass(frozen=True, slots=True)
class Engines:
    """Who does the work: handed in, never made here.

    Attributes:
        policy: Samples solutions.
        completer: Samples rollouts.
        render: A problem's prompt.
        grader: Outcome of a text.
        verify_steps: Tools, and the judge where it is one of them.
        reward_model: Scores every step before the first rollout; its scores are hints.
        reviews: The judge whose consensus decides outcomes (SPARK).
        others: Further engines, such as the judge's, that are freed with these.
    """

    policy: Policy
    completer: Policy
    render: PromptRenderer
    grader: Grader
    verify_steps: StepVerifier | None = None
    reward_model: RewardModel | None = None
    reviews: Reviews | None = None
    others: tuple[Policy, ...] = ()
