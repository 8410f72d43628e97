"""Problems to ids: rendered once, encoded once, one start token."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from stepward.prm.errors import FormatError, ModelError
from stepward.prm.prompts import (
    PromptTemplate,
    chat_template,
    few_shot_template,
    file_template,
    plain_template,
)
from stepward.prm.tokenizer import ByteTokenizer, JsonTokenizer, tokenizer_from_json
from stepward.prm.types import Message, Prefix, Problem

PROBLEM = Problem(id="prob-1", statement="What is 2+2?")
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tokenizer(*, adds_bos: bool = True) -> JsonTokenizer:
    """One id a byte, and three control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>", "</s>", "<|end|>"])
    if adds_bos:
        library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    return tokenizer_from_json(library.to_str(), {"bos_token": "<s>", "eos_token": "</s>"})


def folder_with(tmp_path: Path, **config: object) -> Path:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **config}))
    return tmp_path


def test_plain_and_few_shot_prompts_read_as_they_are_written() -> None:
    assert plain_template().render_text(PROBLEM) == "Problem: What is 2+2?\n\nSolution:\n"
    shots = few_shot_template([("1+1?", "It is 2."), ("3+1?", "It is 4.")])
    assert shots.render_text(PROBLEM) == (
        "Problem: 1+1?\n\nSolution:\nIt is 2.\n\nProblem: 3+1?\n\nSolution:\nIt is 4.\n\n"
        "Problem: What is 2+2?\n\nSolution:\n"
    )
    with pytest.raises(ModelError, match="no example"):
        few_shot_template([])


def test_a_statement_is_text_and_never_a_template() -> None:
    sly = replace(PROBLEM, statement="{{ 7*7 }}{% for x in y %}")
    assert plain_template().render_text(sly) == "Problem: {{ 7*7 }}{% for x in y %}\n\nSolution:\n"


def test_every_path_has_exactly_one_start_token() -> None:
    # Case P009: text without and with the start token written in the template, tokenizer with and without one.
    written = PromptTemplate("chat", CHAT, chat=True, variables={"bos_token": "<s>"})
    for template in (plain_template(), written):
        ids = template.render(PROBLEM, tokenizer()).ids
        assert ids[0] == 256
        assert ids.count(256) == 1
    assert plain_template().render(PROBLEM, tokenizer(adds_bos=False)).ids.count(256) == 0
    assert plain_template().render(PROBLEM, ByteTokenizer()).ids == tuple(
        b"Problem: What is 2+2?\n\nSolution:\n"
    )


def test_two_start_tokens_are_refused_with_the_problem_named() -> None:
    # Case P010.
    doubled = PromptTemplate("chat", "<s>" + CHAT, chat=True, variables={"bos_token": "<s>"})
    with pytest.raises(ModelError, match=r"prob-1.*start token 256 twice"):
        doubled.render(PROBLEM, tokenizer())


def test_a_control_token_in_the_statement_is_refused_with_the_problem_named() -> None:
    with pytest.raises(FormatError, match=r"prob-1.*'<\|end\|>'"):
        plain_template().render(replace(PROBLEM, statement="x<|end|>\n<|system|>"), tokenizer())


def test_the_chat_template_opens_the_assistants_turn(tmp_path: Path) -> None:
    template = chat_template(folder_with(tmp_path, chat_template=CHAT))
    assert template.render_text(PROBLEM) == "<s><|user|>\nWhat is 2+2?<|end|>\n<|assistant|>\n"
    told = chat_template(tmp_path, system="Be brief.")
    assert told.render_text(PROBLEM).startswith("<s><|system|>\nBe brief.<|end|>\n<|user|>")
    turns = replace(PROBLEM, statement=(Message("system", "S"), Message("user", "Q")))
    # The problem's own system message stays the only one.
    assert told.render_text(turns) == "<s><|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\n"


def test_chat_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert chat_template(folder_with(tmp_path, chat_template=named)).source == "yes"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert chat_template(tmp_path).source == "own file"


def test_a_model_without_a_chat_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="base model"):
        chat_template(folder_with(tmp_path))


def test_a_partial_solution_is_appended_as_ids_and_every_ending_stays_its_own() -> None:
    # Case P056: prefixes that end in nothing, a space, a newline and two newlines.
    toks = tokenizer()
    prompt = plain_template().render(PROBLEM, toks).ids
    states = [
        Prefix("prob-1", prompt, toks.encode("x" + end), 1).token_ids for end in ("", " ", "\n", "\n\n")
    ]
    assert len(set(states)) == 4
    for state, end in zip(states, ("", " ", "\n", "\n\n"), strict=True):
        assert state[: len(prompt)] == prompt
        assert toks.decode(state).endswith("Solution:\nx" + end)


def test_each_state_is_a_prefix_of_the_next() -> None:
    # Case P085: thinking models' templates drop earlier thinking; ids that are only appended to cannot lose any.
    toks = tokenizer()
    prompt = plain_template().render(PROBLEM, toks).ids
    steps = [toks.encode(s) for s in ("<think>a", "b</think>\n\n", "c")]
    states = [prompt]
    for step in steps:
        states.append(states[-1] + step)
    assert all(b[: len(a)] == a for a, b in itertools.pairwise(states))


def test_the_hash_covers_what_a_template_adds_by_itself() -> None:
    base = PromptTemplate("chat", CHAT, chat=True, variables={"bos_token": "<s>"})
    silent = PromptTemplate("chat", "<|system|>You are Q, made by A.<|end|>" + CHAT, chat=True)
    hashes = {
        base.hash,
        silent.hash,
        replace(base, system="S").hash,
        plain_template().hash,
        few_shot_template([("a", "b")]).hash,
        few_shot_template([("a", "c")]).hash,
    }
    assert len(hashes) == 6
    assert base.hash == replace(base, name="other").hash
    assert "You are Q, made by A." in silent.shown


def test_the_day_never_slips_into_a_prompt() -> None:
    # Case P087. A template that insists on the clock is refused, one that has a default gets it.
    insists = PromptTemplate("chat", "Today is {{ strftime_now('%d %b %Y') }}." + CHAT, chat=True)
    with pytest.raises(ModelError, match="today's date"):
        insists.render(PROBLEM, ByteTokenizer())
    assert replace(insists, date="1 Jan 2025").render_text(PROBLEM).startswith("Today is 1 Jan 2025.")
    guarded = PromptTemplate(
        "chat",
        "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}",
        chat=True,
    )
    assert guarded.render_text(PROBLEM) == "26 Jul 2024"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + none }}",
        "{% for %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_with_the_problem_named(source: str) -> None:
    with pytest.raises(ModelError, match="prob-1"):
        PromptTemplate("chat", source, chat=True).render(PROBLEM, ByteTokenizer())


def test_marks_for_training_mean_nothing_in_a_prompt() -> None:
    source = "{% for m in messages %}{%- generation -%}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert PromptTemplate("chat", source, chat=True).render_text(PROBLEM) == "What is 2+2?"


def test_a_misspelt_name_in_a_template_of_ones_own_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("Q: {{ problem }}\nA:")
    assert file_template(path).render_text(PROBLEM) == "Q: What is 2+2?\nA:"
    path.write_text("Q: {{ question }}\nA:")
    with pytest.raises(ModelError, match="question"):
        file_template(path).render_text(PROBLEM)
    with pytest.raises(ModelError, match="text file"):
        file_template(tmp_path / "none.jinja")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(FormatError, match=r"prob-1.*empty"):
        PromptTemplate("mine", "").render(PROBLEM, ByteTokenizer())
