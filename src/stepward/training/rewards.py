"""A process reward model inside reinforcement learning: reward functions for TRL's GRPO trainer and for verl.

The default is PURE's min-form (Cheng et al. 2025): a solution is worth its weakest step, so that writing more steps
cannot raise the reward, as it does with a sum. Guards catch what policies do to a reward model that has no format
limits: one giant step, hundreds of tiny ones, repetition, and solved problems appended after the answer.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepward.prm.errors import InputError
from stepward.prm.models.inputs import InputRefused
from stepward.prm.policy import RewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem

FLOOR = -1.0
PROBLEM_FIELDS = ("problem", "question", "prompt_text")


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits on a completion; one that breaks any of them gets the floor reward.

    Attributes:
        min_steps: Fewest steps; 2 keeps a policy from answering without working.
        max_steps: Most steps.
        min_step_chars: Shortest step.
        max_step_chars: Longest step.
        max_repeats: Most times that one step may stand in a solution, white space and case aside.
        answer: Pattern of the final answer, or None. Steps after the first one that matches are not allowed.
    """

    min_steps: int = 1
    max_steps: int = 64
    min_step_chars: int = 2
    max_step_chars: int = 4000
    max_repeats: int = 2
    answer: str | None = None

    def broken(self, steps: Sequence[str]) -> str | None:
        """The first limit that the steps break, by name, or None."""
        if len(steps) < self.min_steps:
            return "too_few_steps"
        if len(steps) > self.max_steps:
            return "too_many_steps"
        if any(len(s.strip()) < self.min_step_chars for s in steps):
            return "short_step"
        if any(len(s) > self.max_step_chars for s in steps):
            return "long_step"
        repeats = Counter(" ".join(s.split()).casefold() for s in steps)
        if repeats and max(repeats.values()) > self.max_repeats:
            return "repeated_step"
        if self.answer is not None:
            found = [i for i, s in enumerate(steps) if re.search(self.answer, s)]
            if found and found[0] != len(steps) - 1:
                return "text_after_answer"
        return None


@dataclass(frozen=True, slots=True)
class SolutionReward:
    """The reward of one completion.

    Attributes:
        reward: In [-1, 1].
        credits: One a step; they add up to the reward. Empty where a guard was broken.
        scores: P(step is right), one a step. Empty where a guard was broken.
        broken: The guard, or an empty text.
    """

    reward: float
    credits: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    broken: str = ""


def min_form(scores: Sequence[float], temperature: float = 0.1) -> tuple[float, ...]:
    """PURE's step credits r*_t = softmax(-r / T)_t r_t with r = 2 score - 1; their sum is the reward.

    Args:
        scores: P(step is right).
        temperature: T > 0.

    Returns:
        As many credits as scores; their sum lies between the least and the mean of r.
    """
    rewards = [2 * s - 1 for s in scores]
    least = min(rewards)
    raised = [math.exp(-(r - least) / temperature) for r in rewards]
    total = sum(raised)
    return tuple(w / total * r for w, r in zip(raised, rewards, strict=True))


@dataclass(frozen=True, slots=True)
class PrmReward:
    """Scores completions with a reward model and turns step scores into rewards.

    Attributes:
        model: Loaded or served; its scores are P(step is right).
        step_format: How a completion is cut into steps; the model's own.
        guards: Limits that keep the reward from being farmed.
        temperature: Of the min-form.
        counts: How many completions were scored and how many broke which guard.
    """

    model: RewardModel
    step_format: StepFormat
    guards: Guards = field(default_factory=Guards)
    temperature: float = 0.1
    counts: Counter[str] = field(default_factory=Counter, compare=False)

    def __call__(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[SolutionReward]:
        """Rewards of the completions, scored in one batch.

        Raises:
            ModelError: The reward model failed: a failure is never a reward.
        """
        steps = [[p.text for p in self.step_format.split(c)] for c in completions]
        results: list[SolutionReward | None] = [None] * len(steps)
        for i, own in enumerate(steps):
            if broken := self.guards.broken(own) or ("" if own else "too_few_steps"):
                results[i] = self._floor(broken)
        open_ = [i for i, r in enumerate(results) if r is None]
        for i, scores in zip(open_, self._scores(problems, steps, open_), strict=True):
            if scores is None:
                results[i] = self._floor("refused_by_model")
            else:
                credits = min_form(scores, self.temperature)
                results[i] = SolutionReward(sum(credits), credits, scores)
        self.counts["scored"] += len(steps)
        return [r for r in results if r is not None]

    def _scores(
        self, problems: Sequence[Problem], steps: Sequence[Sequence[str]], indices: Sequence[int]
    ) -> list[tuple[float, ...] | None]:
        """Scores of the named solutions; None for one that the model cannot take (such as one too long)."""
        try:
            return list(self.model.score([problems[i] for i in indices], [steps[i] for i in indices]))
        except InputRefused:
            if len(indices) == 1:
                return [None]
            return [s for i in indices for s in self._scores(problems, steps, [i])]

    def _floor(self, broken: str) -> SolutionReward:
        self.counts[broken] += 1
        return SolutionReward(FLOOR, broken=broken)


def trl_reward(reward: PrmReward, problem_column: str = "problem") -> Callable[..., list[float]]:
    """A reward function for ``trl.GRPOTrainer(reward_funcs=...)``.

    Args:
        reward: What scores.
        problem_column: Dataset column with the problem's text; the last user turn of the prompt where it is missing.

    Returns:
        A function of prompts and completions (plain or conversational) and the dataset's columns.
    """

    def stepward_prm(
        prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float]:
        """One reward in [-1, 1] a completion."""
        texts = columns.get(problem_column) or [_last_turn(p, "user") for p in prompts]
        problems = [Problem(id="", statement=str(t)) for t in texts]
        return [r.reward for r in reward(problems, [_last_turn(c, "assistant") for c in completions])]

    return stepward_prm


def verl_reward(reward: PrmReward) -> Callable[..., Any]:
    """A function for verl's ``custom_reward_function``: name it ``compute_score`` in a file of your own.

    Takes one sample (the naive reward manager) or lists (the batch manager). The problem's text is read from
    ``extra_info`` under ``problem``, ``question`` or ``prompt_text``.

    Returns:
        A function that gives verl a dictionary, or a list of them: ``score`` is the reward; ``step_credits`` add up
        to it and can be put at the steps' last tokens; ``guard`` names a broken limit.
    """

    def compute_score(
        data_source: Any = None,
        solution_str: Any = None,
        ground_truth: Any = None,
        extra_info: Any = None,
        *,
        data_sources: Any = None,
        solution_strs: Any = None,
        ground_truths: Any = None,
        extra_infos: Any = None,
        **_: Any,
    ) -> Any:
        """verl's interface, single or batched."""
        many = solution_strs is not None
        texts: list[str] = list(solution_strs) if many else [solution_str]
        infos: list[Any] = list(extra_infos) if many else [extra_info]
        problems = [Problem(id="", statement=_problem_text(info)) for info in infos]
        found = [
            {
                "score": r.reward,
                "step_credits": list(r.credits),
                "step_scores": list(r.scores),
                "guard": r.broken,
            }
            for r in reward(problems, texts)
        ]
        return found if many else found[0]

    return compute_score


def _problem_text(info: Mapping[str, Any] | None) -> str:
    for name in PROBLEM_FIELDS:
        if info and info.get(name):
            return str(info[name])
    raise InputError(
        "scoring a sample for verl: extra_info holds no problem text; put it under 'problem' when the dataset is made"
    )


def _last_turn(message: Any, role: str) -> str:
    """The text of a plain prompt or completion, or the last turn of that role of a conversational one."""
    if isinstance(message, str):
        return message
    turns = [m["content"] for m in message if m["role"] == role]
    if not turns:
        raise InputError(f"a conversational prompt or completion has no turn of the {role}: {message!r:.200}")
    return str(turns[-1])
