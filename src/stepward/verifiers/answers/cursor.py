"""A place in a list of tokens, and the bounds of a parse."""

from collections.abc import Sequence

from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.answers.tokens import Kind, Token

MAX_DEPTH = 48
MAX_POSTFIXES = 6
MAX_LETTERS = 4

END = Token(Kind.MARK, "")


class Cursor:
    """Reads tokens from left to right.

    Args:
        tokens: What to read.
        read_units: Whether words behind a value are its unit; else letters are variables.

    Attributes:
        depth: How deep the parse is nested.
        bars: How many ``|`` stand open at this level.
        money: The currency that was read in front of a number, or empty.
    """

    def __init__(self, tokens: Sequence[Token], *, read_units: bool) -> None:
        self.tokens = list(tokens)
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.read_units = read_units
        self.money = ""

    def peek(self, ahead: int = 0) -> Token:
        """The token to come, or an empty mark behind the end."""
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else END

    def take(self) -> Token:
        """The next token."""
        token = self.peek()
        self.position += 1
        return token

    def at(self, *marks: str) -> bool:
        """Whether the next token is one of these marks."""
        token = self.peek()
        return token.kind is Kind.MARK and token.text in marks

    def at_command(self, *names: str) -> bool:
        """Whether the next token is one of these commands."""
        token = self.peek()
        return token.kind is Kind.COMMAND and token.text in names

    def skip(self, mark: str) -> None:
        """Take a mark that must come next."""
        if not self.at(mark):
            raise Unreadable(f"{mark!r} is missing before {self.peek().text[:20]!r}")
        self.position += 1

    def at_end(self) -> bool:
        """Whether all tokens are read."""
        return self.position >= len(self.tokens)

    def enter(self) -> int:
        """Go one level deeper; returns what ``leave`` needs."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}", over_limit=True)
        bars, self.bars = self.bars, 0
        return bars

    def leave(self, bars: int) -> None:
        """Come back from one level deeper."""
        self.depth -= 1
        self.bars = bars

    def split_word(self) -> None:
        """Turn the next word into its letters."""
        token = self.peek()
        if len(token.text) > MAX_LETTERS:
            raise Unreadable(f"the word {token.text[:20]!r} in a formula")
        letters = [Token(Kind.WORD, c, token.spaced and i == 0) for i, c in enumerate(token.text)]
        self.tokens[self.position : self.position + 1] = letters

    def split_number(self) -> None:
        r"""Cut the first digit off the next number, as ``\frac12`` means."""
        token = self.peek()
        if token.text[:1].isdigit() and len(token.text) > 1:
            self.tokens[self.position : self.position + 1] = [
                Token(Kind.NUMBER, token.text[0]),
                Token(Kind.NUMBER, token.text[1:]),
            ]
