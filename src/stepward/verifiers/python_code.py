"""Verdicts on model-written Python, by running it in a sandbox.

Two kinds of claims are decided. A solution to a problem with unit tests claims to pass them: it passes or fails,
and a time-out, a crash or a value that cannot be compared is unknown. A step with a cell and the output that it
is said to have claims that output: it is printed or it is not.

A cell without a claim gets no verdict. Every verdict's evidence names what confined the program.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation

from stepward.prm.errors import InputError
from stepward.prm.types import CheckKind, Problem, Reason, Verdict, VerdictKind
from stepward.verifiers import programs, sandbox
from stepward.verifiers.base import register_verifier, unknown
from stepward.verifiers.programs import Cell, OutputClaim
from stepward.verifiers.sandbox import CellRun, Examination, Run, Sandbox

NAME = "python_code"
VERSION = f"1.{sandbox.VERSION}"

_EVIDENCE_CHARS = 300
# What these print is not a function of the program's text, so that another output refutes nothing.
_VARYING = re.compile(
    r"\b(?:random|secrets|uuid|time|timeit|datetime|perf_counter|id|hash|input|getpid|platform|os|sys|socket)\b"
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}|0x[0-9a-fA-F]{8,}")
_ELISION = re.compile(r"\.\.\.|…|\\dots|\\ldots")
# An exception of these classes may be the sandbox's doing and not the program's.
_CONFINED = frozenset({"ImportError", "OSError", "EOFError", "SystemExit", "KeyboardInterrupt"})
_NUMBER = re.compile(r"^[+-]?(?:\d[\d,]*)?(?:\d|\.\d+|\d\.)(?:[eE][+-]?\d{1,4})?$")


@dataclass(frozen=True, slots=True)
class PythonCode:
    """The verifier ``python_code``.

    Attributes:
        sandbox: Where programs run.
        timeout_s: Wall seconds for a solution's tests, or for all its cells.
    """

    sandbox: Sandbox
    timeout_s: float = 5.0
    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """Verdicts on what steps say that their code prints, and on the last step with code: does it pass?

        Raises:
            SandboxUnavailable: Nothing can confine code on this machine.
        """
        cells = programs.cells_of(steps)
        verdicts: list[list[Verdict]] = [[] for _ in steps]
        if any(cell.claims for cell in cells):
            for step, verdict in await self._check_outputs(cells):
                verdicts[step].append(verdict)
        if problem.check.kind is CheckKind.UNIT_TESTS and steps:
            last = cells[-1].step if cells else len(steps) - 1
            verdicts[last].append(await self.grade(problem, "\n".join(steps)))
        return [tuple(found) for found in verdicts]

    async def grade(self, problem: Problem, text: str) -> Verdict:
        """Whether the program in a solution's text passes the problem's unit tests.

        Args:
            problem: A problem whose check is of the kind ``unit_tests``, see ``programs.unit_tests_of``.
            text: The whole solution.

        Raises:
            InputError: The problem has no unit tests.
            SandboxUnavailable: Nothing can confine code on this machine.
        """
        tests = programs.unit_tests_of(problem)
        found = programs.program_of(text, tests)
        if found is None:
            return unknown(NAME, VERSION, Reason.NO_CLAIM, "the text holds no Python program")
        program, complete = found
        if not complete:
            return unknown(NAME, VERSION, Reason.PARSE, "the program is cut off: its fence is not closed")

        async def examine(alone: bool) -> Examination:
            return await self.sandbox.aexamine(
                program,
                tests.tests,
                entry_point=tests.entry_point,
                setup=tests.setup,
                timeout_s=self.timeout_s,
                alone=alone,
            )

        examination = await examine(False)
        if examination.starved:
            again = await examine(True)
            examination = replace(again, cpu_s=again.cpu_s + examination.cpu_s)
        return verdict_on(examination)

    async def _check_outputs(self, cells: Sequence[Cell]) -> list[tuple[int, Verdict]]:
        whole = [cell for cell in cells if cell.closed]
        sources = [cell.source for cell in whole]
        run, ran = await self.sandbox.arun_cells(sources, timeout_s=self.timeout_s)
        if run.starved:
            run, ran = await self.sandbox.arun_cells(sources, timeout_s=self.timeout_s, alone=True)
        found: list[tuple[int, Verdict]] = []
        share = run.cpu_s / max(1, sum(len(cell.claims) for cell in whole))
        for position, cell in enumerate(whole):
            varying = any(_VARYING.search(source) for source in sources[: position + 1])
            for claim in cell.claims:
                outcome = ran[position] if position < len(ran) else None
                verdict = verdict_on_output(claim, outcome, run, varying=varying)
                found.append((cell.step, replace(verdict, span=claim.span, seconds=share)))
        return found


def verdict_on(examination: Examination) -> Verdict:
    """What an examination says of the claim that a program solves its problem."""
    evidence = f"{examination.detail[:_EVIDENCE_CHARS]} ({examination.mode})"
    reasons = {
        "timeout": Reason.TIMEOUT,
        "killed": Reason.CRASH,
        "fault": Reason.CRASH,
        "untransferable": Reason.UNSUPPORTED,
        "test_error": Reason.UNSUPPORTED,
    }
    if examination.result in reasons:
        reason = reasons[examination.result]
        return unknown(NAME, VERSION, reason, f"{examination.result}: {evidence}", seconds=examination.cpu_s)
    passed = examination.result == "passed"
    said = "passes its tests" if passed else "fails its tests"
    return Verdict(
        kind=VerdictKind.SUPPORTED if passed else VerdictKind.REFUTED,
        verifier=NAME,
        version=VERSION,
        evidence=f"the program {said}: {evidence}",
        seconds=examination.cpu_s,
    )


def verdict_on_output(claim: OutputClaim, cell: CellRun | None, run: Run, *, varying: bool) -> Verdict:
    """What a cell's run says of the output that a text claims for it.

    Args:
        claim: The claimed output.
        cell: The cell's run; None where the sandbox failed.
        run: The run of all cells.
        varying: The program's output is not a function of its text alone.
    """
    where = f"({run.mode})"
    if cell is None or not cell.end:
        if cell is not None and run.status == "error":
            return unknown(
                NAME, VERSION, Reason.UNSUPPORTED, f"an earlier cell fails, this one was not run {where}"
            )
        reason = Reason.TIMEOUT if run.status == "timeout" else Reason.CRASH
        return unknown(NAME, VERSION, reason, f"{run.cause} {where}")
    printed, echo = _output_of(cell, claim)
    said = f"claimed {_short(claim.text)}, printed {_short(printed)} {where}"
    if printed is None:
        if _CONFINED & set(cell.types):
            return unknown(NAME, VERSION, Reason.UNSUPPORTED, f"{cell.types[0]}: {cell.text[:200]} {where}")
        raised = f"claimed {_short(claim.text)}, raised {cell.types[0]}: {cell.text[:200]} {where}"
        if varying or _fails_by_claim(claim.text):
            return unknown(NAME, VERSION, Reason.AMBIGUOUS, raised)
        return Verdict(VerdictKind.REFUTED, NAME, VERSION, evidence=raised)
    if same_output(claim.text, printed) or (echo and same_output(claim.text, printed + echo)):
        return Verdict(VerdictKind.SUPPORTED, NAME, VERSION, evidence=said)
    if varying or _may_vary(claim.text, printed):
        return unknown(NAME, VERSION, Reason.AMBIGUOUS, said)
    return Verdict(VerdictKind.REFUTED, NAME, VERSION, evidence=said)


def _output_of(cell: CellRun, claim: OutputClaim) -> tuple[str | None, str]:
    """Printed text and last value of what a claim is about; None where that was not reached."""
    if claim.line is None:
        if cell.end != "ok":
            return None, ""
        return cell.output, cell.prints[-1][2] if cell.prints else ""
    for line, printed, echo in cell.prints:
        if line == claim.line:
            return printed, echo
    return None, ""


def same_output(claimed: str, printed: str) -> bool:
    """Whether two outputs are the same text but for white space, or number by number after rounding.

    A claimed decimal with fewer digits than the printed one is the same where rounding or cutting the printed
    one gives it: ``3.14`` for ``3.14159``.
    """
    left, right = claimed.split(), printed.split()
    if len(left) != len(right):
        return False
    return all(a == b or _same_number(a, b) for a, b in zip(left, right, strict=True))


def _same_number(claimed: str, printed: str) -> bool:
    a, b = _decimal(claimed.strip("`,;")), _decimal(printed.strip(",;"))
    if a is None or b is None:
        return False
    if a == b:
        return True
    places = _places(a)
    if places == 0 or places >= _places(b):
        return False
    unit = Decimal(1).scaleb(-places)
    try:
        return a == b.quantize(unit) or (abs(a - b) < unit and abs(a) <= abs(b))
    except InvalidOperation:
        return False


def _decimal(text: str) -> Decimal | None:
    if len(text) > 60 or not _NUMBER.match(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def _places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _may_vary(claimed: str, printed: str) -> bool:
    """Whether two outputs may differ without either being wrong: cut short, addresses, order within a set."""
    if _ELISION.search(claimed) or _ADDRESS.search(printed) or not claimed.strip():
        return True
    return "{" in printed and sorted(re.split(r"[\s,{}]+", claimed)) == sorted(re.split(r"[\s,{}]+", printed))


def _fails_by_claim(claimed: str) -> bool:
    """Whether the claimed output is itself a failure, such as a traceback."""
    return bool(re.search(r"Traceback|Error\b|Exception\b|[Tt]imed? ?out", claimed))


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    text = text.strip()
    return repr(text if len(text) <= 100 else f"{text[:60]} ... {text[-30:]}")


@register_verifier(NAME)
def make_python_code(
    *,
    timeout_s: float = 5.0,
    memory_mib: int = 384,
    num_workers: int = 0,
    modules: Sequence[str] = (),
    mode: str | None = None,
) -> PythonCode:
    """Build the verifier.

    Args:
        timeout_s: Wall seconds for a solution's tests, or for all its cells.
        memory_mib: Address space of a program, MiB.
        num_workers: Programs at a time; 0 = one a CPU.
        modules: Installed packages that programs may import, such as ``sympy``.
        mode: ``bubblewrap`` or ``landlock``; None = the strongest that works.

    Raises:
        InputError: ``mode`` is neither, or a limit is not positive.
    """
    if mode is not None and mode not in {m.value for m in sandbox.Mode}:
        raise InputError(f"python_code: mode {mode!r} is unknown; there are bubblewrap and landlock")
    if timeout_s <= 0 or memory_mib <= 0:
        raise InputError(f"python_code: timeout_s {timeout_s} and memory_mib {memory_mib} must be positive")
    limits = sandbox.JobLimits(timeout_s=timeout_s, memory_bytes=memory_mib << 20)
    box = Sandbox(
        num_workers=num_workers,
        limits=limits,
        mode=sandbox.Mode(mode) if mode else None,
        modules=modules,
    )
    return PythonCode(box, timeout_s)
