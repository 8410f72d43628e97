r"""Every hostile text of the tests as a step: it ends in time and changes no other verdict."""

import json
import random
import time
from pathlib import Path

import pytest

from stepward.prm.types import Problem, VerdictKind
from stepward.verifiers import algebra, arithmetic

ROWS = [
    json.loads(line) for line in (Path(__file__).parent / "hostile" / "texts.jsonl").read_text().splitlines()
]
CPU_S = 0.5
ORDINARY = ("1 + 1 = 3", "2x = 8, so x = 4", "y = (n+1)^2 = n^2 + 1", "327 mod 17 = 4")


def text_of(row: dict) -> str:
    return "".join(part * times for part, times in row["parts"])


@pytest.mark.parametrize(
    "form", ["{} = 5", "Thus $x + {} = 3$, so $x = {}$."], ids=["equality", "derivation"]
)
@pytest.mark.parametrize("row", ROWS, ids=[r["id"] for r in ROWS])
def test_a_hostile_step_ends_in_time(row: dict, form: str):
    text = form.replace("{}", text_of(row))
    for verify in (arithmetic.verify_step, algebra.verify_step):
        began = time.process_time()
        verdict = verify(text)
        if time.process_time() - began >= CPU_S:  # once more: garbage of the test process counts too
            began = time.process_time()
            assert verify(text + " ").kind is verdict.kind
        assert time.process_time() - began < CPU_S
        if verdict.span is not None:
            assert 0 <= verdict.span[0] < verdict.span[1] <= len(text)


def test_other_verdicts_are_as_they_would_have_been():
    def kinds(mark: str) -> list[VerdictKind]:
        return [v.verify_step(t + mark).kind for v in (arithmetic, algebra) for t in ORDINARY]

    before = kinds("")
    for row in random.Random(0).sample(ROWS, 12):
        arithmetic.verify_step(text_of(row) + " = 5")
        algebra.verify_step(text_of(row) + " = 5")
        assert kinds(" ") == before


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("identity", ["expand-bomb", "exponent-latex", "binomial-huge", "unit-power"])
async def test_a_hostile_function_ends_by_the_deadline_of_its_workers(identity: str):
    text = text_of(next(r for r in ROWS if r["id"] == identity))
    step = f"f(x) = {text}. Then f'(x) = {text} and \\int {text} dx = {text} + C"
    ((verdict,),) = await algebra.Algebra().verify(Problem("p", "?"), [step])
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.seconds < algebra.CPU_S + 0.5
