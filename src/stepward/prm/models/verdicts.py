"""The text of a generative reward model: a rationale and a verdict for each step.

::

    Step 1: <rationale>
    Verdict 1: correct
    Step 2: <rationale, with code and its output where an executor is at hand>
    Verdict 2: wrong

A chain ends after its first wrong verdict: what comes after a wrong step is not judged (GroundedPRM, GenPRM).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from stepward.prm.types import Problem

CRITIC_FILE = "critic.json"
"""Beside the weights of a critic that this project trained: its verdict format and prompt."""
CODE_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


class CritiqueFormat(Protocol):
    """What a critic reads and where its verdicts stand: ours (``VerdictFormat``) or a published critic's."""

    @property
    def right(self) -> str:
        """The word for a right step; its first token and that of ``wrong`` must differ."""
        ...

    @property
    def wrong(self) -> str:
        """The word for a wrong one."""
        ...

    @property
    def opening(self) -> str:
        """What every critique begins with; it is put there and not sampled."""
        ...

    def question(self, problem: Problem, steps: Sequence[str]) -> str:
        """What the critic reads."""
        ...

    def find(self, critique: str, num_steps: int) -> list[tuple[int, bool] | None]:
        """For each step the character index of its verdict word and what it says, or None."""
        ...


@dataclass(frozen=True, slots=True)
class VerdictFormat:
    """How a solution is put before a critic and how its verdicts are written.

    Attributes:
        instruction: What the critic is asked for, after problem and steps.
        right: The word for a right step; its first token and that of ``wrong`` must differ.
        wrong: The word for a wrong one.
        opening: What every critique begins with.
    """

    instruction: str = (
        "Check the steps in order. For each write its check after 'Step k:' and then 'Verdict k: correct' or "
        "'Verdict k: wrong'. Stop after the first wrong step."
    )
    right: str = "correct"
    wrong: str = "wrong"
    opening: str = ""

    def question(self, problem: Problem, steps: Sequence[str]) -> str:
        """What the critic reads."""
        shown = "\n".join(f"Step {i}: {s}" for i, s in enumerate(steps, start=1))
        return f"{problem.text}\n\n{shown}\n\n{self.instruction}"

    def answer(self, rationales: Sequence[str], labels: Sequence[int]) -> str:
        """A whole critique; it ends after the first wrong step."""
        lines: list[str] = []
        for k, (rationale, label) in enumerate(zip(rationales, labels, strict=True), start=1):
            lines += [f"Step {k}: {rationale}", f"Verdict {k}: {self.right if label else self.wrong}"]
            if not label:
                break
        return "\n".join(lines) + "\n"

    def find(self, critique: str, num_steps: int) -> list[tuple[int, bool] | None]:
        """For each step the character index of its verdict word and what it says, or None.

        A verdict counts once and in order: a second one for a step, or one out of order, ends the reading, since a
        critic that contradicts itself has said nothing more.
        """
        found: list[tuple[int, bool] | None] = []
        words = f"{re.escape(self.right)}|{re.escape(self.wrong)}"
        for match in re.finditer(rf"(?m)^Verdict (\d+): ({words})\b", critique):
            if int(match[1]) != len(found) + 1 or len(found) == num_steps:
                break
            is_right = match[2] == self.right
            found.append((match.start(2), is_right))
            if not is_right:
                break
        return found + [None] * (num_steps - len(found))

    def to_json(self) -> str:
        """For a checkpoint."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "VerdictFormat":
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))


def with_code_output(critique: str, output: str) -> str:
    """The critique with what its last program printed, as the critic reads it next (GenPRM)."""
    return f"{critique.rstrip()}\n[Code output: {output.strip()}]\n"
