"""Adapters: published reward models behind the same protocol, from their own weights and token layouts.

Each adapter says how a problem and its steps become text fragments, which are encoded apart, and at which id a step
is scored: the last of its last fragment. The layouts follow the models' own inference code. No code from a model
repository is ever run; a layout that a tokenizer does not give is an error, never a shifted score.
"""

# pyright: basic
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from stepward.prm.errors import ModelError
from stepward.prm.models.discriminative import DiscriminativePRM
from stepward.prm.models.folder import LoadedPrm, PrmDescription
from stepward.prm.models.generative import GenerativeRewardModel
from stepward.prm.models.genprm import GenPrmRewardModel, conversation_template
from stepward.prm.models.heads import HeadSpec, build_head, head_spec
from stepward.prm.models.implicit import ImplicitPRM
from stepward.prm.models.inputs import EncodedSolution, InputRefused
from stepward.prm.models.thinkprm import ThinkFormat
from stepward.prm.models.weights import (
    from_pretrained,
    load_reference,
    load_strict,
    model_width,
    read_tensors,
    split_lm,
)
from stepward.prm.policy import Executor, Policy
from stepward.prm.prompts import PromptTemplate, chat_template
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import JsonTokenizer, encode_start, load_tokenizer
from stepward.prm.types import Message, Problem, Sampler, Step

Fragments = tuple[str, list[tuple[str, ...]]]
Layout = Callable[[Problem, Sequence[str]], Fragments]
QWEN_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, slots=True)
class FragmentFormat:
    """The input of a published model.

    Attributes:
        tokenizer: The model's.
        layout: (problem, steps) -> prompt text and, for each step, the fragments that are encoded apart.
        step_format: How the model's users split a solution.
        marker: The id that every step must end with, or None where a layout has no marker.
        only_marker: Whether the marker may stand nowhere else in a step: text must not forge one.
        read_before: Read the score this many ids before the step's last.
        max_tokens: Most ids; 0 = no limit.
    """

    tokenizer: JsonTokenizer
    layout: Layout = field(repr=False)
    step_format: StepFormat
    marker: int | None = None
    only_marker: bool = True
    read_before: int = 0
    max_tokens: int = 0

    def encode(
        self, problem: Problem, steps: Sequence[str] | Sequence[Step], *, tokenizer_hash: str | None = None
    ) -> EncodedSolution:
        """Ids and score positions of one solution; always from text, whatever ``tokenizer_hash`` says.

        Raises:
            InputRefused: No steps, a blank one, one that holds the marker or does not end with it, or too many ids.
        """
        texts = [s.text if isinstance(s, Step) else s for s in steps]
        if not texts or any(not t.strip() for t in texts):
            raise InputRefused(
                "blank step", f"a solution of problem {problem.id} has no steps or a blank one"
            )
        prompt, pieces = self.layout(problem, texts)
        ids = list(encode_start(self.tokenizer, prompt))
        bos = self.tokenizer.bos_id
        # A chat template may write the start token itself, in the prompt or, where there is none, in the first step.
        opening = ids or self.tokenizer.encode(pieces[0][0])
        if bos is not None and opening[0] != bos:
            ids.insert(0, bos)
        length, ends = len(ids), list[int]()
        for number, fragments in enumerate(pieces):
            step_ids = [i for f in fragments for i in self.tokenizer.encode(f)]
            if self.marker is not None:
                self._check_marker(step_ids, number, texts[number], problem)
            ids += step_ids
            ends.append(len(ids) - 1 - self.read_before)
        if self.max_tokens and len(ids) > self.max_tokens:
            raise InputRefused(
                "over the token limit",
                f"a solution of problem {problem.id} has {len(ids)} ids and the model takes {self.max_tokens}",
            )
        return EncodedSolution(tuple(ids), length, tuple(ends))

    def _check_marker(self, step_ids: Sequence[int], number: int, text: str, problem: Problem) -> None:
        times = sum(i == self.marker for i in step_ids)
        if step_ids[-1] != self.marker or (self.only_marker and times != 1):
            raise InputRefused(
                "marker",
                f"step {number} of a solution of problem {problem.id} has the marker {self.marker} {times} times and "
                f"ends with the id {step_ids[-1]}: one at its end is needed; the step ends in {text[-40:]!r}",
            )


def load_published(
    folder: Path, name: str, *, adapter: str | None, reference: Path | None, dtype: torch.dtype
) -> LoadedPrm:
    """A published reward model by its layout.

    Args:
        folder: Its files.
        name: Hub id or folder name; some layouts are told apart by it alone.
        adapter: A name in ``ADAPTERS`` where the config does not tell.
        reference: The reference model of an implicit reward model.
        dtype: Of the weights.

    Raises:
        ModelError: No adapter fits, or a weight or a marker of the layout is missing.
    """
    kind = adapter or recognise(folder, name)
    if kind not in ADAPTERS:
        raise ModelError(f"unknown adapter {kind!r}; known: {', '.join(ADAPTERS)}")
    model, inputs = ADAPTERS[kind](folder, dtype)
    loaded = None
    if isinstance(model, ImplicitPRM):
        if reference is None:
            raise ModelError(
                f"{name} is an implicit reward model: a ratio to the model that it was trained from; name that as "
                "reference (EurusPRM: Qwen/Qwen2.5-Math-7B-Instruct)"
            )
        if load_tokenizer(reference).hash != inputs.tokenizer.hash:
            raise ModelError(f"the reference {reference.name} has another tokenizer than {name}")
        loaded = load_reference(reference, dtype)
    description = PrmDescription(
        model.head.spec, inputs.step_format, max_tokens=inputs.max_tokens, training={"adapter": kind}
    )
    return LoadedPrm(model.eval(), inputs, loaded, description)


def recognise(folder: Path, name: str) -> str:
    """The adapter that a checkpoint needs.

    Raises:
        ModelError: None is known to fit.
    """
    architectures = AutoConfig.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    ).architectures or [""]
    if architectures[0] == "Qwen2ForProcessRewardModel":
        return "qwen_math_prm"
    if architectures[0] == "Qwen2ForPrmModel":
        return "skywork"
    lowered = name.lower()
    for words, kind in (
        ("math-shepherd", "math_shepherd"),
        ("prm-deepseek-data", "rlhflow"),
        ("prm-mistral-data", "rlhflow"),
        ("eurusprm", "implicit"),
    ):
        if words in lowered:
            return kind
    if recognise_critic(name) is not None:
        raise ModelError(
            f"{name} writes its judgements: hand in an engine that serves it, load_critic(name, policy) or stepward "
            "score --policy"
        )
    raise ModelError(
        f"{name} ({architectures[0]}) is no reward model of Stepward's and no adapter knows it; say which layout it "
        f"has: adapter = {', '.join(ADAPTERS)}"
    )


def _qwen_math_prm(folder: Path, dtype: torch.dtype) -> tuple[Any, FragmentFormat]:
    """Two linear layers at ``<extra_0>`` after each step of the assistant's turn (Zhang et al. 2025)."""
    backbone = from_pretrained(AutoModel, folder, dtype=dtype)
    spec = head_spec("mlp")
    head = build_head(model_width(backbone), spec)
    tensors = read_tensors(folder, "score.")
    own = {"hidden": "score.0", "linear": "score.2"}
    parts = [(f"{o}.{k}", f"{t}.{k}") for o, t in own.items() for k in ("weight", "bias")]
    load_strict(head, {o: tensors.get(t) for o, t in parts}, folder)
    return DiscriminativePRM(backbone, head), qwen_math_inputs(folder, backbone.config)


def qwen_math_inputs(folder: Path, config: Any) -> FragmentFormat:
    """The input of Qwen2.5-Math-PRM; ``config`` is the checkpoint's."""
    template = chat_template(folder, system=QWEN_SYSTEM)

    def layout(problem: Problem, steps: Sequence[str]) -> Fragments:
        return template.render_text(problem), [(s + "<extra_0>",) for s in steps]

    return _format(folder, config, layout, "blank_line", "<extra_0>")


def _skywork(folder: Path, dtype: torch.dtype) -> tuple[Any, FragmentFormat]:
    """A scalar value head at the newline after each step; step and newline are encoded apart."""
    backbone = from_pretrained(AutoModel, folder, dtype=dtype)
    head = build_head(model_width(backbone), head_spec("scalar"))
    tensors = read_tensors(folder, "v_head.")
    load_strict(head, {f"linear.{k}": tensors.get(f"v_head.summary.{k}") for k in ("weight", "bias")}, folder)

    def layout(problem: Problem, steps: Sequence[str]) -> Fragments:
        return problem.text + "\n", [(s, "\n") for s in steps]

    # Scores are read by position, so a newline inside a step does no harm; it must be one id all the same.
    single_id(load_tokenizer(folder), "\n")
    return DiscriminativePRM(backbone, head), _format(folder, backbone.config, layout, "newline", None)


def _math_shepherd(folder: Path, dtype: torch.dtype) -> tuple[Any, FragmentFormat]:
    """P(+) against P(-) at the Cyrillic marker after each step (Wang et al. 2024)."""
    tokenizer = load_tokenizer(folder)
    spec = head_spec("vocabulary", token_ids=(single_id(tokenizer, " -"), single_id(tokenizer, " +")))
    backbone, head = split_lm(from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)

    def layout(problem: Problem, steps: Sequence[str]) -> Fragments:
        return problem.text, [((" " if i == 0 else "\n") + s + " ки",) for i, s in enumerate(steps)]

    return DiscriminativePRM(backbone, head), _format(folder, backbone.config, layout, "step_k", " ки")


def _rlhflow(folder: Path, dtype: torch.dtype) -> tuple[Any, FragmentFormat]:
    """Each step is a user turn, answered by '+': read where that answer is predicted (Xiong et al. 2024)."""
    tokenizer = load_tokenizer(folder)
    spec = head_spec("vocabulary", token_ids=(single_id(tokenizer, "-"), single_id(tokenizer, "+")))
    backbone, head = split_lm(from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), spec)
    template = chat_template(folder, date="26 Jul 2024")

    def layout(problem: Problem, steps: Sequence[str]) -> Fragments:
        return "", _turns(template, problem, steps)

    inputs = _format(folder, backbone.config, layout, "blank_line", "+")
    # '+' is encoded along, since what follows a newline decides how it is cut; the score is read where it is predicted.
    return DiscriminativePRM(backbone, head), replace(inputs, only_marker=False, read_before=1)


def _turns(template: PromptTemplate, problem: Problem, steps: Sequence[str]) -> list[tuple[str, ...]]:
    """What each further step adds to the rendered conversation, its answer '+' included."""
    messages: list[Message] = []
    done, pieces = "", list[tuple[str, ...]]()
    for i, step in enumerate(steps):
        messages.append(Message("user", f"{problem.text} {step}" if i == 0 else step))
        text = template.render_text(Problem(problem.id, tuple(messages))) + "+"
        if not text.startswith(done):
            raise ModelError(
                "this chat template rewrites earlier turns: step scores in one pass need one that does not"
            )
        pieces.append((text[len(done) :],))
        done = text
        messages.append(Message("assistant", "+"))
    return pieces


def _implicit(folder: Path, dtype: torch.dtype) -> tuple[Any, FragmentFormat]:
    """beta log pi/pi_ref, cumulative, at the end of each step of the assistant's turn (EurusPRM: beta .001)."""
    model = ImplicitPRM(
        from_pretrained(AutoModelForCausalLM, folder, dtype=dtype), HeadSpec("implicit", scale=0.001)
    )
    template = chat_template(folder)

    def layout(problem: Problem, steps: Sequence[str]) -> Fragments:
        last = len(steps) - 1
        return template.render_text(problem), [
            (s + ("" if i == last else "\n\n"),) for i, s in enumerate(steps)
        ]

    return model, _format(folder, model.backbone.config, layout, "blank_line", None)


ADAPTERS: dict[str, Callable[[Path, torch.dtype], tuple[Any, FragmentFormat]]] = {
    "qwen_math_prm": _qwen_math_prm,
    "skywork": _skywork,
    "math_shepherd": _math_shepherd,
    "rlhflow": _rlhflow,
    "implicit": _implicit,
}


CRITICS: dict[
    str, Callable[[Path, Policy, Executor | None, int], GenerativeRewardModel | GenPrmRewardModel]
] = {
    "genprm": lambda folder, policy, executor, num_samples: GenPrmRewardModel(
        policy, conversation_template(chat_template(folder)), executor, num_samples
    ),
    "thinkprm": lambda folder, policy, executor, num_samples: GenerativeRewardModel(
        policy,
        ThinkFormat(),
        chat_template(folder),
        executor,
        num_samples,
        Sampler(temperature=0.6, max_tokens=4096),
    ),
}


def recognise_critic(name: str) -> str | None:
    """The layout of a published critic by its name, or None."""
    return next((kind for kind in CRITICS if kind in name.lower()), None)


def single_id(tokenizer: JsonTokenizer, text: str) -> int:
    """The id of a text that must be one token where it stands inside a sequence.

    Raises:
        ModelError: The tokenizer splits it; the ids that it gives are named.
    """
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise ModelError(
            f"this layout needs {text!r} as one token and the tokenizer gives the ids {list(ids)}; the checkpoint "
            "belongs to another layout or another tokenizer"
        )
    return ids[0]


def _format(folder: Path, config: Any, layout: Layout, delimiter: str, marker: str | None) -> FragmentFormat:
    tokenizer = load_tokenizer(folder)
    found = None if marker is None else single_id(tokenizer, marker)
    limit = int(getattr(config, "max_position_embeddings", 0) or 0)
    return FragmentFormat(tokenizer, layout, StepFormat(delimiter), found, max_tokens=limit)
