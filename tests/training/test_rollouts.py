"""Rollouts as training rows: paths, roll-in, values and the targets that come of them."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepward.prm.errors import InputError
from stepward.prm.models.inputs import InputFormat
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import FinishReason, LabeledSolution, Outcome, Rollout
from stepward.training.collate import collate
from stepward.training.discriminative import Labelling, train_discriminative
from stepward.training.loop import Schedule
from stepward.training.objectives import step_pairs
from stepward.training.rollouts import rollout_rows

Row = Callable[..., LabeledSolution]
LINES = StepFormat()


def rollout(
    t: int, text: str, outcome: Outcome, index: int = 0, seed: int = 1, ids: tuple[int, ...] = ()
) -> Rollout:
    return Rollout("p", t, index, seed, ids, text, FinishReason.STOP, outcome=outcome)


@pytest.fixture
def solution(labeled: Row) -> LabeledSolution:
    """Two steps, a and b, right; 3 of 4 rollouts after a are right."""
    return labeled("p", ["a", "b"], [1, 1], counts=[(2, 2), (3, 1), (1, 0)], values=[0.5, 0.7, 0.9])


def rows_of(solution: LabeledSolution, rollouts: list[Rollout], folder: Path, per_problem: int = 9):
    drawn = [(solution.solution.id, r) for r in rollouts]
    return rollout_rows([solution], drawn, LINES, load_tokenizer(folder), per_problem=per_problem, seed=0)


def test_a_rollout_is_a_solution_that_begins_with_anothers_steps(solution: LabeledSolution, tiny_llama: Path):
    (row,), rolled_in = rows_of(solution, [rollout(1, "c\nd", Outcome.WRONG, index=3)], tiny_llama)
    assert row.solution.id == "p-0+1.3"
    assert [s.text for s in row.solution.steps] == ["a", "c", "d"]
    assert rolled_in == {"p-0+1.3": 1}
    assert row.solution.outcome is Outcome.WRONG
    assert [x.label for x in row.labels] == [None, None, None]
    # The roll-in keeps its estimates; c and d have one wrong draw each: (0 + 1) / (1 + 2).
    assert [p.value for p in row.prefixes] == [0.5, 0.7, pytest.approx(1 / 3), pytest.approx(1 / 3)]


def test_a_step_counts_every_draw_that_passes_through_it(solution: LabeledSolution, tiny_llama: Path):
    drawn = [
        rollout(1, "c\nd", Outcome.WRONG, 0),
        rollout(1, "c\ne", Outcome.RIGHT, 1),
        rollout(1, "c\ne", Outcome.RIGHT, 2),
        rollout(0, "a\nc\nf", Outcome.TRUNCATED, 0),
    ]
    rows, _ = rows_of(solution, drawn, tiny_llama)
    by_path = {tuple(s.text for s in r.solution.steps): r for r in rows}
    # The copy of a, c, e stands once and is counted twice.
    assert set(by_path) == {("a", "c", "d"), ("a", "c", "e"), ("a", "c", "f")}
    after_c = by_path["a", "c", "d"].prefixes[2]
    # Two right, one wrong, one truncated: (2 + 1) / (3 + 2).
    assert (after_c.counts.right, after_c.counts.wrong, after_c.counts.truncated) == (2, 1, 1)
    assert after_c.value == pytest.approx(3 / 5)
    # A draw that was cut short says nothing of f.
    assert by_path["a", "c", "f"].prefixes[3].value is None


def test_the_solution_itself_its_copies_and_our_faults_are_no_rows(
    solution: LabeledSolution, tiny_llama: Path
):
    drawn = [
        rollout(0, "a\nb", Outcome.RIGHT, seed=0),  # the sample that the solution is
        rollout(1, "b", Outcome.RIGHT),
        rollout(1, "c", Outcome.TIMEOUT),
        rollout(1, "\n", Outcome.NO_ANSWER),
    ]
    assert rows_of(solution, drawn, tiny_llama) == ([], {})


def test_as_many_as_asked_are_drawn_and_the_same_ones_for_the_same_seed(
    solution: LabeledSolution, tiny_llama: Path
):
    drawn = [rollout(1, f"c {i}", Outcome.RIGHT, i) for i in range(20)]
    rows, rolled_in = rows_of(solution, drawn, tiny_llama, per_problem=5)
    assert len(rows) == len(rolled_in) == 5
    assert rows == rows_of(solution, drawn[::-1], tiny_llama, per_problem=5)[0]


def test_sampled_ids_are_kept_where_the_tokenizer_is_the_rows(solution: LabeledSolution, tiny_llama: Path):
    tokenizer = load_tokenizer(tiny_llama)
    ids = tokenizer.encode("c\nd") + tuple(tokenizer.eos_ids)
    same = replace(solution, tokenizer_hash=tokenizer.hash)
    (row,), _ = rows_of(same, [rollout(1, "c\nd", Outcome.RIGHT, ids=ids)], tiny_llama)
    assert tuple(i for s in row.solution.steps[1:] for i in s.token_ids) == ids
    (row,), _ = rows_of(solution, [rollout(1, "c\nd", Outcome.RIGHT, ids=ids)], tiny_llama)
    assert [s.token_ids for s in row.solution.steps] == [(), (), ()]


def test_the_roll_in_has_no_target_and_the_rollouts_first_step_is_a_sibling(
    solution: LabeledSolution, tiny_llama: Path
):
    rows, rolled_in = rows_of(solution, [rollout(1, "c", Outcome.WRONG)], tiny_llama)
    inputs = InputFormat(load_tokenizer(tiny_llama), LINES)
    examples, _ = collate([solution, *rows], inputs, target="value", rolled_in=rolled_in)
    assert math.isnan(examples[1].targets[0])
    assert examples[1].targets[1] == pytest.approx(1 / 3)
    assert examples[1].trials == (0, 1)
    # Places 0 1 | 2 3: b (.9) over c (1/3) at the step where they part.
    assert step_pairs(examples, 0.2) == [(1, 3, 1.0)]


def test_outcomes_at_tokens_begin_after_the_roll_in(solution: LabeledSolution, tiny_llama: Path):
    rows, rolled_in = rows_of(solution, [rollout(1, "cd", Outcome.WRONG)], tiny_llama)
    inputs = InputFormat(load_tokenizer(tiny_llama), LINES)
    (example,), _ = collate(rows, inputs, block_tokens=1, rolled_in=rolled_in)
    start = example.encoded.prompt_length
    # One id a byte: "a\n" is rolled in, "cd\n" is its own.
    assert example.places == (start + 2, start + 3, start + 4)
    assert example.targets == (0.0, 0.0, 0.0)
    (example,), _ = collate(rows, inputs, block_tokens=2, rolled_in=rolled_in)
    assert example.places == (start + 3, start + 4)


def test_a_rollout_whose_own_steps_are_over_the_limit_is_refused_by_name(
    solution: LabeledSolution, tiny_llama: Path
):
    rows, rolled_in = rows_of(solution, [rollout(1, "c" * 30, Outcome.WRONG)], tiny_llama)
    inputs = InputFormat(load_tokenizer(tiny_llama), LINES, max_tokens=30)
    _, report = collate([solution, *rows], inputs, over_limit="cut", rolled_in=rolled_in)
    assert report.refused == {"no step of its own": 1}


def test_training_on_rollouts_that_are_not_there_is_refused(
    solution: LabeledSolution, tiny_llama: Path, tmp_path: Path
):
    with pytest.raises(InputError, match="none came with the 1 solutions"):
        train_discriminative(
            [solution], [], base=tiny_llama, out=tmp_path / "prm", labelling=Labelling(rollouts_per_problem=4)
        )


def test_a_model_trains_on_rollouts_alone_known_by_their_outcomes(
    solution: LabeledSolution, tiny_llama: Path, tmp_path: Path
):
    drawn = [
        (solution.solution.id, rollout(1, f"{word} {i}", outcome, i))
        for i in range(6)
        for word, outcome in (("odd", Outcome.WRONG), ("even", Outcome.RIGHT))
    ]
    result = train_discriminative(
        [solution], [], base=tiny_llama, out=tmp_path / "prm", loss="outcome_classes", rollouts=drawn,
        labelling=Labelling(block_tokens=1, rollouts_per_problem=9), schedule=Schedule(epochs=2),
    )  # fmt: skip
    assert result.training_rows.rows == 10
