"""Word problems: their text, their splits, and the exact checker of their solutions."""

import random
from itertools import islice, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.prm.errors import FormatError
from stepward.prm.types import Problem, problem_id
from stepward.prm.word_problems.phrases import THEMES, Reading
from stepward.prm.word_problems.problems import LEVELS, Split, act, generate, parse, split_of
from stepward.prm.word_problems.solutions import ErrorKind, check_steps, first_wrong_step, right_steps


def problem(statement: str) -> Problem:
    return Problem(id=problem_id("generator", statement), statement=statement)


MARBLES = problem(
    "Mia has 12 marbles. She buys 7 more. She gets back 5 that were lent. How many marbles does Mia have now?"
)  # 12 + 7 = 19, 19 + 5 = 24
PARTS = problem(
    "Tom has 12 stickers. He buys 6 more. He keeps one of 3 equal parts. Ana gives away 4 too. "
    "How many stickers does he have in the end?"
)  # 12 + 6 = 18, 18 / 3 = 6
FRIENDS = problem(
    "Zoe has 24 shells. She shares them equally with 3 friends. Zoe now has 2 shells more than Ben. "
    "How many do they have together?"
)  # 24 / 4 = 6, 6 - 2 = 4, 6 + 4 = 10
BAKER = problem(
    "A baker has 40 rolls. 3 trays of 5 come out of the oven. One of 11 equal batches burns. "
    "2 dozen more are baked. How many rolls are left?"
)  # 3 * 5 = 15, 40 + 15 = 55, 55 / 11 = 5, 55 - 5 = 50, 2 * 12 = 24, 50 + 24 = 74
WEEKS = problem(
    "Leo has 50 euros. He saves 3 euros a day for 2 weeks. Leo would like to have 99 euros. "
    "How many more does he need?"
)  # 2 * 7 = 14, 14 * 3 = 42, 50 + 42 = 92, 99 - 92 = 7


# ---- The generator -----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    first = list(islice(generate(Split.TRAIN, 3), 50))
    assert first == list(islice(generate(Split.TRAIN, 3), 50))
    assert first != list(islice(generate(Split.TRAIN, 4), 50))


def test_a_problem_is_fit_for_publication_and_names_itself_by_its_text() -> None:
    for p in islice(generate(Split.LABEL, 0), 100):
        assert (p.source, p.licence) == ("generator", "Apache-2.0")
        assert p.id == problem_id("generator", p.text)
        assert len(p.answers) == 1
        assert int(p.answers[0]) >= 1


@pytest.mark.parametrize("level", LEVELS)
def test_the_parser_recovers_answer_and_number_of_steps_at_every_level(level: str) -> None:
    for p in islice(generate(Split.HELD_OUT, 1, level=level), 60):
        story = parse(p.text)
        assert str(story.answer) == p.answers[0]
        assert len(story.equations) in LEVELS[level].step_weights
        for left, op, right, result in story.equations:
            assert result == {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[op]


def test_levels_reach_from_two_to_eight_steps() -> None:
    counts = {
        len(parse(p.text).equations)
        for name in LEVELS
        for p in islice(generate(Split.TRAIN, 0, level=name), 300)
    }
    assert counts == {2, 3, 4, 5, 6, 7, 8}


def test_splits_share_no_text_and_no_arithmetic_whatever_the_seed() -> None:
    seen: dict[str, Split] = {}
    for split in Split:
        for seed in (0, 1):
            for p in islice(generate(split, seed), 150):
                assert seen.setdefault(p.text, split) is split
                assert split_of(parse(p.text)) is split


def test_names_wording_and_distractors_do_not_move_a_problem_to_another_split() -> None:
    plain = parse(
        "Mia has 12 marbles. She buys 7 more. She loses 3 of them. How many marbles does Mia have now?"
    )
    retold = parse(
        "A tank holds 12 gallons of water. 7 gallons are poured in. The tank is 9 years old. "
        "Then 3 gallons leak out. How many gallons are in the tank now?"
    )
    assert split_of(plain) is split_of(retold)


def test_every_phrase_of_every_theme_reads_back_as_itself() -> None:
    slots = {"N": "Mia", "P": "She", "p": "she", "o": "her", "M": "Ben", "a": 30, "b": 2, "c": 3}
    for theme in THEMES:
        for thing in theme.things:
            for phrase in theme.events + theme.endings:
                ending = "" if phrase in theme.endings else " " + theme.endings[0].text
                text = f"{theme.opening} {phrase.text}{ending}".format(**slots, i=thing)
                assert parse(text).events[0].phrase == phrase


def test_a_text_that_is_no_generated_problem_is_refused() -> None:
    for text in ("", "Mia has 12 marbles.", MARBLES.text + " Why?", MARBLES.text.replace("buys", "steals")):
        with pytest.raises(FormatError, match="generated word problem"):
            parse(text)


def test_an_unknown_level_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="no level 'hardest'; there are default, demo, easy"):
        next(generate(Split.TRAIN, level="hardest"))


# ---- The checker -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_the_right_solution_has_no_wrong_step_at_any_level(level: str) -> None:
    for p in islice(generate(Split.TRAIN, 5, level=level), 40):
        assert check_steps(p, right_steps(p)).is_right


# name, problem, steps, first error, kind of error
CASES: list[tuple[str, Problem, str, int | None, ErrorKind | None]] = [
    ("right", MARBLES, "12 + 7 = 19 | 19 + 5 = 24 | The answer is 24.", None, None),
    ("commuted", MARBLES, "7 + 12 = 19 | 5 + 19 = 24 | The answer is 24.", None, None),
    ("other order", MARBLES, "12 + 5 = 17 | 17 + 7 = 24 | The answer is 24.", None, None),
    ("gains first", MARBLES, "7 + 5 = 12 | 12 + 12 = 24 | The answer is 24.", None, None),
    ("in one step", MARBLES, "12 + 7 + 5 = 24 | The answer is 24.", None, None),
    ("answer at once", MARBLES, "The answer is 24.", None, None),
    (
        "wording",
        MARBLES,
        "Well, 12 + 7 = 19 so far | Let us see. | Now 19+5=24 | The answer is 24",
        None,
        None,
    ),
    (
        "numbers in words",
        MARBLES,
        "She has 12 marbles. | 12 + 7 = 19 marbles | The answer is: 24",
        None,
        None,
    ),
    ("repeated", MARBLES, "12 + 7 = 19 | 12 + 7 = 19 | 19 + 5 = 24 | The answer is 24.", None, None),
    ("adds nothing", MARBLES, "12 + 0 = 12 | 12 + 7 = 19 | 19 + 5 = 24 | The answer is 24.", None, None),
    ("empty step", MARBLES, " | 12 + 7 = 19 | 19 + 5 = 24 | The answer is 24.", None, None),
    ("answer as equation", MARBLES, "12 + 7 = 19 | The answer is 19 + 5 = 24.", None, None),
    ("typographic signs", PARTS, "12 + 6 = 18 | 18 ÷ 3 = 6 | The answer is 6.", None, None),
    ("misread", MARBLES, "12 + 7 = 19 | 19 - 5 = 14 | The answer is 14.", 1, ErrorKind.LOGIC),
    ("slip", MARBLES, "12 + 7 = 18 | 18 + 5 = 23 | The answer is 23.", 0, ErrorKind.ARITHMETIC),
    ("wrong operand", MARBLES, "12 + 7 = 19 | 19 + 8 = 27 | The answer is 27.", 1, ErrorKind.OPERAND),
    ("dropped step", MARBLES, "12 + 7 = 19 | The answer is 19.", 1, ErrorKind.ANSWER),
    ("dropped and built upon", PARTS, "12 / 3 = 4 | The answer is 4.", 0, ErrorKind.LOGIC),
    ("distractor", PARTS, "12 + 6 = 18 | 18 / 3 = 6 | 6 - 4 = 2 | The answer is 2.", 2, ErrorKind.LOGIC),
    ("wrong answer line", MARBLES, "12 + 7 = 19 | 19 + 5 = 24 | The answer is 42.", 2, ErrorKind.ANSWER),
    ("no number", MARBLES, "12 + 7 = 19 | 19 + 5 = 24 | The answer is unclear.", 2, ErrorKind.MALFORMED),
    ("broken formula", MARBLES, "12 + = 19 | 19 + 5 = 24 | The answer is 24.", 0, ErrorKind.MALFORMED),
    ("chained equation", MARBLES, "12 + 7 = 19 + 5 = 24 | The answer is 24.", 0, ErrorKind.MALFORMED),
    ("formula without result", MARBLES, "12 + 7 | The answer is 24.", 0, ErrorKind.MALFORMED),
    ("number from nowhere", MARBLES, "She has 31 marbles. | The answer is 24.", 0, ErrorKind.OPERAND),
    (
        "two claims, one false",
        MARBLES,
        "12 + 7 = 19, 19 + 5 = 23 | The answer is 24.",
        0,
        ErrorKind.ARITHMETIC,
    ),
    ("division by zero", MARBLES, "12 / 0 = 12 | The answer is 24.", 0, ErrorKind.ARITHMETIC),
    ("equal result by a wrong way", MARBLES, "12 + 7 = 19 | 19 * 1 = 19 | 19 + 7 = 26", 2, ErrorKind.LOGIC),
    ("right", FRIENDS, "24 / 4 = 6 | 6 - 2 = 4 | 6 + 4 = 10 | The answer is 10.", None, None),
    ("all who share", FRIENDS, "3 + 1 = 4 | 24 / 4 = 6 | 6 - 2 = 4 | 6 + 4 = 10", None, None),
    ("doubling instead", FRIENDS, "24 / 4 = 6 | 6 * 2 = 12 | 12 - 2 = 10 | The answer is 10.", None, None),
    ("forgot herself", FRIENDS, "24 / 3 = 8 | 8 - 2 = 6 | 8 + 6 = 14", 0, ErrorKind.LOGIC),
    ("more for fewer", FRIENDS, "24 / 4 = 6 | 6 + 2 = 8 | 6 + 8 = 14", 1, ErrorKind.LOGIC),
    (
        "right",
        BAKER,
        "3 * 5 = 15 | 40 + 15 = 55 | 55 / 11 = 5 | 55 - 5 = 50 | 2 * 12 = 24 | 24 + 50 = 74 | The answer is 74.",
        None,
        None,
    ),
    (
        "gain before loss",
        BAKER,
        "5 * 3 = 15 | 40 + 15 = 55 | 2 * 12 = 24 | 55 + 24 = 79 | 55 / 11 = 5 | 79 - 5 = 74",
        None,
        None,
    ),
    (
        "part taken for rest",
        BAKER,
        "3 * 5 = 15 | 40 + 15 = 55 | 55 / 11 = 5 | 2 * 12 = 24 | 5 + 24 = 29",
        4,
        ErrorKind.LOGIC,
    ),
    ("one tray", BAKER, "40 + 5 = 45", 0, ErrorKind.LOGIC),
    ("units dropped", BAKER, "3 * 5 = 15 | 40 + 15 = 55 | 55 + 2 = 57", 2, ErrorKind.LOGIC),
    ("right", WEEKS, "2 * 7 = 14 | 14 * 3 = 42 | 50 + 42 = 92 | 99 - 92 = 7 | The answer is 7.", None, None),
    (
        "other grouping",
        WEEKS,
        "3 * 7 = 21 | 21 * 2 = 42 | 99 - 50 = 49 | 49 - 42 = 7 | The answer is 7.",
        None,
        None,
    ),
    ("weeks as days", WEEKS, "2 * 3 = 6 | 50 + 6 = 56 | 99 - 56 = 43", 1, ErrorKind.LOGIC),
    (
        "question forgotten",
        WEEKS,
        "2 * 7 = 14 | 14 * 3 = 42 | 50 + 42 = 92 | The answer is 92.",
        3,
        ErrorKind.ANSWER,
    ),
]


@pytest.mark.parametrize(("name", "p", "steps", "first_error", "kind"), CASES)
def test_the_first_wrong_step_is_found(
    name: str, p: Problem, steps: str, first_error: int | None, kind: ErrorKind | None
) -> None:
    check = check_steps(p, steps.split(" | "))
    assert (check.first_error, check.kind) == (first_error, kind), name
    assert first_wrong_step(p, steps.split(" | ")) == first_error


def test_a_solution_without_answer_has_no_wrong_step_but_is_not_right() -> None:
    check = check_steps(MARBLES, ["12 + 7 = 19", "19 + 5 = 24"])
    assert (check.first_error, check.is_answered, check.is_right) == (None, False, False)


def test_a_step_that_is_right_by_one_meaning_of_its_number_is_right() -> None:
    # Both the opening amount and the gain are 6: 6 + 6 = 12 whichever is meant, and 12 / 2 follows only from the sum.
    p = problem(
        "Mia has 6 coins. She buys 6 more. She keeps one of 2 equal parts. How many coins does Mia have now?"
    )
    assert first_wrong_step(p, ["6 + 6 = 12", "12 / 2 = 6", "The answer is 6."]) is None
    assert first_wrong_step(p, ["6 / 2 = 3", "The answer is 6."]) == 0


def test_a_right_answer_does_not_hide_a_wrong_step() -> None:
    # Two misreadings that cancel: 20 - 4 + 4 where the story says 20 + 4 - 4.
    p = problem(
        "Mia has 20 coins. She gets back 4 that were lent. She returns 4 that were borrowed. She finds 3 more. "
        "How many coins does Mia have now?"
    )
    assert first_wrong_step(p, ["20 - 3 = 17", "17 + 6 = 23", "The answer is 23."]) == 0


def test_the_checker_needs_nothing_but_the_statement() -> None:
    for p in islice(generate(Split.TRAIN, 9), 20):
        bare = Problem(id="x", statement=p.statement)
        steps = right_steps(p)
        assert check_steps(bare, steps).is_right
        assert first_wrong_step(bare, [*steps[:-1], "The answer is 1000."]) == len(steps) - 1


def test_events_of_one_run_may_come_in_any_order() -> None:
    p = problem(
        "A rope is 40 cm long. 7 cm are cut off. 9 cm are tied on. It is 11 cm too long, so it is made shorter. "
        "How many cm long is the rope now?"
    )  # 40 - 7 + 9 - 11 = 31
    for order in permutations((-7, 9, -11)):
        amount, steps = 40, []
        for change in order:
            steps.append(f"{amount} {'+' if change > 0 else '-'} {abs(change)} = {amount + change}")
            amount += change
        assert check_steps(p, [*steps, "The answer is 31."]).is_right


@given(seed=st.integers(0, 10_000), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_misread_phrase_is_found_at_or_after_the_step_it_first_changes(
    seed: int, data: st.DataObject
) -> None:
    p = next(generate(Split.LABEL, seed))
    story = parse(p.text)
    misreadable = [i for i, e in enumerate(story.events) if e.phrase.misreading is not None]
    if not misreadable:
        return
    misread = data.draw(st.sampled_from(misreadable))
    right, steps, amount = right_steps(p), list[str](), story.start
    for i, event in enumerate(story.events):
        reading = event.phrase.misreading if i == misread else event.phrase.reading
        assert reading is not None
        for left, op, b, result in act(reading, amount, event.numbers):
            steps.append(f"{left} {op} {b} = {result}")
            amount = result
    steps.append(f"The answer is {amount}.")
    same = next(i for i, (a, b) in enumerate(zip(steps, right, strict=False)) if a != b)
    found = first_wrong_step(p, steps)
    if amount != story.answer:
        assert found is not None
    if found is not None:
        assert found >= same


@given(
    seed=st.integers(0, 1000),
    text=st.lists(st.text(alphabet="0123456789+-*/= .xTheanswri", max_size=30), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_any_text_is_decided_and_a_prefix_never_changes_the_verdict(seed: int, text: list[str]) -> None:
    p = next(generate(Split.TRAIN, seed % 5))
    steps = [*right_steps(p)[:2], *text]
    found = first_wrong_step(p, steps)
    for cut in range(len(steps) + 1):
        part = first_wrong_step(p, steps[:cut])
        assert part == (found if found is not None and found < cut else None)


def test_a_chance_solution_is_right_exactly_if_its_number_is() -> None:
    rng = random.Random(0)
    for p in islice(generate(Split.HELD_OUT, 2), 100):
        guess = rng.randrange(1, 60)
        assert (first_wrong_step(p, [f"The answer is {guess}."]) is None) == (str(guess) == p.answers[0])


def test_readings_that_only_mislead_are_no_phrase_s_meaning() -> None:
    dropped = {Reading.ONE_PACK_IN, Reading.ONE_PACK_OUT, Reading.OTHER_MORE, Reading.OTHER_FEWER}
    assert not dropped & {p.reading for t in THEMES for p in t.events + t.endings}
