r"""Where the final answer stands: marks, cuts, guesses."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.types import CheckKind, FinishReason
from stepward.verifiers.extraction import FoundBy, extract_answer


def found(text: str, **options) -> tuple[str, str] | None:
    answer = extract_answer(text, **options).answer
    return (answer.text, answer.found_by.value) if answer else None


@pytest.mark.parametrize(
    ("text", "answer", "how"),
    [
        (r"So the sum is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", "box"),
        (r"First \boxed{3}, but in truth \boxed{ 4 }.", "4", "box"),
        (r"so \fbox{x^{2}+1} holds", "x^{2}+1", "box"),
        (r"\boxed 7 apples", "7", "box"),
        (r"the set \boxed{\{1, 2\}}", r"\{1, 2\}", "box"),
        ("4 + 4 = 8\n#### 1,250", "1,250", "hashes"),
        ("#### Step 1: add\n3 + 4 = 7\n#### 7", "7", "hashes"),
        ("She has 9 left.\nA: 18", "18", "phrase"),
        ("The answer is 5.5. I hope it is correct.", "5.5", "phrase"),
        ("Therefore, the final answer is: **12 apples**.", "12 apples", "phrase"),
        ("the answer to the first question is $x = 3$.", "x = 3", "phrase"),
        ("Final Answer:\n\\[\n\\frac{3}{4}\n\\]", "\n\\frac{3}{4}\n", "phrase"),
        ("### Answer\n\n42", "42", "phrase"),
        ("The answer: D, it doesn't make sense for it to be A or B", "D", "phrase"),
        ("-3/4", "-3/4", "whole_text"),
        (r"We find that $x \lt 3$.", r"x \lt 3", "last_formula"),
        ("So John pays $33 + $17 = $50 in all.", "$50", "last_number"),
        ("12 x 5 = 60.\nJohn makes $60 if he works for 6 days.", "$60", "last_number"),
    ],
)
def test_an_answer_is_found_by_its_mark(text: str, answer: str, how: str) -> None:
    assert found(text) == (answer, how)


def test_the_last_box_wins_over_a_later_phrase() -> None:
    assert found(r"\boxed{5}. To sum up, the answer is what stands in the box.") == ("5", "box")


@pytest.mark.parametrize("tail", ["", " so that", r" and then \text{"])
def test_an_earlier_box_is_no_answer_where_the_last_is_cut_off(tail: str) -> None:
    extraction = extract_answer(r"\boxed{3} is wrong. Rather it is \boxed{\frac{1}{2" + tail)
    assert extraction.answer is None
    assert extraction.cut


def test_boxes_joined_by_and_are_one_answer() -> None:
    assert found(r"\boxed{1} and \boxed{-2}.") == ("1, -2", "box")
    assert found(r"\boxed{k = 45} \quad \text{and} \quad \boxed{n = 2}") == ("k = 45, n = 2", "box")
    assert found(r"\boxed{1} no no no \boxed{2}") == ("2", "box")


@pytest.mark.parametrize(
    "text", [r"use \boxed to mark it", r"put it in \boxed{}", "", "   ", "I don't know."]
)
def test_a_text_without_an_answer_has_none(text: str) -> None:
    # P112: text that mentions the box command has no answer and raises nothing.
    assert found(text) is None


def test_an_empty_box_after_the_answer_hides_it_not() -> None:
    assert found(r"\boxed{5} as asked, in \boxed{}") == ("5", "box")


def test_six_hundred_characters_after_the_answer_hide_nothing() -> None:
    # P108: a fixed window of 300 characters lost this one.
    assert found("The answer is 42.\n" + "As we saw, this holds. " * 30) == ("42", "phrase")


def test_the_start_of_a_long_box_is_kept() -> None:
    # P109: a box of 150 characters.
    content = "(" + ", ".join(str(k) for k in range(10, 60)) + ")"
    assert len(content) > 150
    assert found(rf"so \boxed{{{content}}}") == (content, "box")


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (r"so \boxed{12}", False),
        (r"so \boxed{12", True),
        ("The answer is 12", True),  # The next token may be another digit.
        ("The answer is 12.\nLet me check", False),
        ("#### 12", True),
        ("12 + 5 = 17", True),
        ("<think>maybe \\boxed{3} or", True),
        ("", True),
    ],
)
def test_at_the_token_limit_only_a_whole_answer_counts(text: str, cut: bool) -> None:
    extraction = extract_answer(text, finish_reason=FinishReason.LENGTH)
    assert extraction.cut is cut
    assert (extraction.answer is None) is cut


def test_the_answer_after_a_thinking_trace_wins() -> None:
    assert found("<think>\\boxed{3}? No.</think>The answer is 4.") == ("4", "phrase")
    assert found("<think>It is \\boxed{3}.</think>Done.") == ("3", "box")


def test_an_invented_next_problem_is_not_read() -> None:
    assert found("The answer is 7.\n\nQuestion: What is 2 + 2?\nThe answer is 4.") == ("7", "phrase")
    assert found("Problem: restate it.\nThe answer is 4.") == ("4", "phrase")


def test_guesses_can_be_forbidden() -> None:
    assert found("he has 3 left", fallback=False) is None
    assert FoundBy.LAST_NUMBER.is_guess
    assert not FoundBy.BOX.is_guess


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("so option (C) fits best", "C"),
        ("B) is the one", "B"),
        ("therefore I think it's B", "B"),
        ("no idea", None),
    ],
)
def test_a_choice_is_guessed_by_its_letter(text: str, letter: str | None) -> None:
    answer = extract_answer(text, kind=CheckKind.CHOICE).answer
    assert (answer.text if answer else None) == letter


@given(st.text(alphabet="\\boxed{}$#A: answer is 12.\n[]()<think/>", max_size=80))
def test_whatever_the_text_the_span_lies_in_it(text: str) -> None:
    for reason in FinishReason:
        extraction = extract_answer(text, finish_reason=reason)
        if extraction.answer:
            start, end = extraction.answer.span
            assert 0 <= start < end <= len(text)


@pytest.mark.parametrize(
    "part",
    [
        "\\boxed{",
        "\\boxed{1}",
        "answer is ",
        "$",
        "\\[",
        " ",
        "\u2028",
        "Question: ",
        "1,000",
        "#### ",
        "A:\n",
    ],
)
def test_time_is_linear_in_the_text(part: str) -> None:
    took = []
    for _ in range(3):  # the best of three: a busy machine slows some, not all
        began = time.process_time()
        extract_answer("The answer is " + part * (100_000 // len(part)))
        took.append(time.process_time() - began)
    assert min(took) < 0.5
