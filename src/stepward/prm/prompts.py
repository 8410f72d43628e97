"""From a problem to the ids that a policy continues: plain, few-shot, or the model's chat template.

A template is rendered once, with the assistant's turn opened, and encoded once. What the policy has sampled is
appended as ids: a partial assistant turn never goes through a template, since templates of thinking models drop
text there. The text that a template adds by itself (a system message, a date) is part of the prompt's hash.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from stepward.prm.errors import FormatError, ModelError
from stepward.prm.policy import Tokenizer
from stepward.prm.tokenizer import JsonTokenizer, encode_start
from stepward.prm.types import Problem, TokenIds

if TYPE_CHECKING:
    import jinja2

_GENERATION_TAG = re.compile(r"(\{%-?)\s*(end)?generation\s*(-?%\})")

SENTINEL = "{the statement of the problem}"
"""Stands for the statement where a template is hashed and shown."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as it goes to the policy.

    Attributes:
        text: The rendered text.
        ids: Its ids, with one start token where the model has one.
    """

    text: str
    ids: TokenIds


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A Jinja template and what it is rendered with.

    Attributes:
        name: ``plain``, ``few_shot``, ``chat``, or the file's name.
        source: The template. Plain ones read ``problem`` (a text), chat ones ``messages``.
        chat: Whether it is a chat template.
        system: A system message put before the problem, chat only; None leaves it to the template.
        variables: Whatever else the template reads, such as ``examples`` or ``bos_token``.
        date: What ``strftime_now`` returns in a chat template, whatever format it asks for. None refuses
            templates that ask for today's date: rows must not depend on the day.
    """

    name: str
    source: str
    chat: bool = False
    system: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    date: str | None = None

    @property
    def shown(self) -> str:
        """The text of the prompt with a sentinel for the statement: store it once a hash."""
        return self._rendered((("user", SENTINEL),), SENTINEL, "the template itself")

    @property
    def hash(self) -> str:
        """First 16 hex digits of SHA-256 of ``shown``: written into every row as ``prompt_hash``."""
        return hashlib.sha256(self.shown.encode("utf-8", "replace")).hexdigest()[:16]

    def render_text(self, problem: Problem) -> str:
        """The prompt as text, for endpoints that take no ids.

        Raises:
            ModelError: The template fails or asks for what it is not given.
        """
        if isinstance(problem.statement, str):
            turns: tuple[tuple[str, str], ...] = (("user", problem.statement),)
        else:
            turns = tuple((m.role, m.content) for m in problem.statement)
        return self._rendered(turns, problem.text, f"problem {problem.id}")

    def render(self, problem: Problem, tokenizer: Tokenizer) -> RenderedPrompt:
        """The prompt as text and as ids.

        Args:
            problem: Its statement must not spell a control token of the tokenizer: it would end the turn.
            tokenizer: The policy's.

        Raises:
            FormatError: The statement holds a control token, or is no text that can be encoded.
            ModelError: The template fails, or the ids would start with two start tokens.
        """
        if isinstance(tokenizer, JsonTokenizer):
            found = [s for s in tokenizer.specials if s and s in problem.text]
            if found:
                raise FormatError(
                    f"rendering problem {problem.id}: its statement holds the control token {found[0]!r}, which "
                    "would change who speaks; remove it from the statement or write it in another way"
                )
        text = self.render_text(problem)
        ids = encode_start(tokenizer, text)
        bos = tokenizer.bos_id
        if bos is not None:
            if ids[:1] != (bos,):
                ids = (bos, *ids)
            if ids[1:2] == (bos,):
                raise ModelError(
                    f"rendering problem {problem.id} with the template {self.name}: the ids start with the start "
                    f"token {bos} twice; the template must write it once or not at all"
                )
        if not ids:
            raise FormatError(
                f"rendering problem {problem.id} with the template {self.name}: the prompt is empty"
            )
        return RenderedPrompt(text, ids)

    def _rendered(self, turns: Sequence[tuple[str, str]], statement: str, what: str) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        if self.system is not None and not (messages and messages[0]["role"] == "system"):
            messages.insert(0, {"role": "system", "content": self.system})
        values: dict[str, Any] = {"problem": statement} if not self.chat else {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }  # fmt: skip
        try:
            return _compiled(self.source, self.chat, self.date).render({**values, **self.variables})
        except Exception as fault:  # A model's template is foreign code and may raise anything.
            if "strftime_now" in str(fault):
                raise ModelError(
                    f"rendering {what} with the template {self.name}: it asks for today's date, and rows must not "
                    "depend on the day; give a fixed one, such as date='26 Jul 2024'"
                ) from fault
            raise ModelError(
                f"rendering {what} with the template {self.name}: {type(fault).__name__}: {fault}. "
                "A chat template that forbids a role or needs a variable can be replaced by the plain or few-shot one"
            ) from fault


def plain_template() -> PromptTemplate:
    """The statement under "Problem:", then "Solution:". For base models."""
    return PromptTemplate("plain", _shipped("plain.jinja"))


def few_shot_template(examples: Sequence[tuple[str, str]]) -> PromptTemplate:
    """Worked examples before the problem.

    Args:
        examples: (problem, solution) texts, in order; at least one.
    """
    if not examples:
        raise ModelError(
            "making a few-shot template: no example was given; give at least one, or use the plain one"
        )
    shown = tuple({"problem": problem, "solution": solution} for problem, solution in examples)
    return PromptTemplate("few_shot", _shipped("few_shot.jinja"), variables={"examples": shown})


def file_template(path: str | Path) -> PromptTemplate:
    """A template of one's own: a Jinja file that reads ``problem``. One newline at its end is dropped."""
    path = Path(path)
    try:
        return PromptTemplate(path.name, path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ModelError(f"reading the prompt template {path}: {fault.strerror}; name a text file") from fault


def chat_template(
    folder: str | Path, *, system: str | None = None, date: str | None = None
) -> PromptTemplate:
    """The model's own chat template.

    Args:
        folder: A checkpoint folder with ``chat_template.jinja``, or ``tokenizer_config.json`` that holds one.
        system: A system message; None leaves it to the template, whose default is part of the hash.
        date: The fixed text that stands for today's date, for templates that ask for it.

    Raises:
        ModelError: The model has no chat template.
    """
    folder = Path(folder)
    config_path = folder / "tokenizer_config.json"
    config = cast(
        dict[str, Any], json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    )
    own_file = folder / "chat_template.jinja"
    source: Any = own_file.read_text(encoding="utf-8") if own_file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in cast(list[dict[str, str]], source)}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        raise ModelError(
            f"reading the chat template of {folder.name}: it has none, so it is probably a base model; "
            "use the plain or the few-shot template"
        )
    variables: dict[str, Any] = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(key)
        if isinstance(value, dict):
            value = cast(dict[str, Any], value).get("content")
        if isinstance(value, str):
            variables[key] = value
    return PromptTemplate("chat", source, chat=True, system=system, variables=variables, date=date)


def _shipped(name: str) -> str:
    return (files("stepward.prm") / "templates" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def _compiled(source: str, chat: bool, date: str | None) -> "jinja2.Template":
    """Compiling costs more than rendering, and a run renders one template for every problem."""
    # Training marks of some chat templates; when a prompt is rendered they mean nothing.
    source = _GENERATION_TAG.sub(lambda m: f"{m[1]} {'endif' if m[2] else 'if true'} {m[3]}", source)
    return _environment(chat, date).from_string(source)


def _environment(chat: bool, date: str | None) -> "jinja2.Environment":
    """Templates come with models, so they run in the sandbox and see no file and no clock."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Chat templates are written for lenient undefined names ("if tools"); ours must fail on a misspelt one.
    undefined = jinja2.Undefined if chat else jinja2.StrictUndefined
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=chat, lstrip_blocks=chat, undefined=undefined, extensions=[loopcontrols]
    )
    globals_ = cast(dict[str, Any], cast(Any, environment).globals)
    globals_["raise_exception"] = _raise_exception
    cast(Any, environment).filters["tojson"] = _tojson
    if date is not None:
        globals_["strftime_now"] = lambda _: date  # pyright: ignore[reportUnknownLambdaType]
    return environment


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as it is written in chat templates: not escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)
