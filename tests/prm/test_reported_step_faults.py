"""Public fault reports on tokens and step boundaries, each with its right value.

Others stand beside what they test: P009, P010, P056, P085 and P087 in test_prompts, P083 in test_tokenizer, P002, P009
and P013 in training's test_collate, P005 in its test_discriminative.
"""

import itertools
import json

import pytest
from tokenizers import Tokenizer, decoders, models

from stepward.prm.errors import FormatError, ModelError
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.published import FragmentFormat, single_id
from stepward.prm.prompts import PromptTemplate
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import JsonTokenizer, tokenizer_from_json
from stepward.prm.types import Problem, Step


def bpe(tokens: list[str], merges: list[tuple[str, str]], special: tuple[str, ...] = ()) -> JsonTokenizer:
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    inner.decoder = decoders.Fuse()
    raw = json.loads(inner.to_str())
    raw["added_tokens"] = [
        {
            "id": tokens.index(s), "content": s, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for s in special
    ]  # fmt: skip
    return tokenizer_from_json(json.dumps(raw))


def test_p002_a_separator_that_merges_still_ends_each_of_two_steps() -> None:
    # The ids that a policy samples as the report wants them: a . \n b . \n, where the tokenizer itself would merge.
    tokenizer = bpe(["a", "b", ".", "\n", ".\n", "\n\n"], [(".", "\n"), ("\n", "\n")])
    sampled = StepFormat().split_ids((0, 2, 3, 1, 2, 3), tokenizer)
    assert [s.token_ids for s in sampled] == [(0, 2, 3), (1, 2, 3)]
    inputs = InputFormat(tokenizer, StepFormat(), PromptTemplate("p", "a{{ problem }}"))
    encoded = inputs.encode(Problem("p", "b"), sampled, tokenizer_hash=tokenizer.hash)
    assert encoded.token_ids[2:] == (0, 2, 3, 1, 2, 3)
    assert [e - 2 for e in encoded.step_ends] == [2, 5]
    # Encoded from text the separator merges, and the merged id is where the label sits: never no position at all.
    assert inputs.encode(Problem("p", "b"), ["a.", "b."]).step_ends == (3, 5)


def test_p003_a_label_token_with_two_ids_is_found_in_its_real_context_or_refused_with_the_ids() -> None:
    tokens = ["k", " k", " ", "a", "\n"]
    tokenizer = bpe(tokens, [(" ", "k")])
    assert tokenizer.encode("a k")[1:] == (1,)
    assert single_id(tokenizer, " k") == 1
    assert single_id(tokenizer, "k") == 0
    with pytest.raises(ModelError, match=r"ids \[3, 1\]"):
        single_id(tokenizer, "a k")


def test_p012_a_step_that_ends_in_d_has_exactly_one_tag_and_none_is_an_error_that_names_the_step() -> None:
    # 'd' and the tag merge; a tag that is looked up by its own id is never there.
    tokenizer = bpe(["a", "d", "+", "d+", "\n", "?"], [("d", "+")])

    def layout(problem, steps):
        return "?", [(f"{s}+",) for s in steps]

    def apart(problem, steps):
        return "?", [(s, "+") for s in steps]

    merged = FragmentFormat(tokenizer, layout, StepFormat(), marker=2)
    with pytest.raises(FormatError, match=r"step 0 of a solution of problem p has the marker 2 0 times"):
        merged.encode(Problem("p", "?"), ["ad"])
    found = FragmentFormat(tokenizer, apart, StepFormat(), marker=2).encode(Problem("p", "?"), ["ad"])
    assert found.token_ids == (5, 0, 1, 2)
    assert found.step_ends == (3,)


def test_p068_a_separator_inside_a_token_cuts_by_characters_and_flags_the_token() -> None:
    tokens = ["x=2", ".\n\nSo", " y", *"x=2.\nSo y"]
    tokenizer = bpe(list(dict.fromkeys(tokens)), [])
    ids = (0, 1, 2)
    assert tokenizer.decode(ids) == "x=2.\n\nSo y"
    first, second = StepFormat("blank_line").split(tokenizer.decode(ids))
    # The step and its separator are [0, 6), the step alone "x=2."
    assert (first.start, first.end, first.text) == (0, 6, "x=2.")
    assert second.text == "So y"
    assert (
        tokenizer.decode(ids)[first.start : first.end] + tokenizer.decode(ids)[second.start :]
        == "x=2.\n\nSo y"
    )
    assert StepFormat("blank_line").straddling_tokens(ids, tokenizer) == (1,)
    assert [s.token_ids for s in StepFormat("blank_line").split_ids(ids, tokenizer)] == [(0, 1), (2,)]


def test_p073_three_special_markers_make_three_boundaries_from_ids() -> None:
    tokens = ["a", "b", "c", "d", "</tool_call>", "</s>"]
    tokenizer = bpe(tokens, [], special=("</tool_call>", "</s>"))
    ids = (0, 4, 1, 4, 2, 4, 3)
    # Libraries drop special tokens from text; here only end tokens have no text.
    assert tokenizer.decode(ids) == "a</tool_call>b</tool_call>c</tool_call>d"
    steps = StepFormat("tool_call").split_ids(ids, tokenizer)
    assert [s.token_ids for s in steps] == [(0, 4), (1, 4), (2, 4), (3,)]


def test_p084_labels_sit_on_the_stored_ids_although_encoding_again_gives_more() -> None:
    # A policy sampled 'abc' as one id that the tokenizer's own merges never give: encoded again it is three.
    tokenizer = bpe(["a", "b", "c", "abc", "\n", "?"], [])
    assert len(tokenizer.encode("abc\n")) == 4
    inputs = InputFormat(tokenizer, StepFormat(), PromptTemplate("p", "?{{ problem }}"))
    steps = [Step("abc", (3, 4)), Step("abc", (3, 4))]
    encoded = inputs.encode(Problem("p", "a"), steps, tokenizer_hash=tokenizer.hash)
    assert encoded.token_ids == (5, 0, 3, 4, 3, 4)
    # len(prompt) + len(ids) - 1 = 2 + 4 - 1
    assert encoded.step_ends[-1] == 5
    assert encoded.ids_from == "sampled"


def test_p083_and_p085_each_state_begins_with_the_one_before_it() -> None:
    tokenizer = bpe(
        ["h", "e", "l", "o", "he", "ll", "llo", "hello", "\n"],
        [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")],
    )
    ids = (4, 6, 8, 4, 6, 8, 4, 6)
    states = [()]
    for step in StepFormat().split_ids(ids, tokenizer):
        states.append(states[-1] + step.token_ids)
    assert states == [(), (4, 6, 8), (4, 6, 8, 4, 6, 8), ids]
    assert all(b[: len(a)] == a for a, b in itertools.pairwise(states))
    # What encoding again would have made of the first state: another one.
    assert tokenizer.encode("hello\n") == (7, 8)
