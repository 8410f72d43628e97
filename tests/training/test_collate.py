"""Every label sits on exactly one position, or its row is refused and counted."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from stepward.prm.errors import InputError
from stepward.prm.models.batches import make_batch, pack_rows
from stepward.prm.models.inputs import EncodedSolution, InputFormat, InputRefused
from stepward.prm.prompts import PromptTemplate
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import ByteTokenizer, load_tokenizer, tokenizer_from_json
from stepward.prm.types import Allocation, LabeledSolution, Outcome, Problem, Step, StepLabel
from stepward.training.collate import Example, check_positions, collate, reweigh, token_labels

Rows = Callable[..., LabeledSolution]
BARE = PromptTemplate("bare", "{{ problem }}")


def bare(max_tokens: int = 0) -> InputFormat:
    return InputFormat(ByteTokenizer(), StepFormat(), BARE, max_tokens)


def example(ids: list[int], prompt: int, ends: list[int], targets: list[float]) -> Example:
    encoded = EncodedSolution(tuple(ids), prompt, tuple(ends))
    zeros = (0,) * len(targets)
    return Example(
        "s", "p", encoded, tuple(ends), tuple(targets), (1.0,) * len(targets), zeros, zeros, 1.0, True, None, True
    )  # fmt: skip


def test_boolean_labels_become_int64_with_one_position_a_step():
    # Public case P001: prompt 10 11, steps 20 and 21 22, separator 99, labels true and false.
    row = example([10, 11, 20, 99, 21, 22, 99], 2, [3, 6], [True, False])
    ids, labels = token_labels(row)
    assert ids.tolist() == [10, 11, 20, 99, 21, 22, 99]
    assert labels.tolist() == [-100, -100, -100, 1, -100, -100, 0]
    assert labels.dtype == np.int64


def test_soft_labels_stay_floats_and_unknown_ones_are_masked():
    _, labels = token_labels(example([1, 2, 3, 4], 1, [1, 2, 3], [0.75, math.nan, 0.0]))
    assert labels.tolist() == [-100, 0.75, -100, 0]
    assert labels.dtype == np.float64


def test_a_separator_that_merges_with_its_neighbour_still_gives_two_positions(labeled: Rows):
    # Public case P002: a tokenizer that merges '.' and newline; the id of the newline alone never occurs.
    vocab = {"a": 0, "b": 1, ".": 2, "\n": 3, ".\n": 4, "\n\n": 5}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[(".", "\n"), ("\n", "\n")]))
    inner.decoder = decoders.Fuse()
    tokenizer = tokenizer_from_json(inner.to_str())
    inputs = InputFormat(tokenizer, StepFormat(), PromptTemplate("p", "a{{ problem }}"))
    examples, _ = collate([labeled("b", ["a.", "b."], [1, 0])], inputs)
    _, labels = token_labels(examples[0])
    assert sorted(labels[labels != -100].tolist()) == [0, 1]
    # Prompt 0 1, then each step is its letter and the merged id, which carries the label.
    assert examples[0].encoded.token_ids == (0, 1, 0, 4, 1, 4)
    assert labels.tolist() == [-100, -100, -100, 1, -100, 0]


def test_truncation_is_counted_and_no_label_sits_on_a_cut_step(labeled: Rows):
    # Public case P027: prompt 4 ids, 3 steps of 3 ids and a separator; 10 ids keep one step, its label at 7.
    row = labeled("abcd", ["xyz", "xyz", "xyz"], [1, 1, 0])
    examples, report = collate([row], bare(10), over_limit="cut")
    assert examples[0].places == (7,)
    assert report.steps_cut == 2
    _, labels = token_labels(examples[0])
    assert len(labels) == 8
    assert labels[7] == 1


def test_a_row_of_which_no_step_fits_is_refused_by_name(labeled: Rows):
    # Public case P027 at 7 ids.
    rows = [labeled("abcd", ["xyz", "xyz", "xyz"], [1, 1, 0]), labeled("a", ["x"], [1])]
    examples, report = collate(rows, bare(7), over_limit="cut")
    assert [e.solution_id for e in examples] == ["a-0"]
    assert report.refused == {"no complete step": 1}
    assert report.kept + sum(report.refused.values()) == report.rows
    with pytest.raises(InputError, match=r"none of 1 rows.*abcd-0.*no complete step"):
        collate(rows[:1], bare(7), over_limit="cut")


def test_over_the_limit_is_refused_unless_cutting_is_asked_for():
    with pytest.raises(InputRefused, match="takes 10"):
        bare(10).encode(Problem("p", "abcd"), ["xyz", "xyz"])


def test_a_separator_of_three_tokens_is_read_at_its_last():
    # Public case P013: a marker of several tokens; 'a' 'b', then ids 2..: x, '\n', '\n' -> last index 4.
    inputs = InputFormat(ByteTokenizer(), StepFormat("blank_line"), BARE)
    assert inputs.encode(Problem("p", "ab"), ["xy"]).step_ends == (5,)


def test_sampled_ids_are_used_where_the_tokenizer_is_the_models_own(labeled: Rows):
    # Public case P083: 'hello' sampled as 'he' + 'llo'; encoding the text again would give one id.
    vocab = {t: i for i, t in enumerate(["h", "e", "l", "o", "he", "ll", "llo", "hello", "\n", "?"])}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.decoder = decoders.Fuse()
    tokenizer = tokenizer_from_json(inner.to_str())
    inputs = InputFormat(tokenizer, StepFormat(), PromptTemplate("p", "?{{ problem }}"))
    row = labeled("h", ["hello"], [1], ids=[(4, 6)], tokenizer_hash=tokenizer.hash)
    (own,), report = collate([row], inputs)
    assert own.encoded.token_ids == (9, 0, 4, 6, 8)
    assert (report.ids_sampled, report.ids_encoded) == (1, 0)
    (other,), report = collate([replace(row, tokenizer_hash="another")], inputs)
    assert other.encoded.token_ids == (9, 0, 7, 8)
    assert (report.ids_sampled, report.ids_encoded) == (0, 1)
    assert "ids sampled in 0 rows and encoded from text in 1" in report.summary()


def test_label_train_and_score_inputs_are_equal_and_have_one_start_token(tiny_llama: Path):
    # Public case P009.
    tokenizer = load_tokenizer(tiny_llama)
    inputs = InputFormat(tokenizer, StepFormat())
    problem = Problem("p", "2+2?")
    texts = ["two", "four"]
    sampled = tuple(Step(t, tokenizer.encode(t + "\n")) for t in texts)
    # The last sampled step ends with the end token instead of a separator.
    end = next(iter(tokenizer.eos_ids))
    sampled = (sampled[0], Step("four", (*tokenizer.encode("four"), end)))
    by_ids = inputs.encode(problem, sampled, tokenizer_hash=tokenizer.hash)
    by_text = inputs.encode(problem, texts)
    assert by_ids.ids_from == "sampled"
    assert by_ids.token_ids == by_text.token_ids
    assert by_ids.step_ends == by_text.step_ends
    assert by_ids.token_ids.count(tokenizer.bos_id or -1) == 1
    assert by_ids.token_ids[0] == tokenizer.bos_id


@settings(deadline=None)
@given(st.lists(st.text("ab ", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=6))
def test_positions_increase_and_the_last_is_the_last_id(steps: list[str]):
    encoded = bare().encode(Problem("p", "q"), steps)
    assert len(encoded.step_ends) == len(steps)
    assert all(a < b for a, b in zip(encoded.step_ends, encoded.step_ends[1:], strict=False))
    assert encoded.step_ends[-1] == len(encoded.token_ids) - 1
    assert encoded.step_ends[0] >= encoded.prompt_length


@pytest.mark.parametrize("ends", [[1], [9], [3, 3]], ids=["in the prompt", "beyond the text", "shared"])
def test_a_label_without_its_own_position_is_refused(ends: list[int]):
    with pytest.raises(InputRefused) as caught:
        check_positions(example([1, 2, 3, 4, 5], 2, ends, [1.0] * len(ends)))
    assert caught.value.reason == "label without its own position"


def test_blank_steps_are_refused_and_counted(labeled: Rows):
    rows = [labeled("a", ["x", " "], [1, 0]), labeled("b", ["x"], [1])]
    _, report = collate(rows, bare())
    assert report.refused == {"blank step": 1}
    assert report.examples_of["blank step"].startswith("a-0")


def test_a_fault_is_no_label_and_a_truncated_solution_is_not_wrong(labeled: Rows):
    row = labeled("a", ["x", "y"], [1, None], outcome=Outcome.TRUNCATED)
    (e,), report = collate([row], bare())
    assert e.targets[0] == 1
    assert math.isnan(e.targets[1])
    assert math.isnan(e.outcome)
    assert not e.decided
    assert (report.steps, report.labelled) == (2, 1)


def test_any_right_reads_the_counts_and_takes_the_outcome_at_the_end(labeled: Rows):
    # Prefix 1: 1 of 8 right -> 1; prefix 2: 0 of 8 -> 0; prefix 3 has no draws: the outcome, wrong -> 0.
    row = labeled("a", ["x", "y", "z"], [1, 0, 0], counts=[(4, 4), (1, 7), (0, 8), (0, 0)])
    (e,), _ = collate([row], bare(), target="any_right")
    assert e.targets == (1.0, 0.0, 0.0)


def test_counts_of_adaptive_sampling_are_no_hard_labels(labeled: Rows):
    row = labeled("a", ["x"], [1], counts=[(1, 1), (1, 1)], allocation=Allocation.INFORMATION_GAIN)
    (e,), _ = collate([row], bare(), target="any_right")
    assert math.isnan(e.targets[0])


def test_no_error_yet_takes_the_first_error_chances_off_one_by_one(labeled: Rows):
    row = labeled("a", ["x", "y"], [1, 0])
    row = replace(row, labels=(StepLabel(1, 0.25), StepLabel(0, 0.5)))
    (e,), _ = collate([row], bare(), target="no_error_yet")
    assert e.targets == (0.75, 0.25)


def test_blocks_carry_the_outcome_and_the_last_token_always_does(labeled: Rows):
    # Prompt 1 id, step ids 1..6: blocks of 4 end at 4, and the last id is 6.
    (e,), _ = collate([labeled("a", ["abcde"], [0], outcome=Outcome.RIGHT)], bare(), block_tokens=4)
    assert e.places == (4, 6)
    assert e.targets == (1.0, 1.0)
    (e,), _ = collate([labeled("a", ["abcde"], [0], outcome=Outcome.RIGHT)], bare(), block_tokens=1)
    assert e.places == (1, 2, 3, 4, 5, 6)


def test_steps_after_the_first_error_can_be_masked(labeled: Rows):
    (e,), _ = collate([labeled("a", ["x", "y", "z"], [1, 0, 0])], bare(), mask_after_first_error=True)
    assert e.targets[:2] == (1, 0)
    assert math.isnan(e.targets[2])


def test_classes_and_problems_can_weigh_the_same(labeled: Rows):
    rows = [labeled("a", ["x", "y", "z"], [1, 1, 1]), labeled("b", ["x"], [0])]
    examples, _ = collate(rows, bare())
    balanced = reweigh(examples, balance_classes=True)
    # 3 right, 1 wrong: 4 / (2 * 3) = 2/3 each and 4 / 2 = 2.
    assert balanced[0].weights == pytest.approx((2 / 3,) * 3)
    assert balanced[1].weights == pytest.approx((2.0,))
    by_problem = reweigh(examples, balance_problems=True)
    assert sum(by_problem[0].weights) == pytest.approx(sum(by_problem[1].weights))


def test_a_batch_needs_no_padding_token():
    # Public case P037: lengths 2 and 5, a tokenizer without padding; 7 ids are attended to and all are integers.
    solutions = [EncodedSolution((7, 8), 1, (1,)), EncodedSolution((1, 2, 3, 4, 5), 2, (4,))]
    batch = make_batch(solutions)
    assert int((batch.segments > 0).sum()) == 7
    assert batch.input_ids.tolist() == [[7, 8, 0, 0, 0], [1, 2, 3, 4, 5]]
    assert batch.score_rows.tolist() == [0, 1]
    assert batch.score_columns.tolist() == [1, 4]


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(1, 40))
def test_packing_places_every_solution_once_and_fills_no_row_beyond_its_limit(lengths: list[int], limit: int):
    rows = pack_rows(lengths, limit)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= limit or len(row) == 1 for row in rows)


def test_packed_scores_keep_the_order_of_the_solutions():
    solutions = [EncodedSolution((i,) * n, 1, (n - 1,)) for i, n in enumerate([2, 5, 3])]
    batch = make_batch(solutions, row_tokens=8)
    read = batch.input_ids[batch.score_rows, batch.score_columns]
    assert read.tolist() == [0, 1, 2]
    assert batch.input_ids.shape == (2, 8)


def test_an_unknown_target_is_named(sums: Callable[..., list[LabeledSolution]]):
    with pytest.raises(InputError, match="no_error_yet"):
        collate(sums(1), bare(), target="labels")
