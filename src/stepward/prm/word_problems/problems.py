"""Seeded word problems of several arithmetic steps, and the way back from their text to what they mean.

A problem is a ``Story``: a theme, an opening amount, events that act on it and an ending that asks. ``parse``
recovers the story from the statement alone, so that a problem that went through a file is as checkable as a
fresh one (``stepward.prm.word_problems.solutions`` decides solutions). Splits are disjoint by construction: a story
belongs to the split that the hash of its arithmetic says, and every split draws only its own.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

from stepward.prm.errors import FormatError
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Problem, problem_id
from stepward.prm.word_problems.phrases import HE_NAMES, SHE_NAMES, THEMES, Phrase, Reading, Theme

SOURCE = "generator"
LICENCE = "Apache-2.0"
MAX_AMOUNT = 60
MAX_TOTAL = 99
_CONNECTORS = ("Then", "Later")

Equation = tuple[int, str, int, int]
"""left, operator (one of ``+ - * /``), right, result."""


class Split(StrEnum):
    """What a problem may be used for."""

    TRAIN = "train"
    LABEL = "label"
    HELD_OUT = "held_out"


_SPLIT_OF_BUCKET = (Split.TRAIN,) * 8 + (Split.LABEL,) * 4 + (Split.HELD_OUT,) * 4


@dataclass(frozen=True, slots=True)
class Level:
    """How hard problems are.

    Attributes:
        step_weights: Relative frequency of problems by number of steps (answer line not counted).
        trap_share: Probability that an event is worded so that it is easily misread.
        trap_ending_share: The same for the ending.
        distractor_share: Probability of an easily misread sentence that has nothing to do with the question.
        plain_distractor_share: Probability of one that is hardly ever misread.
        traps: What the phrases mean that may be worded so; empty for any.
    """

    step_weights: Mapping[int, float]
    trap_share: float = 0.4
    trap_ending_share: float = 0.2
    distractor_share: float = 0.15
    plain_distractor_share: float = 0.1
    traps: frozenset[Reading] = frozenset()

    def allows(self, phrase: Phrase) -> bool:
        """Whether a phrase occurs at this level."""
        return not phrase.is_trap or not self.traps or phrase.reading in self.traps


LEVELS: Mapping[str, Level] = {
    "default": Level({2: 0.4, 3: 0.37, 4: 0.2, 5: 0.01, 6: 0.01, 7: 0.005, 8: 0.005}),
    # Each kind of trap is always misread the same way ("lent" is a gain, "keeps one of" is the part), and no phrase
    # means the opposite: a small reward model can learn that from a thousand problems.
    "demo": Level(
        {2: 0.4, 3: 0.37, 4: 0.2, 5: 0.01, 6: 0.01, 7: 0.005, 8: 0.005},
        trap_share=0.5,
        traps=frozenset({Reading.GAIN, Reading.PART, Reading.BOTH_FEWER}),
    ),
    "easy": Level({2: 0.6, 3: 0.4}, trap_share=0.1, trap_ending_share=0.0, distractor_share=0.0),
    "medium": Level({4: 0.5, 5: 0.5}),
    "hard": Level({6: 0.4, 7: 0.3, 8: 0.3}),
}


@dataclass(frozen=True, slots=True)
class Event:
    """A phrase with its numbers: b, or b and c; none for an ending that only asks."""

    phrase: Phrase
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """What a statement means.

    Attributes:
        theme: The kind of story.
        start: The opening amount.
        events: In the order of the text; the last is the ending.
    """

    theme: Theme
    start: int
    events: tuple[Event, ...]

    @property
    def equations(self) -> tuple[Equation, ...]:
        """The right steps in the order of the text."""
        amount, steps = self.start, list[Equation]()
        for event in self.events:
            new = act(event.phrase.reading, amount, event.numbers)
            steps += new
            amount = new[-1][3] if new else amount
        return tuple(steps)

    @property
    def answer(self) -> int:
        """The final answer."""
        equations = self.equations
        return equations[-1][3] if equations else self.start


def act(reading: Reading, amount: int, numbers: tuple[int, ...]) -> list[Equation]:
    """The equations by which a reading turns an amount into the next; empty where it leaves it as it is.

    Total on purpose, since a reader who has gone astray goes on: a difference is taken from the larger number
    and a division that does not come out is rounded down. For a right reading of a generated story neither
    happens.
    """
    r, x, b = Reading, amount, numbers[0] if numbers else 0
    c = numbers[1] if len(numbers) > 1 else 0
    match reading:
        case r.NOTHING | r.NOW:
            return []
        case r.GAIN | r.OTHER_MORE:
            return [(x, "+", b, x + b)]
        case r.LOSS | r.OTHER_FEWER:
            return [_minus(x, b)]
        case r.TIMES:
            return [(x, "*", b, x * b)]
        case r.PART:
            return [(x, "/", b, x // b)]
        case r.SHARE:
            return [(x, "/", b + 1, x // (b + 1))]
        case r.PART_OUT:
            return [(x, "/", b, x // b), (x, "-", x // b, x - x // b)]
        case r.PACKS_IN:
            return [(b, "*", c, b * c), (x, "+", b * c, x + b * c)]
        case r.PACKS_OUT:
            return [(b, "*", c, b * c), _minus(x, b * c)]
        case r.DOZENS_IN:
            return [(b, "*", 12, b * 12), (x, "+", b * 12, x + b * 12)]
        case r.WEEKS_IN:
            return [(b, "*", 7, b * 7), (b * 7, "*", c, b * 7 * c), (x, "+", b * 7 * c, x + b * 7 * c)]
        case r.MISSING:
            return [_minus(b, x)]
        case r.BOTH_MORE:
            return [(x, "+", b, x + b), (x, "+", x + b, 2 * x + b)]
        case r.BOTH_FEWER:
            first = _minus(x, b)
            return [first, (x, "+", first[3], x + first[3])]
        case r.ONE_PACK_IN:
            return [(x, "+", c, x + c)]
        case r.ONE_PACK_OUT:
            return [_minus(x, c)]


def _minus(left: int, right: int) -> Equation:
    high, low = max(left, right), min(left, right)
    return (high, "-", low, high - low)


# ---- Generator ---------------------------------------------------------------------------------------------


def generate(split: Split, seed: int = 0, *, level: str = "default") -> Iterator[Problem]:
    """An endless stream of distinct problems of one split; the same seed gives the same stream.

    Args:
        split: Problems of different splits never share their arithmetic, whatever the seeds and levels.
        seed: Of the stream.
        level: A name in ``LEVELS``.
    """
    if level not in LEVELS:
        raise ValueError(f"generating word problems: no level {level!r}; there are {', '.join(LEVELS)}")
    seen: set[str] = set()
    index = 0
    while True:
        rng = random.Random(derive_seed(seed, "word_problems", split, level, index))
        index += 1
        story = _draw_story(rng, LEVELS[level])
        if split_of(story) is not split:
            continue
        statement = _tell(story, rng)
        if statement in seen:
            continue
        seen.add(statement)
        yield Problem(
            id=problem_id(SOURCE, statement),
            statement=statement,
            answers=(str(story.answer),),
            source=SOURCE,
            licence=LICENCE,
        )


def split_of(story: Story) -> Split:
    """The split that a story belongs to: by the hash of its amounts and readings, distractors left out.

    Two stories that differ only in names, things, wording or distractors fall into the same split.
    """
    acts = [
        (e.phrase.reading.value, e.numbers) for e in story.events if e.phrase.reading is not Reading.NOTHING
    ]
    digest = hashlib.sha256(repr((story.start, acts)).encode()).digest()
    return _SPLIT_OF_BUCKET[digest[0] % len(_SPLIT_OF_BUCKET)]


_NUM_STEPS = {r: len(act(r, 12, (2, 3))) for r in Reading}


def _draw_story(rng: random.Random, level: Level) -> Story:
    counts = list(level.step_weights)
    num_steps = rng.choices(counts, weights=list(level.step_weights.values()))[0]
    while True:
        theme = THEMES[rng.randrange(len(THEMES))]
        phrases = _draw_phrases(rng, theme, num_steps, level)
        for _ in range(20 if phrases else 0):
            events = _draw_numbers(rng, phrases or [])
            if events is not None:
                return Story(theme, events[0], events[1])


def _draw_phrases(rng: random.Random, theme: Theme, num_steps: int, level: Level) -> list[Phrase] | None:
    def pick(among: list[Phrase], trap_share: float, room: int) -> Phrase | None:
        trap = rng.random() < trap_share
        fit = [p for p in among if _NUM_STEPS[p.reading] <= room]
        fit = [p for p in fit if p.is_trap == trap] or fit
        return fit[rng.randrange(len(fit))] if fit else None

    ending = None
    while ending is None:
        ending = pick([p for p in theme.endings if level.allows(p)], level.trap_ending_share, num_steps - 1)
    events = [p for p in theme.events if level.allows(p)]
    left = [p for p in events if p.reading is not Reading.NOTHING]
    room, chosen = num_steps - _NUM_STEPS[ending.reading], list[Phrase]()
    while room and (phrase := pick(left, level.trap_share, room)) is not None:
        chosen.append(phrase)
        left.remove(phrase)
        room -= _NUM_STEPS[phrase.reading]
    if room:  # the theme has too few phrases for so long a story
        return None
    idle = [p for p in events if p.reading is Reading.NOTHING]
    for share, trap in ((level.distractor_share, True), (level.plain_distractor_share, False)):
        if rng.random() < share and (fit := [p for p in idle if p.is_trap == trap]):
            chosen.insert(rng.randrange(len(chosen) + 1), fit[rng.randrange(len(fit))])
    return [*chosen, ending]


def _draw_numbers(rng: random.Random, phrases: list[Phrase]) -> tuple[int, tuple[Event, ...]] | None:
    start = amount = rng.randrange(4, MAX_AMOUNT + 1)
    events: list[Event] = []
    taken = {start}
    for phrase in phrases:
        most = MAX_TOTAL if phrase is phrases[-1] else MAX_AMOUNT
        for _ in range(8):
            numbers = _numbers_for(rng, phrase.reading, amount)
            # Two amounts with the same number could not be told apart in a solution.
            if numbers is None or not taken.isdisjoint(numbers) or len(set(numbers)) < len(numbers):
                continue
            after = _after(phrase.reading, amount, numbers)
            misread = phrase.misreading and _after(phrase.misreading, amount, numbers)
            # A misreading that gives the same number would be no error that anyone could see.
            if 2 <= after <= most and after != misread:
                break
        else:
            return None
        amount = after
        taken.update(numbers)
        events.append(Event(phrase, numbers))
    return start, tuple(events)


def _after(reading: Reading, amount: int, numbers: tuple[int, ...]) -> int:
    new = act(reading, amount, numbers)
    return new[-1][3] if new else amount


def _numbers_for(rng: random.Random, reading: Reading, x: int) -> tuple[int, ...] | None:
    r = Reading

    def between(low: int, high: int) -> tuple[int, ...] | None:
        return (rng.randrange(low, high + 1),) if high >= low else None

    match reading:
        case r.NOW:
            return ()
        case r.NOTHING:
            return between(2, min(30, x - 1))
        case r.GAIN:
            return between(2, min(MAX_AMOUNT - x, x - 1))
        case r.LOSS | r.BOTH_FEWER:
            return between(2, x - 2)
        case r.BOTH_MORE:
            return between(2, min(x - 2, MAX_TOTAL - 2 * x))
        case r.MISSING:
            return between(x + 2, MAX_AMOUNT + 20)
        case r.TIMES:
            return between(2, min(4, MAX_AMOUNT // x))
        case r.PART | r.PART_OUT:
            fit = [b for b in (2, 3, 4, 5, 6) if x % b == 0 and x // b >= 2 and (reading is r.PART or b > 2)]
            return (fit[rng.randrange(len(fit))],) if fit else None
        case r.SHARE:
            fit = [b for b in (2, 3, 4, 5) if x % (b * (b + 1)) == 0]
            return (fit[rng.randrange(len(fit))],) if fit else None
        case r.PACKS_IN | r.PACKS_OUT:
            packs, size = rng.randrange(2, 6), rng.randrange(2, 10)
            return (packs, size) if reading is r.PACKS_IN or packs * size <= x - 2 else None
        case r.DOZENS_IN:
            return between(2, 3)
        case r.WEEKS_IN:
            return 2, rng.randrange(2, 4)
        case _:
            raise AssertionError(f"{reading} is only a misreading; no phrase means it")


def _tell(story: Story, rng: random.Random) -> str:
    names = (SHE_NAMES, "She", "her") if rng.random() < 0.5 else (HE_NAMES, "He", "his")
    name = names[0][rng.randrange(len(names[0]))]
    others = [n for n in SHE_NAMES + HE_NAMES if n != name]
    slots = {
        "N": name,
        "P": names[1],
        "p": names[1].lower(),
        "o": names[2],
        "M": others[rng.randrange(len(others))],
        "i": story.theme.things[rng.randrange(len(story.theme.things))],
        "a": story.start,
    }
    sentences = [story.theme.opening.format(**slots)]
    for event in story.events:
        text = event.phrase.text.format(**slots, **dict(zip("bc", event.numbers, strict=False)))
        if len(sentences) > 1 and event is not story.events[-1] and rng.random() < 0.2:
            proper = event.phrase.text.startswith(("{N}", "{M}"))
            text = f"{_CONNECTORS[rng.randrange(2)]} {text if proper else text[0].lower() + text[1:]}"
        sentences.append(text)
    return " ".join(sentences)


# ---- Parser ------------------------------------------------------------------------------------------------

_NAME = "(?:" + "|".join(SHE_NAMES + HE_NAMES) + ")"
_SLOTS = {"N": _NAME, "M": _NAME, "P": "(?:She|He|she|he)", "p": "(?:she|he)", "o": "(?:her|his)"}


@cache
def _regex(text: str, things: tuple[str, ...]) -> re.Pattern[str]:
    pattern = ""
    for piece in re.split(r"(\{\w\})", text):
        slot = piece[1:-1] if piece.startswith("{") else ""
        if not slot:
            pattern += re.escape(piece)
        elif slot in "abc":
            pattern += rf"(?P<{slot}>\d+)"
        else:
            pattern += _SLOTS.get(slot, "(?:" + "|".join(things) + ")")
    if text[0] != "{":
        pattern = f"[{text[0]}{text[0].lower()}]{pattern[1:]}"
    connector = "(?:(?:" + "|".join(_CONNECTORS) + ") )?"
    return re.compile(rf"{connector}{pattern}(?: |$)")


@lru_cache(maxsize=4096)
def parse(statement: str) -> Story:
    """The story that a generated statement tells.

    Raises:
        FormatError: The statement is not one that ``generate`` can write.
    """
    statement = statement.strip()
    for theme in THEMES:
        opening = _regex(theme.opening, theme.things).match(statement)
        if opening is None:
            continue
        events, place = list[Event](), opening.end()
        while place < len(statement):
            found = _match_phrase(theme, statement, place)
            if found is None:
                break
            events.append(found[0])
            place = found[1]
        if place == len(statement) and events and events[-1].phrase in theme.endings:
            return Story(theme, int(opening["a"]), tuple(events))
    raise FormatError(
        f"reading a generated word problem: {statement[:200]!r} is none; the exact checker decides only problems "
        "that `stepward.prm.word_problems.problems.generate` wrote, unaltered"
    )


def _match_phrase(theme: Theme, statement: str, place: int) -> tuple[Event, int] | None:
    for phrase in theme.events + theme.endings:
        match = _regex(phrase.text, theme.things).match(statement, place)
        if match is not None:
            numbers = match.groupdict()
            return Event(phrase, tuple(int(numbers[k]) for k in "bc" if k in numbers)), match.end()
    return None
