"""ThinkPRM: one chain of thought over the whole solution, with a boxed verdict for each step.

The prompt is that of the model's own inference code, opened with "Let's verify step by step:". A step's score is
P(correct) against P(incorrect) inside its box. The authors read one number a solution, P(yes) after "Is the solution
correct?"; the boxes are what the model was trained to write for each step, and they cost one chain instead of one a
step (Khalifa et al. 2025, arXiv 2504.16828).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepward.prm.types import Problem

_BOX = re.compile(r"\\boxed\{\s*(?:\\text\{\s*)?(correct|incorrect)\b")


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """Question and verdicts of ThinkPRM; see ``verdicts.CritiqueFormat``.

    Attributes:
        right: The word in the box of a right step.
        wrong: That of a wrong one.
        opening: What the critique begins with, whatever the chat template put there.
    """

    right: str = "correct"
    wrong: str = "incorrect"
    opening: str = "\nLet's verify step by step:"

    def question(self, problem: Problem, steps: Sequence[str]) -> str:
        """What the critic reads."""
        solution = "\n".join(f"Step {i}: {s}" for i, s in enumerate(steps, start=1))
        return (
            "You are given a math problem and a proposed step-by-step solution:\n\n"
            f"[Math Problem]\n\n{problem.text}\n\n[Solution]\n\n{solution}\n\n"
            "Review and critique each step in the proposed solution to determine whether each step is correct. If the "
            "solution is incomplete, only verify the provided steps."
        )

    def find(self, critique: str, num_steps: int) -> list[tuple[int, bool] | None]:
        """For each step the character index of the word in its box and what it says, or None.

        The k-th box is that of step k; nothing is read after the first "incorrect", nor beyond the last step.
        """
        found: list[tuple[int, bool] | None] = []
        for match in _BOX.finditer(critique):
            if len(found) == num_steps:
                break
            found.append((match.start(1), match[1] == self.right))
            if match[1] == self.wrong:
                break
        return found + [None] * (num_steps - len(found))
