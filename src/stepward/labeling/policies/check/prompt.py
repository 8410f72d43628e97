"""Probes that need no rollout: the prompt template and the tokenizer of an engine."""

from collections.abc import Sequence

from stepward.labeling.policies.check.findings import Finding, State
from stepward.prm.errors import StepwardError
from stepward.prm.policy import Tokenizer
from stepward.prm.prompts import PromptTemplate
from stepward.prm.types import Problem, TokenIds

_TEXTS = (
    "We add 12 and 30, so 12 + 30 = 42.\n\nThe answer is \\boxed{42}.",
    " leading space, trailing space \n\n\n",
    "\tx_1 \\le \\frac{a}{b} $\\alpha$ {2}^{10}=1024",
    "Ünïcode: ½ × π ≈ 1,57 € 数学 🙂 é",
    "```python\nprint(1)\n```\n",
)
"""What solutions hold: separators, LaTeX, code, blanks at the ends, characters of several bytes."""


def check_prompt(
    tokenizer: Tokenizer, template: PromptTemplate, problems: Sequence[Problem]
) -> tuple[list[Finding], list[TokenIds]]:
    """Findings on tokenizer and template, and the prompts' ids (as far as they could be rendered)."""
    findings = [_round_trip(tokenizer)]
    prompts: list[TokenIds] = []
    for problem in problems:
        try:
            rendered = template.render(problem, tokenizer)
            again = template.render(problem, tokenizer)
        except StepwardError as fault:
            remedy = "name another template with --prompt (plain, chat, or a Jinja file)"
            return [*findings, Finding("prompt", State.FAILED, str(fault), remedy)], prompts
        faults = _prompt_faults(tokenizer, problem, rendered.text, rendered.ids)
        if again != rendered:
            faults.append(
                ("it renders differently each time", "take dates and randomness out of the template")
            )
        if faults:
            return [*findings, *(Finding("prompt", State.FAILED, w, r) for w, r in faults)], prompts
        prompts.append(rendered.ids)
    start = "one start token" if tokenizer.bos_id is not None else "no start token (the tokenizer adds none)"
    what = (
        f"{template.name}, hash {template.hash}, {min(map(len, prompts))} to {max(map(len, prompts))} tokens, {start}; "
        f"reads {template.shown[:60]!r}..."
    )
    return [*findings, Finding("prompt", State.OK, what)], prompts


def _round_trip(tokenizer: Tokenizer) -> Finding:
    changed: list[str] = []
    for text in _TEXTS:
        ids = tokenizer.encode(text)
        if tokenizer.decode(ids) != text or len(tokenizer.offsets(ids)) != len(ids):
            changed.append(text)
    if changed:
        return Finding(
            "tokenizer",
            State.FAILED,
            f"{len(changed)} of {len(_TEXTS)} texts change when encoded and decoded, such as {changed[0]!r} into "
            f"{tokenizer.decode(tokenizer.encode(changed[0]))!r}",
            "the tokenizer normalises text: steps and answers would not be what the policy wrote; use a model with a "
            "byte-level tokenizer",
        )
    ends = f"{len(tokenizer.eos_ids)} end token{'s' * (len(tokenizer.eos_ids) != 1)}"
    return Finding("tokenizer", State.OK, f"{len(_TEXTS)} texts round-trip, hash {tokenizer.hash}, {ends}")


def _prompt_faults(tokenizer: Tokenizer, problem: Problem, text: str, ids: TokenIds) -> list[tuple[str, str]]:
    """(what is wrong, remedy) of one rendered prompt."""
    faults: list[tuple[str, str]] = []
    if problem.text.strip() and problem.text.strip() not in text:
        faults.append(
            (
                f"the statement of problem {problem.id} is not in its prompt",
                "the template must write the problem",
            )
        )
    bos = tokenizer.bos_id
    if bos is not None and (ids[0] != bos or ids.count(bos) != 1):
        faults.append(
            (
                f"the prompt of problem {problem.id} holds the start token {bos} {ids.count(bos)} times",
                "one start token is wanted, in front: take it out of the template",
            )
        )
    decoded = tokenizer.decode(ids)
    if not decoded.endswith(text) and not decoded.endswith(text.lstrip()):
        faults.append(
            (
                f"the prompt of problem {problem.id} decodes to other text: ...{decoded[-60:]!r}",
                "the tokenizer changes the template's text; write the template without what it normalises",
            )
        )
    return faults
