"""Steps are cut by characters, mapped to tokens, and lose no text."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepward.prm.errors import FormatError
from stepward.prm.steps import StepFormat
from stepward.prm.types import Phase, Step


class Chunks:
    """A tokenizer whose tokens are given texts; id = index; the last id is the end token."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.hash, self.bos_id, self.eos_ids = "chunks", None, frozenset({len(texts)})

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        while text:
            longest = max((t for t in self.texts if text.startswith(t)), key=len)
            ids.append(self.texts.index(longest))
            text = text[len(longest) :]
        return tuple(ids)

    def decode(self, ids) -> str:
        return "".join(self.texts[i] for i in ids if i not in self.eos_ids)

    def offsets(self, ids) -> tuple[int, ...]:
        starts, position = [], 0
        for i in ids:
            starts.append(position)
            position += 0 if i in self.eos_ids else len(self.texts[i])
        return tuple(starts)


@given(
    st.text(alphabet="ab .\n1S:t`<>/think?A", max_size=80),
    st.sampled_from(["newline", "blank_line", "step_k", "sentence", "code_cell", "tool_call", "think"]),
)
def test_pieces_rejoin_to_the_exact_text_and_none_is_blank(text, delimiter):
    pieces = StepFormat(delimiter).split(text)
    if text.strip():
        assert "".join(text[p.start : p.end] for p in pieces) == text
        assert all(p.text.strip() for p in pieces)
    else:
        assert pieces == []


@example(["a"] * 5 + ["\n\nb"], 0, 5)
@given(
    st.lists(st.sampled_from(["a", "b", "\n", ".\n", "\n\nb", " ", "a\nb\nc"]), min_size=1, max_size=30),
    st.integers(0, 4),
    st.sampled_from([0, 5, 7]),
)
def test_the_ids_of_all_steps_joined_are_the_sampled_ids(chunks, least, most):
    tokenizer = Chunks("a", "b", "\n", ".\n", "\n\nb", " ", "a\nb\nc")
    ids = (*(tokenizer.texts.index(c) for c in chunks), 7)
    steps = StepFormat("newline", min_step_tokens=least, max_step_tokens=most).split_ids(ids, tokenizer)
    if tokenizer.decode(ids).strip():
        assert tuple(i for s in steps for i in s.token_ids) == ids
        assert all(s.token_ids for s in steps)
        if most:
            # blank tokens and the end token join the step before them, whatever its length
            visible = [[i for i in s.token_ids if i != 7 and tokenizer.texts[i].strip()] for s in steps]
            # a token that a boundary cuts stays whole in the earlier step
            cut = [bool(v) and "\n" in tokenizer.texts[v[-1]].rstrip("\n") for v in visible]
            assert all(len(v) <= most + c for v, c in zip(visible, cut, strict=True))


def test_a_boundary_inside_a_token_is_flagged_and_the_token_kept_whole_in_the_earlier_step():
    tokenizer = Chunks("x = 1", ".\nSo", " y", " = 2")
    ids = (0, 1, 2, 3, 4)
    # text: "x = 1.\nSo y = 2"; the cut is at 7, inside token 1 (5..9)
    steps = StepFormat("newline").split_ids(ids, tokenizer)
    assert [s.token_ids for s in steps] == [(0, 1), (2, 3, 4)]
    assert [s.text for s in steps] == ["x = 1.", "So y = 2"]
    assert StepFormat("newline").straddling_tokens(ids, tokenizer) == (1,)


def test_a_piece_that_owns_no_token_is_joined_with_the_step_before_it():
    tokenizer = Chunks("a\nb\nc", "d")
    # pieces "a", "b", "cd": the first token holds "a", "b" and the "c" of the third
    steps = StepFormat("newline").split_ids((0, 1, 2), tokenizer)
    assert [(s.text, s.token_ids) for s in steps] == [("a\nb", (0,)), ("cd", (1, 2))]


def test_the_last_step_is_scored_at_its_separator_like_every_other():
    tokenizer = Chunks("one", "two", ".", "\n", ".\n")
    sampled = StepFormat("newline").split_ids((0, 4, 1, 2, 5), tokenizer)
    scored = StepFormat("newline").scored_ids(sampled, tokenizer)
    # "two." was sampled as two ids and has no separator; rendered with one it is encoded as "two" + ".\n"
    assert scored == [(0, 4), (1, 4)]
    assert scored == StepFormat("newline").encode_steps(["one.", "two."], tokenizer)


def test_ids_that_are_not_the_tokenizers_own_choice_are_kept_and_get_a_separator():
    tokenizer = Chunks("o", "ne", "one", "\n")
    assert StepFormat("newline").scored_ids([Step("one", (0, 1))], tokenizer) == [(0, 1, 3)]


def test_blank_lines_do_not_make_steps_and_crlf_leaves_no_trace_in_the_text():
    pieces = StepFormat("blank_line").split("\n\nfirst\r\n\r\n\n\nsecond\n\n")
    assert [p.text for p in pieces] == ["first", "second"]


def test_step_k_cuts_before_each_numbered_heading():
    text = "Intro.\nStep 1: add.\nmore\n**Step 2:** multiply"
    assert [p.text for p in StepFormat("step_k").split(text)] == [
        "Intro.",
        "Step 1: add.\nmore",
        "**Step 2:** multiply",
    ]


def test_sentences_end_neither_in_decimals_nor_in_abbreviations():
    text = "He has 3.5 kg, e.g. Apples. Then 2 more! Is it No. 4? Yes."
    assert [p.text for p in StepFormat("sentence").split(text)] == [
        "He has 3.5 kg, e.g. Apples.",
        "Then 2 more!",
        "Is it No. 4?",
        "Yes.",
    ]


def test_a_thinking_trace_keeps_its_phase_and_is_cut_at_cue_words():
    text = "<think>\nTry x = 2.\nWait, x = 3.\n</think>\n\nThe answer is 3."
    pieces = StepFormat("think").split(text)
    assert [(p.phase, p.text) for p in pieces] == [
        (Phase.THINK, "<think>\nTry x = 2."),
        (Phase.THINK, "Wait, x = 3.\n</think>"),
        (Phase.ANSWER, "The answer is 3."),
    ]


def test_a_code_cell_is_one_step_even_with_blank_lines_inside():
    text = "Compute.\n\n```python\na = 1\n\nprint(a)\n```\nSo it is 1."
    assert [p.text for p in StepFormat("code_cell").split(text)] == [
        "Compute.",
        "```python\na = 1\n\nprint(a)\n```",
        "So it is 1.",
    ]


def test_token_blocks_have_a_fixed_size():
    tokenizer = Chunks("a", "b")
    steps = StepFormat("token_block", max_step_tokens=2).split_ids((0, 1, 0, 1, 0), tokenizer)
    assert [len(s.token_ids) for s in steps] == [2, 2, 1]


def test_low_confidence_begins_a_step_at_an_unlikely_token():
    tokenizer = Chunks("a", "b")
    # ln .8 = -0.223: only the third token is below it
    steps = StepFormat("low_confidence").split_ids((0, 1, 0, 1), tokenizer, [-2.0, -0.1, -0.5, -0.2])
    assert [s.token_ids for s in steps] == [(0, 1), (0, 1)]


def test_a_blank_step_and_an_unknown_delimiter_are_refused_by_name():
    with pytest.raises(FormatError, match="step 1 of 2 is blank"):
        StepFormat().encode_steps(["a", "  "], Chunks("a", "\n"))
    with pytest.raises(FormatError, match="unknown step delimiter 'tab'"):
        StepFormat("tab")


def test_the_format_survives_json():
    fmt = StepFormat("token_block", max_step_tokens=7)
    assert StepFormat.from_json(fmt.to_json()) == fmt
    assert StepFormat.from_json(fmt.to_json()).hash == fmt.hash != StepFormat().hash
