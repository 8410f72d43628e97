"""When two problem texts are the same, or nearly: one notion for contamination, duplicates and splits.

*Exact* is equality after ``words``: case, white space, LaTeX delimiters and punctuation do not count. *Near* is a
share of common word n-grams with every number masked, so that a problem with other numbers is found too.
"""

import hashlib
import re
from collections.abc import Sequence

_WORD = re.compile(r"[^\W\d_]+|\d[\d.,]*|[^\s\w$\\{}.,;:!?'\"()\[\]`~]")
_NUMBER = "#"


def words(text: str) -> list[str]:
    """Words, numbers and operator signs in lower case; ``1,000`` and ``1000`` are the same number."""
    found = _WORD.findall(text.casefold().replace("’", "'"))
    return [w.replace(",", "").rstrip(".") if w[0].isdigit() else w for w in found]


def masked(tokens: Sequence[str]) -> list[str]:
    """The words with every number as one sign."""
    return [_NUMBER if w[0].isdigit() else w for w in tokens]


def key_of(text: str) -> str:
    """Equal for texts that are exactly the same problem."""
    return hashlib.sha256(" ".join(words(text)).encode()).hexdigest()[:16]


def shingles(text: str, n: int) -> frozenset[int]:
    """64-bit hashes of all masked n-grams; a text of fewer than n words is one n-gram."""
    tokens = masked(words(text))
    grams = [tokens[i : i + n] for i in range(max(1, len(tokens) - n + 1))] if tokens else []
    return frozenset(
        int.from_bytes(hashlib.blake2b(" ".join(g).encode(), digest_size=8).digest(), "big") for g in grams
    )
