"""Which states are equal although their tokens differ, so that their evidence pools (RTMC, GiGPO).

A signature is a text; states with the same one are the same state of ``Tree``. Equal ids always are.
"""

import re
import unicodedata

from stepward.labeling.tree import Signature
from stepward.prm.policy import Tokenizer
from stepward.prm.types import TokenIds

_EXPRESSION = re.compile(r"[-+(]*\d[\d.,()+\-*/^=%×÷· ]*")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", ",": None, " ": None})


def normalised_text(tokenizer: Tokenizer) -> Signature:
    """States are equal whose texts differ in case, white space, compatibility forms and closing punctuation only."""

    def signature(ids: TokenIds) -> str:
        text = unicodedata.normalize("NFKC", tokenizer.decode(ids)).casefold()
        lines = (" ".join(line.split()).rstrip(".;,:! ") for line in text.splitlines())
        return "text:" + "\n".join(line for line in lines if line)

    return signature


def expressions(tokenizer: Tokenizer) -> Signature:
    """States are equal that hold the same arithmetic expressions, in whatever words and order.

    A state without any has nothing to be known by and keeps its normalised text.
    """
    by_text = normalised_text(tokenizer)

    def signature(ids: TokenIds) -> str:
        found = {
            kept
            for match in _EXPRESSION.finditer(tokenizer.decode(ids))
            if any(sign in (kept := match[0].translate(_SIGNS).rstrip(".+-*/^=(")) for sign in "+-*/^=")
        }
        return "expressions:" + ";".join(sorted(found)) if found else by_text(ids)

    return signature
