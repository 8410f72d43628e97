"""Self-correction in a thinking trace: a mistake that the trace itself takes back is no first error.

A thinking trace may go wrong, notice it ("Wait, that is not right") and come back. ProcessBench's first error is the
first step from which the solution goes wrong; a step from which it came back is none. The step that corrects is
recorded as ``recovery``, those that it took back as ``recovered``, with no label: they are neither right nor the error.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from stepward.labeling.evidence import SolutionLabels
from stepward.prm.types import Counts, Phase, Step

RECOVERY, RECOVERED = "recovery", "recovered"
"""``decided_by`` of the step that corrects, and of the steps that it took back."""

_OPENING = re.compile(
    r"(?:<think>)?\W*(?:(?:but|so|hmm+|oh|okay|ok|um+|no)\W+)*"
    r"(?:wait|hold on|actually|oops|scratch that|correction|my mistake|on second thought"
    r"|(?:that|this|it)(?:'s| is| was| can'?t be| cannot be) (?:wrong|not right|incorrect|a mistake|right\?)"
    r"|i(?:'ve| have)? (?:made|make) (?:a|an) (?:mistake|error)|i was wrong"
    r"|let me (?:re-?check|re-?do|redo|re-?consider|double[- ]check|fix|correct|start over))",
    re.IGNORECASE,
)


def is_self_correction(step: Step) -> bool:
    """Whether a step of a thinking trace begins by taking something back. Its wording alone: it may be no mistake."""
    return step.phase is Phase.THINK and _OPENING.match(step.text.lstrip()) is not None


def with_recoveries(steps: Sequence[Step], found: SolutionLabels) -> SolutionLabels:
    """Labels in which a mistake that thinking took back is no first error.

    A wrong step of a thinking trace is taken back by the first later step that begins as a self-correction and after
    which the solution can be finished again: its label is 1, or most rollouts after it are right.

    Args:
        steps: T steps.
        found: Labels by returns or their fusion; given back as they are where there is nothing to take back.
    """
    if not any(is_self_correction(s) for s in steps):
        return found
    labels = list(found.labels)
    first_error = found.first_error
    while first_error is not None and steps[first_error].phase is Phase.THINK:
        back = next((r for r in range(first_error + 1, len(steps)) if _came_back(steps, found, r)), None)
        if back is None:
            break
        for t in range(first_error, back):
            if labels[t].label != 1:
                none_first = None if labels[t].p_first_error is None else 0.0
                labels[t] = replace(labels[t], label=None, p_first_error=none_first, decided_by=RECOVERED)
        labels[back] = replace(labels[back], label=1, decided_by=RECOVERY)
        first_error = next((t for t in range(back + 1, len(steps)) if labels[t].label == 0), None)
    return replace(found, labels=tuple(labels), first_error=first_error)


def _came_back(steps: Sequence[Step], found: SolutionLabels, at: int) -> bool:
    return is_self_correction(steps[at]) and (
        found.labels[at].label == 1 or _mostly_right(found.estimates[at + 1].counts)
    )


def _mostly_right(counts: Counts) -> bool:
    return counts.right > counts.wrong
