r"""Claims about unknowns: what is refuted, what is supported, and what is left open."""

import json
import sys
from fractions import Fraction
from importlib.util import find_spec
from subprocess import run

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.prm.types import Problem, Reason, VerdictKind
from stepward.verifiers.algebra import Algebra, verify_step
from stepward.verifiers.arithmetic import Arithmetic
from stepward.verifiers.base import Combined, first_decisive, make_verifier, unanimous
from stepward.verifiers.claims.univariate import gcd, has_root_between, roots_within
from stepward.verifiers.workers import Limits, Supervisor

SUPPORTED, REFUTED, UNKNOWN = VerdictKind.SUPPORTED, VerdictKind.REFUTED, VerdictKind.UNKNOWN


with_z3 = pytest.mark.skipif(find_spec("z3") is None, reason="z3 proves it: pip install 'stepward[z3]'")


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        (r"y = (n+1)^2 = n^2 + 2n + 2", "(n+1)^2 = n^2 + 2n + 2"),  # 2n + 1
        (r"P = 10i(a - bi) = 10ai - 10b", "10i(a - bi) = 10ai - 10b"),  # -10 b i^2 = 10 b
        (r"q = (1/4)^{3^n} = (1/2)^{2^{n+1}}", r"(1/4)^{3^n} = (1/2)^{2^{n+1}}"),  # at n = 2: 2^-18, 2^-8
        (r"\(-x^2 - x + 1 = 2x^2 - 1\) simplifies to \(0 = 3x^2 - x + 2\)", "0 = 3x^2 - x + 2"),
        (r"a^{-1} = -\frac{1}{2} \Rightarrow a = \boxed{2}", r"a = \boxed{2}"),  # a = -2
        (r"We have 60 - 3x = 9. Thus x = 19.", "x = 19"),  # x = 17
        (r"2x^2 = 8, so x = 2 or x = 3.", "x = 3"),  # 2 and -2
        (r"3x = 10, which gives x = 4.5.", "x = 4.5"),  # 3.33...
        (r"m^2-32>0, which implies that $(m-4)(m+8)>0$", "(m-4)(m+8)>0"),  # m = 5 and m = -7 part them
        (r"$x^2 + y^2 = 2x + 4$. Rearranging, $x^2 + y^2 - 2x = 6$.", "x^2 + y^2 - 2x = 6"),
        (r"so \[327 \equiv 8 \pmod{17}\]", r"327 \equiv 8"),  # 327 = 19 * 17 + 4
        (r"Thus 17 mod 5 = 3", "17 mod 5 = 3"),
        (
            r"\(770 \div 333 = 2\) with a remainder of \(58\)",
            r"770 \div 333 = 2\) with a remainder of \(58",
        ),  # 104
        ("Thus gcd(12, 18) = 5.", "gcd(12, 18) = 5"),
        ("The LCM of 4 and 6 is 24.", "LCM of 4 and 6 is 24"),
        ("C(8, 3) = 55", "C(8, 3) = 55"),  # 56
        (r"1 + 2 + 3 + \cdots + 100 = 5051", r"1 + 2 + 3 + \cdots + 100 = 5051"),
        (r"$\sum_{k=1}^{10} k^2 = 386$", r"\sum_{k=1}^{10} k^2 = 386"),  # 385
    ],
)
def test_a_false_claim_is_refuted_with_its_span(text: str, claim: str):
    verdict = verify_step(text)
    assert verdict.kind is REFUTED, verdict
    assert verdict.span is not None
    assert text[slice(*verdict.span)] == claim


@pytest.mark.parametrize(
    "text",
    [
        r"y = (n+1)^2 = n^2 + 2n + 1",
        "2x + 3 = 7, so 2x = 4",
        r"x^2 - 5x + 6 = 0, so x = 2 or x = 3",
        r"3x = 10, so x = 3.33",
        r"x^2 = 2, so x = \pm \sqrt{2}",
        r"327 \equiv 4 \pmod{17}",
        "C(8, 3) = 56",
        r"2x + 4y = 6. Dividing both sides by 2, x + 2y = 3.",
    ],
)
def test_a_true_claim_is_supported(text: str):
    assert verify_step(text).kind is SUPPORTED


@pytest.mark.parametrize(
    "text",
    [
        "Setting y = 6 - x and y = x^2 gives 6 - x = x^2.",  # an equation to be solved
        "(x-2)(x+3) = 0, so x = 2",  # a case
        "x + 3 = 6 or x + 3 = -6, so x = 3",  # one of two
        "x = 3 and x = 5",
        "f(2) = 4, so f(3) = 9",
        "We know 2x = 8. Case 2: x = 5.",  # not drawn from it
        "x^2 + 5x - 6 = 0. Solving $x^2 + 5x + 6 = 0$",  # names another equation
        "r^2 < 10, so r/10 < 1/r",  # the sign of r is not known
        r"z = (z^3 + z + z^4 + 1)/z^2 = -z^2/z^2",  # a root of unity
        "C(13, 2) = 13! / (2! * 11!)",
        "If 5 ≡ 3 (mod 4), then",
        r"\sin x = 1/2, so x = 30",
        "9w^2=3600\\text{ ft.}^2$ so $w^2=400",
    ],
)
def test_an_open_reading_is_never_refuted(text: str):
    assert verify_step(text).kind is not REFUTED, verify_step(text)


def test_a_step_goes_on_from_the_last_statement_of_the_step_before():
    # (3a - 1) + (a^2 + 1) + (a^2 + 2) = 2 a^2 + 3 a + 2
    before = ["We need (3a-1) + (a^2+1) + (a^2+2) = 16."]
    verdict = verify_step("Simplifying the left side, we get: a^2 + 3a + 2 = 16.", before)
    assert verdict.kind is REFUTED
    assert verify_step("Now, a new unknown has a^2 + 3a + 2 = 16.", before).kind is not REFUTED


@pytest.fixture(scope="module")
def supervisor():
    with Supervisor(num_workers=1, limits=Limits(cpu_s=5.0, wall_s=30.0)) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (r"\[\frac{d}{dy}\left[y^2 + y\right] = 2y + 1\]", SUPPORTED),
        ("Let f(x) = x^3 + 2x. Then f'(x) = 3x^2 + 3.", REFUTED),  # 3x^2 + 2
        ("Let f(x) = x^3 - 3x. Set f'(x) = 0.", UNKNOWN),  # an equation to be solved
        (r"$\int x^2 \, dx = \frac{x^3}{3} + C$", SUPPORTED),
        (r"$\int_0^1 x^2 \,dx = \frac{1}{2}$", REFUTED),  # 1/3
        (r"$\int_{0}^{\pi} \sin x \, dx = 2$", SUPPORTED),
        pytest.param("2x + 3 < 7, so x < 2.", SUPPORTED, marks=with_z3),
    ],
)
async def test_what_workers_decide(text: str, kind: VerdictKind, supervisor: Supervisor):
    ((verdict,),) = await Algebra(supervisor).verify(Problem("p", "?"), [text])
    assert verdict.kind is kind, verdict


async def test_a_worker_that_spends_its_time_is_unknown_and_never_refuted(supervisor: Supervisor):
    body = "((x+1)" * 12 + ")^{40}" * 12
    ((verdict,),) = await Algebra(supervisor).verify(Problem("p", "?"), [rf"$\int_0^1 {body} dx = 2$"])
    assert verdict.kind is UNKNOWN
    assert verdict.reason in (Reason.TIMEOUT, Reason.CRASH, Reason.UNSUPPORTED, Reason.NO_CLAIM)


async def test_the_registered_verifier_and_both_combined():
    algebra = make_verifier("algebra")
    assert isinstance(algebra, Algebra)
    steps = ["1 + 1 = 3", "2x = 8, so x = 5", "2x = 8, so x = 4", "done"]
    either = Combined("steps", (Arithmetic(), algebra), first_decisive)
    found = [v.kind for (v,) in await either.verify(Problem("p", "?"), steps)]
    assert found == [REFUTED, REFUTED, SUPPORTED, UNKNOWN]
    both = Combined("steps", (Arithmetic(), algebra), unanimous)
    assert [v.kind for (v,) in await both.verify(Problem("p", "?"), steps)] == found


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-99, 99), st.integers(-99, 99))
@settings(max_examples=40, deadline=None)
def test_a_root_of_a_linear_equation_is_supported_exactly_where_it_solves_it(a: int, b: int, c: int, x: int):
    if not a:
        return
    kind = verify_step(f"We have {a}x + ({b}) = {c}, so x = {x}.").kind
    if a * x + b == c:
        assert kind is SUPPORTED
    else:
        assert kind is REFUTED


coefficients = st.lists(st.integers(-5, 5), min_size=1, max_size=4).map(
    lambda v: (*map(Fraction, v), Fraction(1))
)


@given(coefficients, coefficients)
@settings(max_examples=40, deadline=None)
def test_roots_of_a_factor_are_roots_of_the_product(a, b):
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    assert roots_within(a, tuple(product))
    assert gcd(a, tuple(product)) == a


def test_a_root_is_found_between_two_numbers_by_sign_changes():
    square = (Fraction(-2), Fraction(0), Fraction(1))  # x^2 - 2
    assert has_root_between(square, Fraction(1), Fraction(2))
    assert not has_root_between(square, Fraction(-1), Fraction(1))


@pytest.mark.slow
def test_the_command_measures_against_labels_and_refuses_what_it_does_not_know(tmp_path):
    # Two erroneous solutions, one of them flagged at its label: precision 1 of 1, recall 1 of 2.
    rows = [
        {"id": "a", "problem": "?", "steps": ["2x = 8, so x = 5"], "label": 0, "generator": "g",
         "final_answer_correct": False},
        {"id": "b", "problem": "?", "steps": ["so it goes"], "label": 0, "generator": "g",
         "final_answer_correct": False},
    ]  # fmt: skip
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    command = [sys.executable, "-m", "stepward", "verify", str(path), "--verifier", "algebra", "--against"]
    measured = run([*command, "labels"], capture_output=True, text=True, check=True).stdout
    assert "2 solutions, 2 of them erroneous, 1 flagged" in measured
    assert run([*command, "prices"], capture_output=True, text=True).returncode != 0
