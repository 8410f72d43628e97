"""Reward functions for RL trainers: the min-form, the guards, and each trainer's own calling convention."""

from collections.abc import Sequence
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.prm.errors import InputError, ModelError
from stepward.prm.models.inputs import InputRefused
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem
from stepward.training.rewards import Guards, PrmReward, min_form, trl_reward, verl_reward


class Words:
    """A reward model that doubts every step with the word 'bad' and cannot read 'huge' ones."""

    name = "words"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def score(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        self.seen += [p.text for p in problems]
        if any("huge" in s for steps in solutions for s in steps):
            raise InputRefused("over the token limit", "too long")
        return [tuple(0.1 if "bad" in s else 0.9 for s in steps) for steps in solutions]


def reward(**guards: int | str) -> PrmReward:
    return PrmReward(Words(), StepFormat(), Guards(**guards))  # pyright: ignore[reportArgumentType]


def test_the_min_form_is_the_softmax_weighted_sum_of_the_paper():
    # r = .8 and -.8, T = 1: weights e^-.8 and e^.8 over their sum.
    low, high = exp(-0.8), exp(0.8)
    credits = min_form([0.9, 0.1], temperature=1.0)
    assert credits == pytest.approx((0.8 * low / (low + high), -0.8 * high / (low + high)))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_the_reward_lies_between_the_weakest_step_and_the_mean(scores: list[float]):
    total = sum(min_form(scores))
    rewards = [2 * s - 1 for s in scores]
    assert min(rewards) - 1e-9 <= total <= sum(rewards) / len(rewards) + 1e-9


def test_more_good_steps_do_not_raise_the_reward():
    few, many = sum(min_form([0.9, 0.1])), sum(min_form([0.9] * 20 + [0.1]))
    assert many == pytest.approx(few, abs=1e-4)
    assert few == pytest.approx(-0.8, abs=1e-4)


def test_trl_gets_one_float_a_completion_and_the_columns_name_the_problem():
    source = reward()
    function = trl_reward(source)
    got = function(prompts=["p", "q"], completions=["fine\nfine too", "bad\nfine"], problem=["P", "Q"])
    # Two equal steps of .9 give .8; a bad one gives nearly -.8.
    assert got == [pytest.approx(0.8), pytest.approx(-0.8, abs=1e-4)]
    assert source.model.seen == ["P", "Q"]  # pyright: ignore[reportAttributeAccessIssue]
    assert function.__name__ == "stepward_prm"


def test_trl_conversations_are_read_by_their_last_turns():
    source = reward()
    prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]
    got = trl_reward(source)(prompts=[prompt], completions=[[{"role": "assistant", "content": "fine"}]])
    assert got == [pytest.approx(0.8)]
    assert source.model.seen == ["2+2?"]  # pyright: ignore[reportAttributeAccessIssue]


def test_verl_takes_one_sample_or_a_batch():
    compute_score = verl_reward(reward())
    one = compute_score("gsm8k", "fine\nbad", "4", {"question": "2+2?"})
    assert one["score"] == pytest.approx(sum(one["step_credits"]))
    assert one["step_scores"] == [0.9, 0.1]
    batch = compute_score(
        data_sources=["a", "a"], solution_strs=["fine", "bad"], ground_truths=["", ""],
        extra_infos=[{"problem": "x"}, {"problem": "y"}],
    )  # fmt: skip
    assert [r["score"] for r in batch] == [pytest.approx(0.8), pytest.approx(-0.8)]


def test_verl_without_a_problem_text_is_an_error():
    with pytest.raises(InputError, match="extra_info"):
        verl_reward(reward())("gsm8k", "fine", "4", None)


@pytest.mark.parametrize(
    ("completion", "limits", "name"),
    [
        ("", {}, "too_few_steps"),
        ("fine", {"min_steps": 2}, "too_few_steps"),
        ("\n".join(f"step {i}" for i in range(65)), {}, "too_many_steps"),
        ("fine\nx", {}, "short_step"),
        ("y" * 4001, {}, "long_step"),
        ("again\nAgain \nagain", {}, "repeated_step"),
        ("The answer is 4.\nProblem: 1+1?\nThe answer is 2.", {"answer": "answer is"}, "text_after_answer"),
        ("huge", {}, "refused_by_model"),
    ],
)
def test_a_broken_guard_gives_the_floor_and_is_counted(completion: str, limits: dict[str, int], name: str):
    source = reward(**limits)
    (got,) = source([Problem("", "p")], [completion])
    assert (got.reward, got.broken, got.credits) == (-1.0, name, ())
    assert source.counts == {name: 1, "scored": 1}


def test_one_completion_that_the_model_refuses_does_not_spoil_the_batch():
    got = reward()([Problem("", "p")] * 3, ["fine", "huge", "bad"])
    assert [r.broken for r in got] == ["", "refused_by_model", ""]
    assert got[0].reward == pytest.approx(0.8)


def test_a_failing_reward_model_is_no_reward():
    class Broken(Words):
        def score(
            self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
        ) -> list[tuple[float, ...]]:
            raise ModelError("gone")

    with pytest.raises(ModelError):
        PrmReward(Broken(), StepFormat())([Problem("", "p")], ["fine"])
