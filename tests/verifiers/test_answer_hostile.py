r"""Untrusted text: every comparison ends within its bounds, runs nothing and changes no later verdict."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.prm.types import Outcome, Problem, VerdictKind
from stepward.verifiers.answer import Grader, equivalent

ROWS = [
    json.loads(line) for line in (Path(__file__).parent / "hostile" / "texts.jsonl").read_text().splitlines()
]
CPU_S = 0.5  # The design allows a deadline and half a second; in process there is no deadline to wait for.
ORDINARY = [("1/2", "0.5"), ("x^2-x", "x(x-1)"), ("(1,2)", "(2,1)"), (r"[2,5)", r"2\le x<5"), ("72", "72")]
HARMLESS = {"unit-chain"}  # Ends in "= 5": the last number of an unmarked text is 5.


def text_of(row: dict) -> str:
    return "".join(part * times for part, times in row["parts"])


@pytest.mark.parametrize("row", ROWS, ids=[r["id"] for r in ROWS])
def test_a_hostile_text_ends_in_time_and_is_never_right(row: dict) -> None:
    text = text_of(row)
    grader = Grader()
    for gold, shown in (("5", text), ("x^2+1", rf"\boxed{{{text}}}"), (r"\sqrt{2}", f"The answer is {text}")):
        began = time.process_time()
        outcome = grader.grade_exactly(Problem("p", "", (gold,)), shown).outcome
        if (
            time.process_time() - began >= CPU_S
        ):  # once more: a collection of the test process's own garbage counts too
            began = time.process_time()
            assert grader.grade_exactly(Problem("p", "", (gold,)), shown).outcome is outcome
        assert time.process_time() - began < CPU_S
        assert outcome is not Outcome.RIGHT or row["id"] in HARMLESS
        assert outcome is not Outcome.ERROR


@pytest.mark.parametrize("row", ROWS, ids=[r["id"] for r in ROWS])
def test_a_hostile_text_is_bounded_on_both_sides(row: dict) -> None:
    text = text_of(row)
    began = time.process_time()
    assert equivalent(gold=text, answer="17").kind is not VerdictKind.SUPPORTED
    equivalent(gold=text, answer=text + "1")
    assert time.process_time() - began < 2 * CPU_S


def test_other_verdicts_are_as_they_would_have_been() -> None:
    before = [equivalent(gold=g, answer=a).kind for g, a in ORDINARY]
    for row in random.Random(0).sample(ROWS, 12):
        equivalent(gold=text_of(row), answer="x")
        assert [equivalent(gold=g + " ", answer=a).kind for g, a in ORDINARY] == before


@pytest.mark.slow
@pytest.mark.alone
def test_all_hostile_texts_together_stay_within_512_mb_and_touch_nothing(tmp_path: Path) -> None:
    script = (
        "import json, resource, sys\n"
        "from stepward.verifiers.answer import equivalent\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "events = []\n"
        "sys.addaudithook(lambda name, args: events.append(name) if name in "
        "('exec', 'compile', 'os.system', 'subprocess.Popen', 'os.exec', 'socket.connect', 'open') else None)\n"
        "equivalent(gold='\\\\sin 1', answer='0.5'); events.clear()\n"  # Imports mpmath.
        "for line in open(sys.argv[1]):\n"
        "    text = ''.join(p * n for p, n in json.loads(line)['parts'])\n"
        "    equivalent(gold=text, answer='7'); equivalent(gold='x+1', answer=text)\n"
        # ru_maxrss would count what the parent had in memory when it forked.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(json.dumps([events[:1], int(peak.split()[1])]))"
    )
    rows = Path(__file__).parent / "hostile" / "texts.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", script, str(rows)],
        capture_output=True, check=True, timeout=300, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    events, peak_kb = json.loads(done.stdout)
    assert events == ["open"]  # The file of texts itself.
    assert peak_kb < 512 * 1024
    assert list(tmp_path.iterdir()) == []


FRAGMENTS = st.sampled_from(
    ["\\frac", "{", "}", "(", ")", "[", "]", "^", "_", "\\sqrt", "1", "23", "x", "y", "+", "-", "*", "/", "=", "<", ",",
     "\\le", "\\pm", "\\text{", "and", " ", "!", "%", "\\circ", "|", "\\{", "\\}", "\\infty", "\\cup", "\\sum", "\\sin",
     "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", ":", ".", "cm", "\\pi", "e", "i", "\\log", "\\binom", "$", "'"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.lists(FRAGMENTS, max_size=8).map("".join))
def test_no_soup_of_tokens_raises_and_each_equals_itself_or_is_open(one: str, other: str) -> None:
    equivalent(gold=one, answer=other)
    assert equivalent(gold=one, answer=one).kind is not VerdictKind.REFUTED


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    assert equivalent(gold="5", answer=text) is not None
    assert Grader().grade_exactly(Problem("p", "", ("5",)), text).outcome is not Outcome.ERROR


@settings(max_examples=30, deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6), st.integers(2, 9))
def test_a_fraction_equals_its_multiples_and_no_neighbour(a: int, b: int, k: int) -> None:
    assert equivalent(gold=f"{a}/{b}", answer=rf"\frac{{{a * k}}}{{{b * k}}}").kind is VerdictKind.SUPPORTED
    assert equivalent(gold=f"{a}/{b}", answer=rf"\frac{{{a * k + 1}}}{{{b * k}}}").kind is VerdictKind.REFUTED


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.integers(-5, 5))
def test_a_polynomial_equals_its_horner_form_and_no_other(coefficients: list[int], shift: int) -> None:
    expanded = "+".join(f"({c})x^{k}" for k, c in enumerate(coefficients)) or "0"
    horner = "0"
    for c in reversed(coefficients):
        horner = f"({horner})x+({c})"
    assert equivalent(gold=expanded, answer=horner).kind is VerdictKind.SUPPORTED
    if shift:
        assert equivalent(gold=expanded, answer=f"{horner}+({shift})").kind is VerdictKind.REFUTED
