r"""Equivalence of two answers, by kind of value. Every row states a fact of mathematics or of notation."""

# ruff: noqa: E501  (a table reads by its rows)

import pytest

from stepward.prm.types import Check, CheckKind, Reason, VerdictKind
from stepward.verifiers.answer import equivalent

EQUAL = {
    "integers": [("72", "72"), ("-5", "−5"), ("007", "7"), ("1,200", "1200"), ("1{,}200", r"1,\!200"), ("72", "72.0")],
    "long integers": [("1" * 300, "1" * 300), ("0" * 250 + "5", "5")],
    "fractions": [("1/2", r"\frac{2}{4}"), (r"\frac12", r"\dfrac{1}{2}"), ("-3/4", r"-\frac{3}{4}"), (r"\frac{-3}{4}", "-.75")],
    "decimals": [("0.5", ".50"), (r"\frac{1}{12}", "0.0833333333333333"), (r"\frac{\sqrt{3}}{2}", "0.8660254037844386")],
    "repeating decimals": [(r"\frac{1}{3}", r"0.\overline{3}"), (r"0.1\overline{6}", "1/6")],
    "float noise": [(r"\frac{3}{56}", "0.0535714285714164"), ("56", "55.99999999999999")],
    "mixed numbers": [(r"12\frac{3}{5}", r"\frac{63}{5}"), ("2 1/2", "2.5"), (r"-1\frac12", "-1.5")],
    "percent": [("28\\%", "28 percent"), ("0.335", "33.5\\%"), ("10", "10\\%"), ("1/4", "25%")],
    "currency": [("\\$10", "10"), ("$18", "18.00"), ("\\$1.50", "150 cents")],
    "units": [("5\\text{ cm}", "50 mm"), ("125 miles", "125"), ("3\\text{ cm}^2", "3 square centimeters"), ("2 hours", "120 min")],
    "durations": [("225 minutes", "3 hours and 45 minutes")],
    "degrees": [("74^\\circ", "\\angle APC = 74^{\\circ}"), ("30°", "30"), ("180^\\circ", r"\pi")],
    "roots": [(r"\sqrt{8}", r"2\sqrt2"), (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"), ("2**(1/4)", r"\sqrt{\sqrt{2}}")],
    "cube roots": [(r"\sqrt[3]{16}", r"2\sqrt[3]{2}"), (r"\sqrt[3]{-8}", "-2"), (r"\sqrt[3]{x}^2", "x^{2/3}")],
    "nested roots": [(r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"), (r"\sqrt{4+8x}", r"2\sqrt{1+2x}")],
    "complex numbers": [("14 - i", "14.0 + -1.0i"), ("(1+i)^2", "2i"), (r"\sqrt{-4}", "2i")],
    "polynomials": [("x^2-x", "x(x-1)"), ("11z^7(11z^7+5)", "11z^{7}(5+11z^{7})"), ("(a+b)^3", "a^3+3a^2b+3ab^2+b^3")],
    "rational functions": [(r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"), (r"\frac{x^2-1}{x-1}", "x+1")],
    "powers": [("2^{x+1}", r"2\cdot 2^x"), ("3^{2n}", "9^n"), ("2024^{4046}", "2024^{4046}"), ("10^{-2}", "0.01")],
    "functions": [(r"\tan^2(y)+1", r"\sec^2(y)"), (r"\ln(4)", r"2\ln 2"), (r"\log_2 8", "3"), (r"\sin^{-1} x", r"\arcsin x")],
    "factorials": [("5!", "120"), (r"\frac{(n-1)!}{k!}\frac{n}{(n-k)!}", r"\binom{n}{k}")],
    "sums": [(r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"), (r"\sum_{i=1}^{4} i^2", "30")],
    "indexed names": [(r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-1} F_{n-k-1} F_k"), ("a_{n}=2n+1", "a_n=1+2 n")],
    "lists": [("1, 3, 2", "1,2,3"), (r"6 \text{ and } 8", "8, 6"), (r"1 \pm \sqrt{5}", r"1-\sqrt5, 1+\sqrt5")],
    "sets": [(r"\{1, 2\}", r"\{2,1\}"), (r"\{5\}", "5"), (r"\{-1, 1\}", r"\pm 1")],
    "tuples": [("(1, 9/2)", "(1,4.5)"), (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"), ("(0;0;6)", "(0,0,6)")],
    "named values": [("5", "x = 5"), ("2=x", "x=2"), ("(p,q)=(3,2)", "(3, 2)"), ("k = 45, n = 2", "n=2, k=45")],
    "stated sums": [("8", "5 + 3 = 8"), ("5", "m + n = 5"), ("z = 1 + 1 = 2", "2")],
    "intervals": [("[2,5)", r"2 \le x < 5"), (r"(-\infty, 3)", "x<3"), (r"m \in [\sqrt{2}, +\infty)", r"m \geq \sqrt{2}")],
    "unions": [(r"x \ne 3", r"(-\infty,3)\cup(3,\infty)"), ("x<1 or x>2", r"(2,\infty)\cup(-\infty,1)"),
               (r"\mathbb{R}\setminus\{3\}", r"(-\infty, 3) \cup (3, \infty)")],
    "set builders": [(r"\{x : x > 2\}", r"(2,\infty)")],
    "relations": [("2>x", "x<2"), (r"x \leq 5", r"5 \geq x"), ("x+y<3", "y<3-x")],
    "equations up to scale": [("2x+4y-3=0", r"y = -\frac{1}{2}x + \frac{3}{4}"), ("x^2+y^2=4", "4 = y^2+x^2")],
    "matrices": [(r"\begin{pmatrix} 1 & 1/2 \\ 3 & 4 \end{pmatrix}", r"\left[\begin{array}{cc}1 & 0.5\\3&4\\\end{array}\right]")],
    "vectors": [(r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"), (r"2\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\4\end{pmatrix}")],
    "choices": [(r"\text{(C)}", "C"), ("(B)", r"\textbf{(B)}\ 5"), ("5", r"\textbf{(B)}\ 5")],
    "texts": [(r"\text{Evelyn}", "evelyn"), ("odd", r"$\text{odd}$"), (r"\text{the midpoint}", "Midpoint"), ("three", "3")],
    "times": [(r"8\!:\!34 \text{ p.m.}", "8:34 pm"), ("7:32", "7 : 32")],
    "ratios": [("3:4", "6:8"), ("S:T = 7:32", "7:32"), ("3:5", r"\frac{3}{5}")],
    "numerals in a base": [("1011_2", "1011_{2}"), (r"\text{A5}_{11}", "A5_{11}")],
    "ordinals": [("18", "18th"), ("18", r"18^{\text{th}}")],
    "escapes": [(r"\frac{1}{4}", r"\\frac{1}{4}")],
}  # fmt: skip

DIFFERENT = {
    "integers": [("72", "73"), ("5", "5.001"), ("1" * 300, "1" * 299 + "2"), ("1000", "1e3x")],
    "fractions": [(r"\frac{63}{400}", r"\frac{64}{400}"), ("1/2", "2"), (r"\frac{1}{12}", "0.0833333333433333")],
    "decimals": [("3.14159", "3.14158"), ("0.25", "0.26"), (r"\sqrt{2}", "1.5")],
    "percent": [("10", "0.1"), ("28\\%", "29\\%"), ("5\\%", "5\\text{ cm}")],
    "units": [("5\\text{ cm}", "5\\text{ m}"), ("2 hours", "2 minutes"), ("3\\text{ cm}", "3\\text{ kg}"), ("45\\text{ units}^2", "45\\text{ units}^4")],
    "roots": [("4", r"4\sqrt(2)"), (r"\sqrt{2}", r"\sqrt{3}"), (r"\sqrt{67}", r"\sqrt{67},-\sqrt{85}")],
    "constants": [(r"1 - \frac{1}{\mathrm{e}}", r"1 + \frac{1}{\mathrm{e}}"), (r"2\pi", "2")],
    "powers": [("3^{2025}", "2^{2025}"), ("x^2", "x^3"), ("x^{2}", "x2")],
    "polynomials": [("x^2+1", "x^2-1"), (r"g\frac{a-b}{a+b}", r"\frac{a-b}{a+b} {g}_{k} + \frac{c k^3}{a + b}")],
    "functions": [(r"\cos(x)=\frac{42}{59}", r"\sin(x)=\frac{42}{59}"), (r"\sin x", r"\cos x")],
    "lists": [("1331 and 1728", "1728"), ("19, 46, \\text{ and } 82", "21, 36, and 82"), ("1, 2, \\ldots, n", "1, 3, 5, \\ldots, 2n-1")],
    "named lists": [("n=2, 3, 4", "n=1, 2, 3")],
    "tuples": [("(3,1)", "(1,3)"), ("(3,1)", r"\{1,3\}"), ("[x + 1, x]", "[x, x + 1]")],
    "intervals": [("[0,9)", "[0,1)"), ("(0,1]", "[0,1)"), ("x<3", r"x \le 3"), ("x<3", "x>3"), ("x<3", "y<3")],
    "equations": [("3*x-1*y+13=0", "3x + 4y + 14=0"), ("2x + z = 1", "1"), ("f(x) = 0", r"\forall x>0, f(x) = 0")],
    "sums": [(r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}", r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}")],
    "asymptotics": [(r"O(\log \log n)", "Theta(log log n)")],
    "matrices": [(r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 2 & 1 \end{pmatrix}")],
    "texts": [(r"\text{oddd}", "odd"), (r"\text{Tuesday}", r"\text{Monday}"), ("5", "it cannot be determined")],
    "choices": [("C", "(D)"), (r"\text{(C)}", r"\textbf{(B)}\ 5")],
    "times": [("12:00", "1:00"), ("8:34 pm", "8:34 am"), ("3:4", "4:3")],
    "numerals in a base": [("1011_2", "1010_2"), ("12_5", "12_7")],
}  # fmt: skip

OPEN = {
    "a rounding to few digits": ("1/3", "0.33"),
    "a shorter decimal": ("0.12344", "0.1234"),
    "a base that is not said": ("2516_8", "2516"),
    "a letter that may be a unit": ("0.64", "0.64N"),
    "equal for positive values only": ("|x|", "x"),
    "a whole number beside an improper fraction": (r"\frac{9}{5}", r"1\frac{9}{5}"),
    "an unclosed bracket": ("60", "(3-9) (5-15"),
    "an integral": ("1/2", r"\int_0^1 x\,dx"),
    "an hour or a number": ("2", "2:00 pm"),
}


def rows(table: dict[str, list[tuple[str, str]]]) -> list:
    return [
        pytest.param(g, a, id=f"{kind}-{i}")
        for kind, pairs in table.items()
        for i, (g, a) in enumerate(pairs)
    ]


@pytest.mark.parametrize(("gold", "answer"), rows(EQUAL))
def test_equal_answers_are_supported_both_ways(gold: str, answer: str) -> None:
    assert equivalent(gold=gold, answer=answer).kind is VerdictKind.SUPPORTED
    assert equivalent(gold=answer, answer=gold).kind is not VerdictKind.REFUTED


@pytest.mark.parametrize(("gold", "answer"), rows(DIFFERENT))
def test_different_answers_are_refuted_both_ways(gold: str, answer: str) -> None:
    assert equivalent(gold=gold, answer=answer).kind is VerdictKind.REFUTED
    assert equivalent(gold=answer, answer=gold).kind is not VerdictKind.SUPPORTED


@pytest.mark.parametrize(("gold", "answer"), OPEN.values(), ids=OPEN.keys())
def test_what_the_text_does_not_settle_stays_open_with_a_reason(gold: str, answer: str) -> None:
    verdict = equivalent(gold=gold, answer=answer)
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.reason is not Reason.NONE


def test_a_tolerance_decides_roundings() -> None:
    # cos^10(pi/10) = 0.60543: off by 0.00003 or 5e-5 of it.
    near = Check(tolerance=1e-4)
    assert (
        equivalent(gold=r"\cos ^{10}(\frac{\pi}{10})", answer="0.6054", check=near).kind
        is VerdictKind.SUPPORTED
    )
    assert (
        equivalent(gold=r"\cos ^{10}(\frac{\pi}{10})", answer="0.6050", check=near).kind
        is VerdictKind.REFUTED
    )


def test_boxes_around_either_side_change_nothing() -> None:
    assert equivalent(gold=r"\boxed{2}", answer="2").kind is VerdictKind.SUPPORTED
    assert (
        equivalent(gold="2", answer=r"so \boxed{1} is wrong and \boxed{2} right").kind
        is VerdictKind.SUPPORTED
    )


def test_arguments_must_be_named() -> None:
    # P104: three benchmarks passed prediction and reference in the wrong order.
    with pytest.raises(TypeError):
        equivalent("1", "2")  # pyright: ignore


def test_a_verdict_says_what_was_compared() -> None:
    verdict = equivalent(gold="1/2", answer="0.6")
    assert "'0.6' against '1/2'" in verdict.evidence
    assert (verdict.verifier, verdict.version) == ("answer", "1")


def test_choices_are_compared_by_letter_or_by_the_text_of_the_option() -> None:
    check = Check(CheckKind.CHOICE, payload='["4", "5", "\\\\frac{1}{2}"]')
    assert equivalent(gold="B", answer="(B)", check=check).kind is VerdictKind.SUPPORTED
    assert equivalent(gold="C", answer="0.5", check=check).kind is VerdictKind.SUPPORTED
    assert equivalent(gold="B", answer="c", check=check).kind is VerdictKind.REFUTED
    assert equivalent(gold="B", answer="none of them", check=check).reason is Reason.AMBIGUOUS


def test_texts_are_compared_as_words() -> None:
    check = Check(CheckKind.TEXT)
    assert (
        equivalent(gold="The  Eiffel Tower", answer="eiffel tower.", check=check).kind
        is VerdictKind.SUPPORTED
    )
    assert equivalent(gold="Paris", answer="London", check=check).kind is VerdictKind.REFUTED
