"""``Step k:`` at the head of each step, as Math-Shepherd and its kin have it.

On reading exactly one such head is taken off, on writing it is put on: so any step text survives both ways.
"""

import re

from stepward.prm.errors import FormatError

_HEAD = re.compile(r"Step (\d+): ?")
_FIRST = re.compile(r"(?:^|\s)Step 1: ?")


def with_heads(steps: list[str]) -> list[str]:
    """``Step 1: ...``, ``Step 2: ...`` and so on."""
    return [f"Step {at}: {text}" for at, text in enumerate(steps, 1)]


def without_heads(steps: list[str]) -> list[str]:
    """The texts behind the heads. Raises FormatError where a head is missing or has another number."""
    bare: list[str] = []
    for at, text in enumerate(steps, 1):
        match = _HEAD.match(text)
        if match is None or int(match[1]) != at:
            raise FormatError(f"step {at - 1} begins with {text[:30]!r}; 'Step {at}: ' is wanted")
        bare.append(text[match.end() :])
    return bare


def split_problem(text: str) -> tuple[str, str]:
    """(problem, first step with its head) of a text that holds both. Raises FormatError where no head is found."""
    match = _FIRST.search(text)
    if match is None:
        raise FormatError(f"no 'Step 1: ' after the problem (the text begins {text[:40]!r})")
    start = text.index("Step 1:", match.start())
    return text[:start].rstrip(), text[start:]
