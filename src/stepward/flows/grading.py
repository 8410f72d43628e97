"""Who grades which problem: answers are compared, programs are run."""

from dataclasses import dataclass

from stepward.prm.types import CheckKind, FinishReason, Outcome, Problem, Reason, VerdictKind
from stepward.verifiers.answer import Grade, Grader
from stepward.verifiers.answers.members import Members
from stepward.verifiers.python_code import PythonCode, make_python_code


@dataclass(slots=True)
class RoutedGrader:
    """Grades final answers by comparison and problems with unit tests in the sandbox.

    Attributes:
        answers: The comparison; its further members run in workers and are asked only where it is open.
        code: Made when the first problem with unit tests comes: a machine without a sandbox can label the others.
    """

    answers: Grader
    code: PythonCode | None = None

    async def grade(self, problem: Problem, text: str, finish_reason: FinishReason) -> Grade:
        """The outcome of a whole solution."""
        if problem.check.kind is not CheckKind.UNIT_TESTS or finish_reason is FinishReason.ABORT:
            return await self.answers.grade(problem, text, finish_reason)
        code = self.code or make_python_code()
        assert isinstance(code, PythonCode)
        self.code = code
        verdict = await code.grade(problem, text)
        if verdict.kind is VerdictKind.SUPPORTED:
            outcome = Outcome.RIGHT
        elif verdict.kind is VerdictKind.REFUTED:
            outcome = Outcome.WRONG
        elif verdict.reason is Reason.TIMEOUT:
            outcome = Outcome.TIMEOUT
        elif verdict.reason in (Reason.NO_CLAIM, Reason.PARSE):
            # No program, or one that is cut off, is the policy's own doing.
            outcome = Outcome.TRUNCATED if finish_reason is FinishReason.LENGTH else Outcome.NO_ANSWER
        else:
            outcome = Outcome.UNDECIDED
        return Grade(outcome, None, verdict, None)


def make_grader() -> RoutedGrader:
    """The grader of labelling runs."""
    return RoutedGrader(Grader(members=Members()))
