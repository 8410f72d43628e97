"""Claimed outputs of programs against what the sandbox prints: cells, prints, last expressions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.types import Problem
from stepward.verifiers.programs import cells_of
from stepward.verifiers.python_code import PythonCode, same_output
from stepward.verifiers.sandbox import Sandbox

PLAIN = Problem(id="plain", statement="Compute.")


def _fenced(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```"


async def _verdicts(verifier: PythonCode, *steps: str) -> list[list[tuple[str, str]]]:
    found = await verifier.verify(PLAIN, steps)
    return [[(v.kind.value, v.reason.value) for v in verdicts] for verdicts in found]


async def test_a_claimed_output_is_printed_or_not(verifier: PythonCode) -> None:
    right = _fenced("x = 6 * 7\nprint(x)") + "\n" + _fenced("42", "output")
    wrong = f"{_fenced('print(x + 1)')}\n[Code output: 44]"
    assert await _verdicts(verifier, right, wrong) == [[("supported", "")], [("refuted", "")]]


async def test_the_span_is_that_of_the_claim_and_the_evidence_says_both(verifier: PythonCode) -> None:
    step = f"{_fenced('print(2 ** 10)')}\nOutput: 1000"
    ((verdict,),) = await verifier.verify(PLAIN, [step])
    assert verdict.span is not None
    assert step[slice(*verdict.span)] == "1000"
    assert verdict.evidence == f"claimed '1000', printed '1024' ({verifier.sandbox.mode})"


async def test_a_comment_behind_a_print_is_a_claim_about_that_print(verifier: PythonCode) -> None:
    step = _fenced(
        "print(1)  # 1\nprint(2 + 2)  # Output: 5\nprint('a')  # the first letter\nprint([1, 2])  # -> [1, 2]"
    )
    assert await _verdicts(verifier, step) == [[("supported", ""), ("refuted", ""), ("supported", "")]]


async def test_the_value_of_a_last_expression_counts_as_shown(verifier: PythonCode) -> None:
    step = _fenced("x = 21\nx * 2") + "\n" + _fenced("42", "output")
    assert await _verdicts(verifier, step) == [[("supported", "")]]


@pytest.mark.parametrize(
    ("code", "claimed", "expected"),
    [
        ("import numpy\nprint(1)", "1", ("unknown", "unsupported")),
        ("print(open('data.csv').read())", "1", ("unknown", "unsupported")),
        ("import random\nprint(random.random())", "0.5", ("unknown", "ambiguous")),
        ("print({'b', 'a'})", "{'a', 'b'}", None),
        ("print(object())", "<object object at 0x7f0000000000>", ("unknown", "ambiguous")),
        ("print(list(range(100)))", "[0, 1, 2, ...]", ("unknown", "ambiguous")),
        ("print(1 / 0)", "0", ("refuted", "")),
        ("print(1 / 0)", "ZeroDivisionError: division by zero", ("unknown", "ambiguous")),
        ("import os\nos._exit(0)", "0", ("unknown", "crash")),
        ("print(1/3)", "0.333", ("supported", "")),
        ("print(2/3)", "0.67", ("supported", "")),
        ("print(2/3)", "0.66", ("supported", "")),
        ("print(2/3)", "0.65", ("refuted", "")),
        ("print(1000000)", "1,000,000", ("supported", "")),
        ("print(3.7)", "4", ("refuted", "")),
        ("print('a', 'b')", "a b", ("supported", "")),
        ("def f(:", "1", ("refuted", "")),
    ],
)
async def test_outputs(
    verifier: PythonCode, code: str, claimed: str, expected: tuple[str, str] | None
) -> None:
    found = await _verdicts(verifier, f"{_fenced(code)}\n{_fenced(claimed, 'output')}")
    # A set's order is the same in every sandbox, but need not be the author's: supported or unknown.
    assert found[0][0] == expected if expected else found[0][0][0] != "refuted"


async def test_a_cell_after_a_failing_one_is_not_blamed(verifier: PythonCode) -> None:
    steps = [_fenced("x = 1 / 0"), f"{_fenced('print(1)')}\n{_fenced('2', 'output')}"]
    assert await _verdicts(verifier, *steps) == [[], [("unknown", "unsupported")]]


async def test_a_time_out_in_a_cell_is_unknown(box: Sandbox) -> None:
    step = _fenced("while True:\n    pass") + "\n" + _fenced("2", "output")
    assert await _verdicts(PythonCode(box, timeout_s=0.2), step) == [[("unknown", "timeout")]]


async def test_a_cell_without_a_claim_says_nothing_and_runs_nothing(box: Sandbox) -> None:
    class Refusing:
        async def arun_cells(self, *args: Any, **kwargs: Any) -> None:
            raise AssertionError("nothing to run")

    silent = PythonCode(Refusing())  # type: ignore[arg-type]
    assert await silent.verify(PLAIN, [_fenced("print(1)"), "The answer is 1."]) == [(), ()]


def test_cells_and_claims_of_a_step() -> None:
    step = "a\n```python\nprint(1)\n```\nOutput: `1`\n~~~py\nprint(2)\n~~~\n```output\n2\n3\n```\n```python\nprint(4)"
    cells = cells_of([step])
    assert [(c.source, c.closed, [x.text for x in c.claims]) for c in cells] == [
        ("print(1)\n", True, ["1"]),
        ("print(2)\n", True, ["2\n3"]),
        ("print(4)", False, []),
    ]
    assert all(step[slice(*c.span)] == c.source for c in cells)


def test_same_output_is_word_by_word() -> None:
    assert same_output("1  2\n", "1 2")
    assert same_output("3.14", "3.14159")
    assert not same_output("3.15", "3.14159")
    assert not same_output("3", "3.14159")
    assert not same_output("3.14159", "3.14")
    assert not same_output("1 2", "1 2 3")
    assert same_output("1e3", "1000.0")


@given(st.text(max_size=400))
def test_any_text_can_be_cut_into_cells(text: str) -> None:
    for cell in cells_of([text]):
        assert text[slice(*cell.span)] == cell.source
