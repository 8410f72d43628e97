"""One reader a set: every convention is translated, what cannot be placed is left out with its reason."""

import json
from pathlib import Path

import pytest

from stepward.prm.evaluation.errors import BenchmarkFileError
from stepward.prm.evaluation.readers.step_sets import (
    numbered_steps,
    read_autorace,
    read_bigbench_mistake,
    read_mr_gsm8k,
    read_mrben,
    read_mrben_coding,
    read_parc,
    read_verify_cot,
)


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "read", "num_items", "num_without_error"),
    [
        ("bigbench_mistake_dyck_languages", read_bigbench_mistake, 479, 172),
        ("bigbench_mistake_logical_deduction", read_bigbench_mistake, 143, 4),
        ("bigbench_mistake_multistep_arithmetic", read_bigbench_mistake, 146, 32),
        ("bigbench_mistake_tracking_shuffled_objects", read_bigbench_mistake, 166, 23),
        ("bigbench_mistake_word_sorting", read_bigbench_mistake, 154, 14),
        ("mr_gsm8k_wrong_590", read_mr_gsm8k, 269, 0),
        ("mrben_chemistry", read_mrben, 415, 203),
        ("mrben_math", read_mrben, 441, 67),
        ("mrben_physics", read_mrben, 313, 142),
        ("mrben_coding", read_mrben_coding, 119, 39),
        ("parc_perl", read_parc, 365, 128),
    ],
)
def test_the_real_sets_are_read(
    data_dir: Path, name: str, read, num_items: int, num_without_error: int
) -> None:
    found = read(data_dir / "steps" / f"{name}.jsonl")
    assert len(found.items) == num_items
    assert sum(i.first_error is None for i in found.items) == num_without_error
    rows = sum(1 for line in (data_dir / "steps" / f"{name}.jsonl").open() if line.strip())
    assert num_items + len(found.left_out) == rows
    assert all(reason for _, reason in found.left_out)


@pytest.mark.parametrize(
    ("name", "read", "num", "num_right"),
    [
        ("autorace_gsm8k_chain_200", read_autorace, 105, 60),
        ("verify_cot_MATH_100", read_verify_cot, 52, 25),
        ("verify_cot_addsub_100", read_verify_cot, 48, 17),
        ("verify_cot_last_letters_100", read_verify_cot, 64, 33),
    ],
)
def test_the_real_judged_sets_are_read(data_dir: Path, name: str, read, num: int, num_right: int) -> None:
    found = read(data_dir / "steps" / f"{name}.jsonl")
    assert (len(found.judged), sum(j.right for j in found.judged)) == (num, num_right)
    assert all(j.steps for j in found.judged)


def test_the_first_wrong_step_of_a_real_row_is_the_step_that_its_annotator_meant(data_dir: Path) -> None:
    item = read_mr_gsm8k(data_dir / "steps" / "mr_gsm8k_wrong_590.jsonl").items[0]
    assert item.first_error is not None
    assert item.steps[item.first_error].startswith("Step 3: The second floor")
    item = read_bigbench_mistake(data_dir / "steps" / "bigbench_mistake_multistep_arithmetic.jsonl").items[0]
    assert item.first_error is not None
    assert item.steps[item.first_error].startswith("Let's calculate C")
    item = read_mrben(data_dir / "steps" / "mrben_chemistry.jsonl").items[0]
    assert item.first_error is not None
    assert item.steps[item.first_error].startswith("Step 5: T1 relaxation")
    item = read_parc(data_dir / "steps" / "parc_perl.jsonl").items[0]
    assert item.first_error is not None
    assert item.steps[item.first_error].startswith("Step 3:")


def test_printed_step_numbers_hold_over_blank_and_continued_lines() -> None:
    lines = ("Step 1: Look.", "It is so.", "", "Step 2: Add.", "Step 2.1: In detail.", "Solution: Choice_A")
    assert numbered_steps(lines) == (
        ("Step 1: Look.\nIt is so.", "Step 2: Add.\nStep 2.1: In detail.", "Solution: Choice_A"),
        (1, 2, None),
    )
    assert numbered_steps(("first", "", "second")) == (("first", "second"), (1, 2))


MRBEN = {
    "Question": "q", "Options": "A: 1", "Subject": "s", "Sampled_Model": "m", "Model_Solution_Correctness": "incorrect",
    "Model_Solution_Steps": ["Step 1: a", "", "Step 2: b"], "Model_Solution_First_Error_Step": "2",
}  # fmt: skip


def test_a_printed_number_that_occurs_twice_is_not_guessed(tmp_path: Path) -> None:
    again = {**MRBEN, "Model_Solution_Steps": ["Step 1: a", "Step 2: b", "Step 1: c", "Step 2: d"]}
    odd = {**MRBEN, "Model_Solution_Correctness": "correct"}
    found = read_mrben(write(tmp_path / "s.jsonl", MRBEN, again, odd))
    assert [(i.id, i.first_error, i.problem) for i in found.items] == [("s-1", 1, "q\nA: 1")]
    assert found.left_out == (
        ("s-2", "step 2 is printed 2 times"),
        ("s-3", "called 'correct' with first error 1"),
    )


def test_a_wrong_line_of_code_is_found_by_its_text_or_left_out(tmp_path: Path) -> None:
    base = {
        **MRBEN,
        "Options": None,
        "Model_Solution_Steps": "def f():\n\n    x = 1\n    return x\n    x = 1\n",
    }
    found = read_mrben_coding(
        write(
            tmp_path / "c.jsonl",
            {**base, "Model_Solution_First_Error_Step": "    return x"},
            {**base, "Model_Solution_First_Error_Step": "    x = 1"},
            {**base, "Model_Solution_First_Error_Step": "  "},
        )
    )
    assert [(i.first_error, i.steps[2]) for i in found.items] == [(2, "    return x")]
    assert [reason for _, reason in found.left_out] == [
        "the first error line occurs 2 times",
        "first error line is blank",
    ]


def test_a_right_answer_over_unsound_reasoning_is_unsound(tmp_path: Path) -> None:
    row = {
        "question": "q",
        "answer": "#1. Two.\n\n#2. (by #1) Step 1: so.\nThen.",
        "correct": True,
        "flag": 0,
    }
    (solution,) = read_verify_cot(write(tmp_path / "v.jsonl", row)).judged
    assert not solution.right
    assert solution.steps == ("#2. (by #1) Step 1: so.\nThen.",)


ENDS = {"answer": "", "target": ""}


@pytest.mark.parametrize(
    ("read", "row", "named"),
    [
        (read_bigbench_mistake, {"input": "q", "steps": ["a"], "mistake_index": 1, **ENDS}, "first_error 1"),
        (read_bigbench_mistake, {"input": "q", "steps": ["a"], "mistake_index": "0", **ENDS}, "mistake_index"),
        (read_bigbench_mistake, {"input": "q", "steps": "a", "mistake_index": 0, **ENDS}, "list of texts"),
        (read_mr_gsm8k, {"question": "q"}, "no field"),
        (read_verify_cot, {"question": "q", "answer": "#1. (by #0) x", "flag": 2}, "flag is 2"),
        (read_autorace, {"question": "q", "reasoning_chain": "Step 1 - x", "human_label": "yes"}, "human_label"),
    ],
)  # fmt: skip
def test_broken_rows_are_named(tmp_path: Path, read, row: dict, named: str) -> None:
    with pytest.raises(BenchmarkFileError, match=named) as fault:
        read(write(tmp_path / "b.jsonl", row))
    assert str(fault.value).startswith("b.jsonl:1: ")
