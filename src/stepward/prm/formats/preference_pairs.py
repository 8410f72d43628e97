"""Step preferences for TRL: pairs for its DPO trainer, single steps with a verdict for its KTO trainer.

A pair is two next steps after the same steps of the same problem, one labelled right, one wrong (Step-DPO, Lai et
al. 2024, arXiv 2406.18629); where no step is labelled wrong, two whose values differ by ``MIN_GAP`` (SVPO). The
prompt is the problem and the shared steps. Pairs are only written: a row no longer says what surrounded it.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product

from stepward.prm.formats.foreign import Row
from stepward.prm.formats.registry import Format, Written
from stepward.prm.types import LabeledSolution

MIN_GAP = 0.5
"""Least difference of value between two unlabelled or equally labelled steps that make a pair."""
MAX_PAIRS = 4
"""Most pairs from one prefix: siblings are not independent."""
SEPARATOR = "\n\n"

_Choice = tuple[str, int | None, float | None]


def _siblings(solutions: Sequence[LabeledSolution]) -> dict[tuple[str, ...], dict[str, _Choice]]:
    """Next steps by the steps before them, in order of appearance; the same text counts once."""
    after: dict[tuple[str, ...], dict[str, _Choice]] = {}
    for solution in solutions:
        texts = tuple(step.text for step in solution.solution.steps)
        for at, (text, label) in enumerate(zip(texts, solution.labels, strict=True)):
            value = solution.prefixes[at + 1].value
            after.setdefault(texts[:at], {}).setdefault(text, (text, label.label, value))
    return after


def _prefers(better: _Choice, worse: _Choice) -> bool:
    if better[1] is not None and worse[1] is not None and better[1] != worse[1]:
        return better[1] > worse[1]
    return better[2] is not None and worse[2] is not None and better[2] - worse[2] >= MIN_GAP


def _prompt(problem: str, before: tuple[str, ...]) -> str:
    return "".join(text + SEPARATOR for text in (problem, *before))


def write_dpo(solutions: Sequence[LabeledSolution]) -> Written:
    """Pairs ``{prompt, chosen, rejected}``; solutions that take part in none are counted."""
    rows: list[Row] = []
    paired: set[tuple[tuple[str, ...], str]] = set()
    for before, choices in _siblings(solutions).items():
        pairs = [(b, w) for b, w in product(choices.values(), repeat=2) if _prefers(b, w)][:MAX_PAIRS]
        for better, worse in pairs:
            paired |= {(before, better[0]), (before, worse[0])}
            rows.append(
                {
                    "prompt": _prompt(solutions[0].problem.text, before),
                    "chosen": better[0],
                    "rejected": worse[0],
                }
            )
    alone = sum(not _takes_part(s, paired) for s in solutions)
    return Written(rows, Counter({"no step of it has a sibling to be compared with": alone} if alone else {}))


def _takes_part(solution: LabeledSolution, paired: set[tuple[tuple[str, ...], str]]) -> bool:
    texts = tuple(step.text for step in solution.solution.steps)
    return any((texts[:at], text) in paired for at, text in enumerate(texts))


def write_kto(solutions: Sequence[LabeledSolution]) -> Written:
    """Every labelled step ``{prompt, completion, label}``, once for each prefix."""
    rows: list[Row] = []
    for before, choices in _siblings(solutions).items():
        rows += [
            {"prompt": _prompt(solutions[0].problem.text, before), "completion": text, "label": label == 1}
            for text, label, _ in choices.values()
            if label is not None
        ]
    silent = sum(all(label.label is None for label in s.labels) for s in solutions)
    return Written(rows, Counter({"no step of it has a label": silent} if silent else {}))


DPO = Format("dpo", "step preference pairs {prompt, chosen, rejected} for TRL's DPO trainer", write=write_dpo)
KTO = Format("kto", "labelled steps {prompt, completion, label} for TRL's KTO trainer", write=write_kto)
