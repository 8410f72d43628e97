r"""What a step's neighbours make of a claim: values stated again, equations used, congruences, words that suppose."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepward.prm.types import Problem, Reason, VerdictKind
from stepward.verifiers import algebra, arithmetic
from stepward.verifiers.algebra import Algebra
from stepward.verifiers.arithmetic import Arithmetic

SUPPORTED, REFUTED, UNKNOWN = VerdictKind.SUPPORTED, VerdictKind.REFUTED, VerdictKind.UNKNOWN


@pytest.mark.parametrize(
    ("before", "text", "claim"),
    [
        ("So we need $34*30.5$.", "That is $1049$.", "34*30.5 = 1049"),  # 1037
        ("", r"The odds are $\dfrac{1716}{132600}$, which simplifies to $\dfrac{1}{78}$.", r"\dfrac{1}{78}"),
        ("We get $-12-10-6+0+8+18$.", "Right. That's equal to $-10$.", "-12-10-6+0+8+18 = -10"),  # -2
        (
            "So $r=\\sqrt{9+\\frac{34}{4}}$.",
            "Which simplifies to $r=\\sqrt{\\frac{46}{4}}$.",
            r"\sqrt{\frac{46}{4}}",
        ),
        ("So $f(-1) - f(1) = 4\\cdot 1001$.", "So $f(-1) - f(1) = 4044$.", r"4\cdot 1001 = 4044"),
    ],
)
def test_a_value_stated_again_is_held_against_the_first(before: str, text: str, claim: str):
    verdict = arithmetic.verify_step(text, [before] if before else [])
    assert verdict.kind is REFUTED
    assert claim in verdict.evidence
    assert verdict.span is not None
    assert 0 <= verdict.span[0] < verdict.span[1] <= len(text)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("So she has $2*3$ apples.", "This is $5$ more than he has."),
        ("Brittany has 3/15 of them", "which is equal to 3/15*600 = 120 marbles."),  # a share of an amount
        ("We need the lcm of $4=2^2$ and $9=3^2$,", "which is $2^2 \\cdot 3^2 = 36$."),
        (r"It is the least integer greater than $\sqrt[3]{-25}$,", "which is $-2$."),
        (r"The vector is $\left(\frac{2}{3}, \frac{2}{3}\right)$,", r"which is $\frac{2}{3}\sqrt{2}$ long."),
        ("There are $10^4$ codes,", "which is $10^5-10^4=90000$ less than $10^5$."),
        (r"$x^2=\frac{384}{6}$ or $x^2=\frac{6}{6}$.", "So $x^2=64$ or $x^2=1$."),
        ("We have $(-1)^2-(-1)+1$.", "That's $-1-1+90=88$ for the dividend."),
        (r"It is the angle with $\sin t = \frac{1}{2}$,", r"which is $\frac{\pi}{6}$."),
        (r"It is the determinant times $(-1)^{1+1}$,", "which is $-7$."),
        (
            r"$x=\frac{123}{41}-1.5$.",
            r"And if we divide both sides by $3$, we get $x=\frac{123}{41\cdot3}-\frac{1.5}{3}$.",
        ),
        ("We have $a = 2*3$.", "For the other case, $a = 7$."),
    ],
)
def test_words_that_may_mean_something_else_restate_nothing(before: str, text: str):
    assert arithmetic.verify_step(text, [before]).kind is not REFUTED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("So $227=5\\cdot45$.", REFUTED),
        ("Which simplifies to 1/14 + 1/63 = 1/7.", REFUTED),
        ("That would be $1+2+3=7$.", REFUTED),
        ("And if we add those we get $2+2=5$.", REFUTED),
        ("If we choose $x = 2$, then $2+2=5$.", UNKNOWN),
        ("The sum of the digits is 2 + 2 + 0 = 6.", REFUTED),
        ("The polynomial says $6 = 2 + 3$.", UNKNOWN),
        ("$3628800=10*4!*4!$.", REFUTED),
        ("There are 7! - 3! * 4! = 3600 ways.", REFUTED),
        ("34.56 + 20% of $34.56 = $34.56 + $6.91", UNKNOWN),  # 41.472 and 41.47
        ("50-49.4=0.6000000000000014", UNKNOWN),  # a machine's number
        ("It costs 800 - 20% = $640 now.", UNKNOWN),  # 20% of the 800
        ("There are 12 birds + 1/3 of 12 birds (4 birds) + 20 more birds = 28 birds", UNKNOWN),
        (r"10 \text{-year-old production} - 200 = 1000 - 200 = 800 \text{ fruits}", UNKNOWN),
        ("498.80 / 75 cents = 665.07 turns", UNKNOWN),
        ("4 dozen - 6 plates = 38 plates", UNKNOWN),
        ("70 (70%) - 60 (60%) = 10", UNKNOWN),
        ("Since $3^+>3$, $f(3^+)=3^+ +2=5$.", UNKNOWN),
        ("≈ (1.5 moles / 0.5 moles) : (3 moles / 0.5 moles) : (0.5 moles / 0.5 moles) = 3 : 6 : 1", UNKNOWN),
        ("Plugging in $1$ we get $1=3+4$.", UNKNOWN),
        ("And $1=3+4$ is clearly not true.", UNKNOWN),
        ("He has 5 + 2 = 3!", UNKNOWN),  # loud, or a factorial
        (r"$\frac{6!}{6}=5!=5\cdot 24$", SUPPORTED),  # no sign of inequality stands in it
        ("$3!! + 1!! = 4$", UNKNOWN),
        (r"$6!/3!3! = 20$", UNKNOWN),
        ("The dot product is $2*-5+3*4=-2$.", REFUTED),
        ("The difference is $3 - 8 = 5$.", UNKNOWN),
        ("We obtain $1.5+4*1/8=1.75$.", REFUTED),  # 2 is not rounded to 1.75
        ("So $6666/60 = 111$.", UNKNOWN),
        ("So $2(\\frac{\\sqrt{3}}{2})^2-1=0$.", REFUTED),  # 1/2
        ("and then $35 < 2|P|$", UNKNOWN),
        ("Since 25 = 23 * 21, we see it.", REFUTED),
        ("Since 25 = 23 * 22, we see it.", UNKNOWN),  # 2^5 = 2^3 * 2^2 in plain text
        (r"$\frac{4}{4}=1 \qquad \frac{4}{8}=\frac{1}{2}\qquad \frac{4}{12} =\frac{1}{3}$", SUPPORTED),
        (r"\(\frac{1}{2} (\text{arc } ABC) = (1/2)(140)\)", UNKNOWN),
        (r"Thus $2^{2abcd} = 2^3$.", UNKNOWN),
        (r"$\frac{23}{9} = 2+0.\overline{5}$", UNKNOWN),
        (
            r"$\sqrt[4]{8} \operatorname{cis} (75^\circ + 90^\circ) = \sqrt[4]{8} \operatorname{cis} 165^\circ$",
            UNKNOWN,
        ),
        ("Carlos memorized 24/6=<<24/6=4>>4 digits of pi.", SUPPORTED),
    ],
)
def test_doubts_hold_where_the_text_gives_cause_for_them_and_only_there(text: str, kind: VerdictKind):
    assert arithmetic.verify_step(text).kind is kind


async def test_an_equality_that_holds_by_a_modulus_in_sight_is_left_open():
    problem = Problem("p", "Find the remainder when $10^{30}$ is divided by $1001$.")
    steps = ["$10^3 = -1$.", "$10^3 = 7$.", r"$1234 = 7 \cdot 175 + 5$, so $1234 \equiv 5 \pmod{7}$."]
    found = [v for (v,) in await Arithmetic().verify(problem, steps)]
    assert [v.kind for v in found] == [UNKNOWN, REFUTED, REFUTED]
    assert found[0].reason is Reason.AMBIGUOUS
    assert "congruence" in found[0].evidence


@pytest.mark.parametrize(
    ("before", "text", "kind"),
    [
        (
            r"So $x=\frac{-2\pm\sqrt{2^2+12}}{-2}$.",
            r"That simplifies to $x=-1\pm\sqrt{7}$.",
            REFUTED,
        ),  # 1 ∓ 2
        (r"So $x=\frac{-2\pm\sqrt{2^2+12}}{-2}$.", r"That simplifies to $x=1\pm 2$.", SUPPORTED),
        (r"So $x=3\pm 2$.", "So $x = 5$.", SUPPORTED),
        (r"So $x=3\pm 2$.", "So $x = 6$.", REFUTED),
        ("We get $42a + 6(-6a - 2) = -18.$", "After combining like terms, we get $18a = 30.$", REFUTED),
        ("So $x^2-12x+36+4x^2=5$.", "And if we simplify that we get $5x^2-12x=5$.", REFUTED),
        (r"$\frac{15d^2}{9}=36-\frac{49}{4}$", r"$15d^2=36-\frac{49}{4}$", REFUTED),
        (r"$3x = 9$ and $4y = 8$", "$5x = 10$", UNKNOWN),  # a list
        (
            r"$2ad+d^2=264$",
            r"This gives $2\cdot\frac{124}{d}\cdot d+d^2=264$.",
            UNKNOWN,
        ),  # a = 124/d was put in
        (r"The line is $y-4=-2(x-4)$.", "That simplifies to $y=-x+8$.", REFUTED),  # y = -2x + 12
        (r"We have $xy(x+y)=6$.", "This simplifies to $2xy=6$.", UNKNOWN),  # x + y = 2 may be known
        (r"So $AB^2 + (2AB)^2 = AC^2$.", "This simplifies to $5AB^2 = AC^2$.", UNKNOWN),  # AB is one length
        ("We cannot have $f = 2g + 1$,", "so $f = -2g + 1$.", UNKNOWN),
        ("Since $a > 0$,", "we can divide by $a$ to get $a + 2 \\ge a^2$.", UNKNOWN),
    ],
)
def test_what_follows_from_the_step_before(before: str, text: str, kind: VerdictKind):
    assert algebra.verify_step(text, [before]).kind is kind


def test_an_equation_of_the_problem_or_of_an_earlier_step_may_be_used():
    rewriting = "So $x^3 - 2x + 1 = x(x^2) - 2x + 1 = x(x+1) - 2x + 1$."
    assert algebra.verify_step(rewriting).kind is REFUTED
    assert (
        algebra.verify_step(rewriting, ["We know that $x^2 - x - 1 = 0$.", "Now go on."]).kind is not REFUTED
    )
    assert (
        algebra.verify_step(rewriting, problem="Let $x^2 = x + 1$. Find $x^3 - 2x + 1$.").kind is not REFUTED
    )
    assert algebra.verify_step(rewriting, ["We know that $x^2 - 2x - 1 = 0$."]).kind is REFUTED
    slip = "$4b^3 = 23b^3$, so $b^3 = \\frac{4b^3 + 23b^3}{23} = \\frac{29b^3}{23}$."
    assert algebra.verify_step(slip).kind is REFUTED  # that b = 0 makes it true excuses nothing


def test_a_product_of_two_divisors_is_neither_of_them():
    assert (
        algebra.verify_step("So the product of the GCD and LCM of $8$ and $6$ is $48$.").kind is not REFUTED
    )
    assert algebra.verify_step("So the LCM of $8$ and $6$ is $48$.").kind is REFUTED


def test_products_of_vectors_are_no_products_of_numbers():
    text = r"$u = \mathbf{i}(\mathbf{i} + 1) - 1 = \mathbf{i} + 3$"
    assert algebra.verify_step(text).kind is not REFUTED
    assert algebra.verify_step(text.replace(r"\mathbf{i}", "k")).kind is REFUTED


def test_a_modulus_is_no_part_of_the_congruence_behind_it():
    assert algebra.verify_step(r"We have $109 \pmod{94}\equiv 15\pmod{94}$.").kind is not REFUTED
    assert algebra.verify_step(r"So \(n \equiv 56 \equiv \boxed{6} \pmod{17}\). It is 6.").kind is REFUTED


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 99),
    st.integers(2, 99),
    st.integers(-3, 3),
    st.sampled_from(["That is", "This equals", "So that's"]),
)
def test_a_product_stated_again_is_refuted_exactly_where_it_is_wrong(a: int, b: int, off: int, words: str):
    verdict = arithmetic.verify_step(f"{words} ${a * b + off}$.", [f"We need ${a} \\cdot {b}$."])
    assert (verdict.kind is REFUTED) == (off != 0)
    assert (verdict.kind is SUPPORTED) == (off == 0)


@pytest.mark.parametrize(
    "unit", ["$1$. That is ", "= 2. So x ", "which is $", "\\pmod{7} ", "remainder divided by 7 ", "x \\pm "]
)
async def test_long_hostile_context_ends_at_once(unit: str):
    steps = [unit * (20_000 // len(unit)), "That is $" + "9" * 5000 + "$.", unit * 500]
    began = time.process_time()
    for verifier in (Arithmetic(), Algebra(workers=False)):
        assert len(await verifier.verify(Problem("p", unit * 1000), steps)) == 3
    assert time.process_time() - began < 3
