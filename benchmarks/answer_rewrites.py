r"""Seeded rewrites of an answer that keep its meaning, and perturbations that change it.

Both work on the text alone and know nothing of the checker. A rewrite composes one to three operations that apply;
a perturbation is one change of a digit, a sign, an exponent, an order that matters, or a part left out.
"""

import random
import re
from collections.abc import Callable
from fractions import Fraction

Operation = Callable[[str, random.Random], str | None]

_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d{1,6})\}\{(\d{1,6})\}")
_INTEGER = re.compile(r"(?<![\d.,\\{}^_a-zA-Z])\d{4,9}(?![\d.,{}\\])")
_DECIMAL = re.compile(r"-?\d{1,6}\.\d{1,4}")
_TEXT = re.compile(r"\\text\{([^{}$\\]+)\}")
_SPACED = re.compile(r"(?<=[\w}\])])\s*([+=<>]|\\cup|\\cdot|\\times)\s*(?=[\w\\({\[-])")


def rewrites(text: str, seed: int, number: int = 5) -> list[str]:
    """Up to ``number`` distinct texts that mean the same."""
    return _drawn(text, seed, number, _KEEPING, (1, 3))


def perturbations(text: str, seed: int, number: int = 5) -> list[str]:
    """Up to ``number`` distinct texts that mean something else."""
    return _drawn(text, seed, number, _CHANGING, (1, 1))


def _drawn(
    text: str, seed: int, number: int, operations: list[Operation], depth: tuple[int, int]
) -> list[str]:
    rng = random.Random(f"{seed}:{text}")
    found: list[str] = []
    for _ in range(8 * number):
        changed = text
        for _ in range(rng.randint(*depth)):
            changed = rng.choice(operations)(changed, rng) or changed
        if changed != text and changed not in found:
            found.append(changed)
        if len(found) == number:
            break
    return found


def _sub_one(
    pattern: re.Pattern[str], text: str, rng: random.Random, put: Callable[[re.Match[str]], str]
) -> str | None:
    places = list(pattern.finditer(text))
    if not places:
        return None
    place = rng.choice(places)
    return text[: place.start()] + put(place) + text[place.end() :]


# Operations that keep the meaning.


def _fraction_command(text: str, rng: random.Random) -> str | None:
    return _sub_one(
        re.compile(r"\\[dt]?frac(?=\{)"), text, rng, lambda _: rng.choice(["\\dfrac", "\\tfrac", "\\frac"])
    )


def _slash(text: str, _: random.Random) -> str | None:
    whole = re.fullmatch(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", text)
    return f"{whole[1]}{whole[2]}/{whole[3]}" if whole else None


def _decimal(text: str, _: random.Random) -> str | None:
    """A whole answer that is a fraction with a short decimal, and back."""
    fraction = re.fullmatch(r"(-?)" + _FRACTION.pattern, text)
    if fraction:
        value = Fraction(int(fraction[2]), int(fraction[3]))
        if 10_000 % value.denominator == 0:
            shown = f"{float(value):.10f}".rstrip("0").rstrip(".")
            return f"{fraction[1]}{shown}"
    if re.fullmatch(_DECIMAL.pattern, text):
        value = Fraction(text)
        return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    return None


def _spaces(text: str, rng: random.Random) -> str | None:
    blank = rng.choice([" ", "", "\\,", "\\ ", "~"])
    return _sub_one(_SPACED, text, rng, lambda m: f"{blank}{m[1]}{' ' if m[1][0] == chr(92) else blank}")


def _after_commas(text: str, rng: random.Random) -> str | None:
    if re.search(r"\d,\d", text) or "\\!" in text:
        return None
    return text.replace(", ", rng.choice([",\\ ", ",\\, ", ",  "])) if ", " in text else None


def _sized_brackets(text: str, _: random.Random) -> str | None:
    if "\\left" in text:
        return text.replace("\\left", "").replace("\\right", "")
    if (
        "\\(" not in text
        and text.count("(") == text.count(")") == 1
        and "[" not in text
        and "]" not in text
        and "|" not in text
    ):
        return text.replace("(", "\\left(").replace(")", "\\right)")
    return None


def _delimiters(text: str, rng: random.Random) -> str | None:
    if "$" in text or "boxed" in text or "\\(" in text:
        return None
    return rng.choice(["${}$", "\\({}\\)", "\\boxed{{{}}}", "\\displaystyle {}", "{}."]).format(text)


def _text_command(text: str, rng: random.Random) -> str | None:
    command = rng.choice(["\\mbox", "\\textbf", "\\mathrm", "\\textrm"])
    return _sub_one(_TEXT, text, rng, lambda m: f"{command}{{{m[1]}}}")


def _bare_text(text: str, _: random.Random) -> str | None:
    whole = re.fullmatch(r"\\text\{([^{}$\\]{2,})\}", text)
    return whole[1] if whole else None


def _thousands(text: str, rng: random.Random) -> str | None:
    if "," in text or "." in text or "_" in text or "!" in text:
        return None
    mark = rng.choice(["{,}", ",\\!", ","])
    return _sub_one(
        _INTEGER, text, rng, lambda m: f"{int(m[0]):,}".replace(",", mark) if m[0][0] != "0" else m[0]
    )


def _list_order(text: str, rng: random.Random) -> str | None:
    body = re.fullmatch(r"(\\\{\s*)?([^()\[\]{}\\.]+(?:,[^()\[\]{}\\.]+)+)(\s*\\\})?", text)
    if not body or bool(body[1]) != bool(body[3]) or "=" in text or re.search(r"\d,\d\d\d", text):
        return None
    items = [i.strip() for i in body[2].split(",")]
    rng.shuffle(items)
    return f"{body[1] or ''}{', '.join(items)}{body[3] or ''}"


def _sum_order(text: str, _: random.Random) -> str | None:
    two = re.fullmatch(r"([^-+,=<>()\[\]{}\\&:|$]*)([-+])([^-+,=<>()\[\]{}\\&:|$]*?)\.?", text)
    if not two or not two[1].strip() or not two[3].strip() or re.search(r"[a-zA-Z]{3}", text):
        return None
    first, sign, second = two[1].strip(), two[2], two[3].strip()
    return f"{second}+{first}" if sign == "+" else f"-{second}+{first}"


def _braced_exponent(text: str, rng: random.Random) -> str | None:
    if rng.random() < 0.5:
        return _sub_one(re.compile(r"\^(\d)(?!\d)"), text, rng, lambda m: f"^{{{m[1]}}}")
    return _sub_one(re.compile(r"\^\{(\w)\}(?!\w)"), text, rng, lambda m: f"^{m[1]}")


def _product_sign(text: str, rng: random.Random) -> str | None:
    if re.search(r"text|boxed|begin|sin|cos|tan|log|ln", text):
        return None
    return _sub_one(
        re.compile(r"(?<![\w^_}.\\])(\d+)(?=[a-zA-Z]\b|\\sqrt|\\pi)"), text, rng, lambda m: f"{m[1]} \\cdot "
    )


def _degrees(text: str, rng: random.Random) -> str | None:
    if "^\\circ" not in text:
        return None
    return text.replace("^\\circ", rng.choice(["^{\\circ}", "°", "^ \\circ"]))


def _unicode(text: str, rng: random.Random) -> str | None:
    signs = [("\\pi", "π"), ("-", "−"), ("\\infty", "∞"), ("\\cup", "∪"), ("\\le ", "≤"), ("\\times", "×")]
    usable = [s for s in signs if s[0] in text and not re.search(re.escape(s[0]) + r"[a-zA-Z]", text)]
    if not usable or "begin" in text:
        return None
    old, new = rng.choice(usable)
    return text.replace(old, new)


def _named(text: str, rng: random.Random) -> str | None:
    if re.fullmatch(r"-?(?:\d+|\\frac\{\d+\}\{\d+\})", text):
        return f"{rng.choice('xnkm')} = {text}"
    return None


_KEEPING: list[Operation] = [
    _fraction_command, _slash, _decimal, _spaces, _after_commas, _sized_brackets, _delimiters, _text_command,
    _bare_text, _thousands, _list_order, _sum_order, _braced_exponent, _product_sign, _degrees, _unicode, _named,
]  # fmt: skip


# Operations that change the meaning.


def _digit(text: str, rng: random.Random) -> str | None:
    def other(place: re.Match[str]) -> str:
        return rng.choice([d for d in "123456789" if d != place[0]])

    return _sub_one(re.compile(r"\d"), text, rng, other)


def _sign(text: str, rng: random.Random) -> str | None:
    """The sign of a whole number, fraction or root; of a middle term."""
    if re.fullmatch(r"-?(?:\d[\d,.]*|\\[dt]?frac\{\d+\}\{\d+\}|\d*\\sqrt\{\d+\}|\d*\\pi)", text):
        return text[1:] if text[0] == "-" else None if re.fullmatch(r"[0.,]+|0,.*", text) else f"-{text}"
    places = re.compile(r"(?<=[\w})])\s*[-+]\s*(?=[\w\\(])")
    if "\\pm" in text or "\\text" in text or "begin" in text or re.search(r"[-+]\s*0(?!\.)", text):
        return None
    return _sub_one(places, text, rng, lambda m: m[0].replace("+", "#").replace("-", "+").replace("#", "-"))


def _exponent(text: str, rng: random.Random) -> str | None:
    return _sub_one(
        re.compile(r"\^\{?(\d+)\}?"), text, rng, lambda m: f"^{{{int(m[1]) + rng.randint(1, 3)}}}"
    )


def _drop_item(text: str, rng: random.Random) -> str | None:
    """One of several listed values left out."""
    body = re.fullmatch(r"((?:\\left)?(?:\\\{|\()|)([^()\[\]{}\\]+)((?:\\right)?(?:\\\}|\))|)", text)
    if not body or "," not in body[2] or re.search(r"\d,\d\d\d", text):
        return None
    items = [i.strip() for i in body[2].split(",")]
    if len({"".join(sorted(re.sub(r"[ +]", "", i))) for i in items}) != len(items):
        return None  # One value written in two ways.
    items.pop(rng.randrange(len(items)))
    return f"{body[1]}{', '.join(items)}{body[3]}"


def _drop_term(text: str, rng: random.Random) -> str | None:
    """One term of a sum left out."""
    if "text" in text or re.search(r"[,=<>&:]|\\cup|\\pm", text) or text.count("(") or text.count("{") > 4:
        return None
    terms = re.findall(r"[-+]?(?:\{[^{}]*\}|[^-+{}])+", text)
    if len(terms) < 2 or "".join(terms) != text or any(re.fullmatch(r"[-+]?\s*0*\s*", t) for t in terms):
        return None
    terms.pop(rng.randrange(len(terms)))
    return "".join(terms).strip().lstrip("+").strip()


def _drop_part(text: str, _: random.Random) -> str | None:
    """The denominator, the radical or the constant left out."""
    whole = re.fullmatch(r"(-?)\\[dt]?frac\{(.+)\}\{(\d+)\}", text)
    if whole and whole[3] != "1" and "{" not in whole[2]:
        return f"{whole[1]}{whole[2]}"
    root = re.fullmatch(r"(-?\d+)\\sqrt\{(\d+)\}", text)
    if root:
        return root[1]
    constant = re.fullmatch(r"(-?\d+)\s*\\pi", text)
    return constant[1] if constant else None


def _swapped(text: str, rng: random.Random) -> str | None:
    """Two entries of a tuple exchanged."""
    body = re.fullmatch(r"((?:\\left)?\()([^()\[\]{}\\=]+)((?:\\right)?\))", text)
    if not body or "," not in body[2] or re.search(r"\d,\d\d\d", text):
        return None
    items = [i.strip() for i in body[2].split(",")]
    if len(set(items)) != len(items):
        return None
    i, j = rng.sample(range(len(items)), 2)
    items[i], items[j] = items[j], items[i]
    return f"{body[1]}{', '.join(items)}{body[3]}"


_CHANGING: list[Operation] = [_digit, _digit, _sign, _exponent, _drop_item, _drop_term, _drop_part, _swapped]
