"""StepFormat: text <-> steps <-> token ids. One object for generation, training and scoring.

Steps are cut by characters, then mapped to token spans: a piece owns every token that begins inside it. A
boundary that falls inside a token leaves the token whole in the earlier step and is reported. Pieces rejoin to
the exact text; blank pieces are no steps but part of the piece before them. No text is lost.
"""

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from stepward.prm.errors import FormatError
from stepward.prm.policy import Tokenizer
from stepward.prm.types import Phase, Step, TokenIds

THINK_END = "</think>"
_CUES = re.compile(r"\n+(?=(?:Wait|Hmm|But|So|Now|Next|Alternatively|Let me|Okay|First|Then|Therefore)\b)")
_NEWLINE = re.compile(r"\n+")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")
_STEP_K = re.compile(r"(?m)^[#*> \t]*Step[ \t]*\d+[ \t]*[:.)*]")
# A sentence ends in . ! or ? before white space and a new sentence; "3. 5", "e.g. x" and "No. 4" do not end one.
_SENTENCE = re.compile(
    r"(?<![\d\s]\.)(?<!e\.g\.)(?<!i\.e\.)(?<!No\.)(?<!vs\.)(?<=[.!?])\s+(?=[\"'“(\[$\\]*[A-Z0-9])"
)
_CODE_CELL = re.compile(r"(?m)^```.*$")
_TOOL_CALL = re.compile(r"</tool_call>\s*|</tool_response>\s*")


def _after(pattern: re.Pattern[str]) -> Callable[[str], list[int]]:
    return lambda text: [m.end() for m in pattern.finditer(text)]


def _before(pattern: re.Pattern[str]) -> Callable[[str], list[int]]:
    return lambda text: [m.start() for m in pattern.finditer(text)]


def _cut_code_cells(text: str) -> list[int]:
    """A fenced cell is one step: cuts before its opening fence and after its closing one; prose by blank lines."""
    fences = [(m.start(), m.end()) for m in _CODE_CELL.finditer(text)]
    cells = list(zip(fences[::2], fences[1::2], strict=False))
    inside = [(opening[0], closing[1]) for opening, closing in cells]
    cuts = [p for p in _after(_BLANK_LINE)(text) if not any(a < p < b for a, b in inside)]
    for start, end in inside:
        cuts += [start, end + (text[end : end + 1] == "\n")]
    return cuts


def _cut_thinking(text: str) -> list[int]:
    """Paragraphs and cue words inside a thinking trace, blank lines in the answer after it."""
    end = text.find(THINK_END)
    boundary = end + len(THINK_END) if end >= 0 else (len(text) if "<think>" in text else 0)
    cuts = set(_after(_BLANK_LINE)(text)) | {p for p in _after(_CUES)(text) if p < boundary}
    return [*cuts, boundary] if end >= 0 else list(cuts)


# name -> (where a new piece may begin in a text, separator used when steps are rendered)
_DELIMITERS: dict[str, tuple[Callable[[str], list[int]], str]] = {
    "newline": (_after(_NEWLINE), "\n"),
    "blank_line": (_after(_BLANK_LINE), "\n\n"),
    "step_k": (_before(_STEP_K), "\n"),
    "sentence": (_after(_SENTENCE), " "),
    "code_cell": (_cut_code_cells, "\n\n"),
    "tool_call": (_after(_TOOL_CALL), "\n"),
    "think": (_cut_thinking, "\n\n"),
    "token_block": (lambda text: [], ""),
    "low_confidence": (lambda text: [], ""),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A step's place in a text: ``text[start:end]`` is the step and its separator, ``text`` the step alone."""

    text: str
    start: int
    end: int
    phase: Phase = Phase.ANSWER


@dataclass(frozen=True, slots=True)
class StepFormat:
    """How a solution is cut into steps and how steps are rendered.

    Attributes:
        delimiter: newline, blank_line, step_k, sentence, code_cell, tool_call, think, token_block (VGS: fixed
            blocks of ``max_step_tokens``) or low_confidence (ASPRM: a new step begins at a token whose
            probability under its sampler is below ``confidence``).
        min_step_tokens: A step shorter than this is joined with the next one (0 = never).
        max_step_tokens: A step longer than this is cut at the last inner blank or newline before the limit,
            else at the limit (0 = never; the block size of token_block).
        confidence: Threshold of low_confidence.
    """

    delimiter: str = "newline"
    min_step_tokens: int = 0
    max_step_tokens: int = 0
    confidence: float = 0.8

    def __post_init__(self) -> None:
        if self.delimiter not in _DELIMITERS:
            raise FormatError(
                f"unknown step delimiter {self.delimiter!r}; known: {', '.join(sorted(_DELIMITERS))}"
            )
        if self.delimiter == "token_block" and self.max_step_tokens < 1:
            raise FormatError("step delimiter 'token_block' needs max_step_tokens >= 1, the size of a block")
        if 0 < self.max_step_tokens < self.min_step_tokens:
            raise FormatError(
                f"max_step_tokens {self.max_step_tokens} is below min_step_tokens {self.min_step_tokens}"
            )

    @property
    def separator(self) -> str:
        """What joins steps when they are rendered as text."""
        return _DELIMITERS[self.delimiter][1]

    @property
    def hash(self) -> str:
        """Identity of the format, stored in datasets and checkpoints."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "StepFormat":
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))

    def split(self, text: str) -> list[Piece]:
        """Cut a text into pieces; ``"".join(text[p.start:p.end] for p in pieces) == text``.

        A text of white space alone has no steps. Token limits do not apply: they need ids (``split_ids``).
        """
        return self._pieces(text, _DELIMITERS[self.delimiter][0](text))

    def split_ids(
        self, ids: Sequence[int], tokenizer: Tokenizer, logprobs: Sequence[float] | None = None
    ) -> tuple[Step, ...]:
        """Cut sampled ids into steps whose ids, joined, are ``ids``.

        Args:
            ids: A solution as sampled, end token included where there was one.
            tokenizer: The sampling policy's.
            logprobs: One a token, or None; needed by ``low_confidence``.

        Returns:
            The steps; empty where the text is blank. A step's ids end with its separator's (the last step's
            with the end token, where there was one).

        Raises:
            FormatError: ``logprobs`` and ``ids`` differ in length, or are missing where needed.
        """
        ids = tuple(ids)
        if logprobs is not None and len(logprobs) != len(ids):
            raise FormatError(
                f"{len(ids)} token ids came with {len(logprobs)} log-probabilities; one each is needed"
            )
        text = tokenizer.decode(ids)
        offsets = tokenizer.offsets(ids)
        pieces = self._pieces(text, self._cuts(text, ids, offsets, logprobs))
        spans = self._token_spans(pieces, offsets)
        steps: list[Step] = []
        for first, last, a, b in spans:
            whole = text[pieces[first].start : pieces[last].end]
            steps.append(
                Step(
                    text=_strip(whole),
                    token_ids=ids[a:b],
                    phase=pieces[first].phase,
                    token_logprobs=tuple(logprobs[a:b]) if logprobs is not None else (),
                )
            )
        return tuple(steps)

    def straddling_tokens(self, ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
        """Positions of tokens that hold a step boundary in their middle (kept whole in the earlier step)."""
        ids = tuple(ids)
        text, offsets = tokenizer.decode(ids), tokenizer.offsets(ids)
        starts = {p.start for p in self.split(text)[1:]}
        ends = [*offsets[1:], len(text)]
        return tuple(
            i for i, (a, b) in enumerate(zip(offsets, ends, strict=True)) if any(a < s < b for s in starts)
        )

    def encode_steps(self, steps: Sequence[str], tokenizer: Tokenizer) -> list[TokenIds]:
        """Ids of each step with its separator, encoded piece by piece so that no merge crosses a boundary.

        The last step has its separator too: a step's score is read at its last id, the same for every step.

        Raises:
            FormatError: A step is blank, or gives no ids.
        """
        encoded: list[TokenIds] = []
        for i, text in enumerate(steps):
            ids = tokenizer.encode(text + self.separator) if text.strip() else ()
            if not ids:
                raise FormatError(
                    f"step {i} of {len(steps)} is blank ({text!r}); blank pieces are no steps: drop it"
                )
            encoded.append(ids)
        return encoded

    def scored_ids(self, steps: Sequence[Step], tokenizer: Tokenizer) -> list[TokenIds]:
        """Ids of each step as a reward model reads them, from the ids that a policy sampled.

        The same as ``encode_steps`` on the texts wherever the sampled ids are the tokenizer's own choice: end
        tokens are dropped and a step without separator (the last) gets one.
        """
        result: list[TokenIds] = []
        for i, step in enumerate(steps):
            ids = step.token_ids
            while ids and ids[-1] in tokenizer.eos_ids:
                ids = ids[:-1]
            if not ids:
                raise FormatError(
                    f"step {i} of {len(steps)} ({step.text[:40]!r}) has no token ids to be scored at"
                )
            if self.separator and not tokenizer.decode(ids).endswith(self.separator):
                canonical = ids == tokenizer.encode(step.text)
                ids = (
                    tokenizer.encode(step.text + self.separator)
                    if canonical
                    else ids + tokenizer.encode(self.separator)
                )
            result.append(ids)
        return result

    def _cuts(
        self, text: str, ids: TokenIds, offsets: Sequence[int], logprobs: Sequence[float] | None
    ) -> list[int]:
        """Character positions where a new step begins, token limits applied."""
        if self.delimiter == "token_block":
            return [offsets[i] for i in range(self.max_step_tokens, len(ids), self.max_step_tokens)]
        if self.delimiter == "low_confidence":
            if logprobs is None:
                raise FormatError(
                    "step delimiter 'low_confidence' needs the token log-probabilities; sample with them"
                )
            floor = math.log(self.confidence)
            cuts = [offsets[i] for i, lp in enumerate(logprobs) if i and lp < floor]
        else:
            cuts = [p.start for p in self.split(text)[1:]]
        return self._limit(text, offsets, sorted(set(cuts)))

    def _limit(self, text: str, offsets: Sequence[int], cuts: list[int]) -> list[int]:
        """Join steps below the minimum with the next one, cut steps above the maximum."""

        def token_at(position: int) -> int:
            """Index of the first token that begins at or after a character position."""
            return bisect_right(offsets, position - 1)

        kept: list[int] = []
        start = 0
        for cut in [*cuts, len(text)]:
            if token_at(cut) - token_at(start) < self.min_step_tokens and cut != len(text):
                continue
            while self.max_step_tokens and token_at(cut) - token_at(start) > self.max_step_tokens:
                limit = offsets[token_at(start) + self.max_step_tokens]
                soft = max(text.rfind("\n", start, limit), text.rfind(" ", start, limit)) + 1
                # A soft cut must leave something behind it, or the loop would stand still.
                start = soft if token_at(soft) > token_at(start) and text[start:soft].strip() else limit
                kept.append(start)
            if cut != len(text):
                kept.append(cut)
                start = cut
        return kept

    def _pieces(self, text: str, cuts: Sequence[int]) -> list[Piece]:
        """Pieces between cuts; a blank one joins the piece before it (the first joins the one after)."""
        bounds = sorted({0, len(text), *(c for c in cuts if 0 < c < len(text))})
        spans: list[tuple[int, int]] = []
        start = 0
        for a, b in pairwise(bounds):
            if text[a:b].strip():
                spans.append((start, b))
            elif spans:
                spans[-1] = (spans[-1][0], b)
            else:
                continue
            start = b
        end = text.find(THINK_END)
        thinking_until = end + len(THINK_END) if end >= 0 else (len(text) if "<think>" in text else 0)
        return [
            Piece(_strip(text[a:b]), a, b, Phase.THINK if a < thinking_until else Phase.ANSWER)
            for a, b in spans
        ]

    @staticmethod
    def _token_spans(pieces: Sequence[Piece], offsets: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """(first piece, last piece, token start, token end) of each step; pieces without a token are joined."""
        spans: list[tuple[int, int, int, int]] = []
        position = 0
        for k, piece in enumerate(pieces):
            last = k == len(pieces) - 1
            # Tokens of zero width (end token) at a boundary belong to the later piece, at the end to the last.
            end = len(offsets) if last else bisect_right(offsets, piece.end - 1)
            end = max(end, position)
            if end == position and spans:
                first, _, a, b = spans[-1]
                spans[-1] = (first, k, a, b)
                continue
            spans.append((k, k, position, end))
            position = end
        return spans


def _strip(text: str) -> str:
    """A step's text without separators: no line breaks before it, no white space after it."""
    return text.rstrip().lstrip("\r\n")
