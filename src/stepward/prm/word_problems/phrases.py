"""What the generated word problems can say: themes, and the phrases of each.

A phrase is a sentence with slots and the ``Reading`` that says what it does to the running amount. Some phrases
are easily misread: they name the reading a careless reader takes instead, and the share of the embedded
policy's training texts in which it is taken. Those shares make the policy err mostly in logic and with
confidence, on purpose: an error in arithmetic shows in the policy's own log-probability, an error of logic does
not, and only finding the second kind proves a reward model. ``docs/embedded-policy.md`` says so to the reader.

Slots: ``{N}`` name, ``{P}`` ``{p}`` ``{o}`` its pronouns, ``{M}`` another name, ``{i}`` the things counted,
``{a}`` the opening amount, ``{b}`` and ``{c}`` numbers.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reading(StrEnum):
    """What a phrase does to the running amount x, given its numbers b (and c)."""

    GAIN = "gain"  # x + b
    LOSS = "loss"  # x - b
    TIMES = "times"  # x * b
    PART = "part"  # x / b
    SHARE = "share"  # x / (b + 1): split with b others
    PART_OUT = "part_out"  # x - x / b
    PACKS_IN = "packs_in"  # x + b * c
    PACKS_OUT = "packs_out"  # x - b * c
    DOZENS_IN = "dozens_in"  # x + 12 b
    WEEKS_IN = "weeks_in"  # x + 7 b * c
    NOTHING = "nothing"  # x, whatever the number
    # How a problem ends.
    NOW = "now"  # x
    MISSING = "missing"  # b - x
    BOTH_MORE = "both_more"  # x + (x + b): the other has b more
    BOTH_FEWER = "both_fewer"  # x + (x - b): the other has b fewer
    # Only as misreadings: a step is dropped.
    ONE_PACK_IN = "one_pack_in"  # x + c
    ONE_PACK_OUT = "one_pack_out"  # x - c
    OTHER_MORE = "other_more"  # x + b, and x forgotten
    OTHER_FEWER = "other_fewer"  # x - b, and x forgotten


@dataclass(frozen=True, slots=True)
class Phrase:
    """A sentence form.

    Attributes:
        text: The sentence with its slots.
        reading: What it means.
        misreading: What a careless reader takes it for, or None.
        misread_rate: Share of the embedded policy's training texts in which it is misread.
    """

    text: str
    reading: Reading
    misreading: Reading | None = None
    misread_rate: float = 0.0

    @property
    def is_trap(self) -> bool:
        """True where the policy is brought up to misread it often."""
        return self.misread_rate >= 0.1


@dataclass(frozen=True, slots=True)
class Theme:
    """One kind of story.

    Attributes:
        name: For reports.
        things: What may be counted.
        opening: The first sentence.
        events: Phrases for the middle, distractors among them.
        endings: Phrases that ask.
    """

    name: str
    things: tuple[str, ...]
    opening: str
    events: tuple[Phrase, ...]
    endings: tuple[Phrase, ...]


SHE_NAMES = ("Mia", "Ana", "Lena", "Zoe", "Eva", "Ruth")
HE_NAMES = ("Tom", "Ben", "Omar", "Leo", "Sam", "Ivan")

R = Reading
_PLAIN = 0.01

_PEOPLE_ENDINGS = (
    Phrase("How many {i} does {N} have now?", R.NOW),
    Phrase("How many {i} does {p} have in the end?", R.NOW),
    Phrase("{N} would like to have {b} {i}. How many more does {p} need?", R.MISSING, R.NOW, _PLAIN),
    Phrase(
        "{M} has {b} {i} more than {N} has now. How many do they have together?",
        R.BOTH_MORE,
        R.OTHER_MORE,
        0.04,
    ),
    Phrase(
        "{N} now has {b} {i} more than {M}. How many do they have together?", R.BOTH_FEWER, R.BOTH_MORE, 0.55
    ),
    Phrase(
        "{N} now has {b} {i} fewer than {M}. How many do they have together?", R.BOTH_MORE, R.BOTH_FEWER, 0.4
    ),
)

THEMES = (
    Theme(
        "collection",
        ("marbles", "stickers", "stamps", "shells", "beads", "coins"),
        "{N} has {a} {i}.",
        (
            Phrase("{P} buys {b} more.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("{P} finds {b} more.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("{P} loses {b} of them.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("{P} gives {b} to {o} brother.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("{P} wins until {p} has {b} times as many.", R.TIMES, R.GAIN, 0.02),
            Phrase("{P} buys {b} packs of {c}.", R.PACKS_IN, R.ONE_PACK_IN, 0.03),
            Phrase("{P} buys {b} dozen more.", R.DOZENS_IN, R.GAIN, 0.04),
            Phrase("{P} finds {c} more every day for {b} weeks.", R.WEEKS_IN, R.PACKS_IN, 0.05),
            Phrase("{P} gets back {b} that were lent.", R.GAIN, R.LOSS, 0.48),
            Phrase("{P} returns {b} that were borrowed.", R.LOSS, R.GAIN, 0.45),
            Phrase("{P} keeps one of {b} equal parts.", R.PART, R.PART_OUT, 0.52),
            Phrase("{P} gives away one of {b} equal parts.", R.PART_OUT, R.PART, 0.45),
            Phrase("{P} shares them equally with {b} friends.", R.SHARE, R.PART, 0.5),
            Phrase("{P} is {b} years old.", R.NOTHING, R.GAIN, _PLAIN),
            Phrase("{M} gives away {b} too.", R.NOTHING, R.LOSS, 0.45),
        ),
        _PEOPLE_ENDINGS,
    ),
    Theme(
        "money",
        ("dollars", "euros"),
        "{N} has {a} {i}.",
        (
            Phrase("{P} earns {b} {i}.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("{P} spends {b} {i} on lunch.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("{P} buys {b} pens at {c} {i} each.", R.PACKS_OUT, R.ONE_PACK_OUT, 0.03),
            Phrase("{P} works {b} hours for {c} {i} an hour.", R.PACKS_IN, R.ONE_PACK_IN, 0.03),
            Phrase("{P} saves {c} {i} a day for {b} weeks.", R.WEEKS_IN, R.PACKS_IN, 0.05),
            Phrase("{P} is paid back {b} {i} that were lent.", R.GAIN, R.LOSS, 0.48),
            Phrase("{P} pays back {b} {i} that were borrowed.", R.LOSS, R.GAIN, 0.45),
            Phrase("{P} keeps one of {b} equal shares.", R.PART, R.PART_OUT, 0.52),
            Phrase("{P} spends one of {b} equal shares.", R.PART_OUT, R.PART, 0.45),
            Phrase("{P} splits the money evenly with {b} sisters.", R.SHARE, R.PART, 0.5),
            Phrase("A bike costs {b} {i}.", R.NOTHING, R.LOSS, _PLAIN),
            Phrase("{M} earns {b} {i} too.", R.NOTHING, R.GAIN, 0.45),
        ),
        _PEOPLE_ENDINGS,
    ),
    Theme(
        "tank",
        ("litres", "gallons"),
        "A tank holds {a} {i} of water.",
        (
            Phrase("{b} {i} are poured in.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("{b} {i} leak out.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("A tap fills it for {b} minutes at {c} {i} a minute.", R.PACKS_IN, R.ONE_PACK_IN, 0.03),
            Phrase(
                "A pump drains it for {b} minutes at {c} {i} a minute.", R.PACKS_OUT, R.ONE_PACK_OUT, 0.03
            ),
            Phrase("{b} {i} that were drained before are put back.", R.GAIN, R.LOSS, 0.48),
            Phrase("{b} {i} that were added by mistake are removed.", R.LOSS, R.GAIN, 0.4),
            Phrase("One of {b} equal parts is kept.", R.PART, R.PART_OUT, 0.52),
            Phrase("One of {b} equal parts is used up.", R.PART_OUT, R.PART, 0.45),
            Phrase("The water is divided evenly between it and {b} other tanks.", R.SHARE, R.PART, 0.5),
            Phrase("The tank is {b} years old.", R.NOTHING, R.GAIN, _PLAIN),
            Phrase("Another tank loses {b} {i}.", R.NOTHING, R.LOSS, 0.4),
        ),
        (
            Phrase("How many {i} are in the tank now?", R.NOW),
            Phrase("A full tank holds {b} {i}. How many are missing?", R.MISSING, R.NOW, _PLAIN),
            Phrase(
                "It now holds {b} {i} more than a second tank. How many do both hold?",
                R.BOTH_FEWER,
                R.BOTH_MORE,
                0.55,
            ),
            Phrase(
                "A second tank holds {b} {i} more. How many do both hold?", R.BOTH_MORE, R.OTHER_MORE, 0.04
            ),
        ),
    ),
    Theme(
        "bakery",
        ("rolls", "loaves", "muffins", "pies"),
        "A baker has {a} {i}.",
        (
            Phrase("The baker makes {b} more.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("The baker sells {b} of them.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("{b} trays of {c} come out of the oven.", R.PACKS_IN, R.ONE_PACK_IN, 0.03),
            Phrase("{b} customers take {c} each.", R.PACKS_OUT, R.ONE_PACK_OUT, 0.03),
            Phrase("{b} dozen more are baked.", R.DOZENS_IN, R.GAIN, 0.04),
            Phrase("{b} that were sold are brought back.", R.GAIN, R.LOSS, 0.48),
            Phrase("{b} that were delivered by mistake go back.", R.LOSS, R.GAIN, 0.4),
            Phrase("One of {b} equal batches is kept.", R.PART, R.PART_OUT, 0.52),
            Phrase("One of {b} equal batches burns.", R.PART_OUT, R.PART, 0.45),
            Phrase("The oven is {b} years old.", R.NOTHING, R.GAIN, _PLAIN),
            Phrase("The shop next door sells {b} too.", R.NOTHING, R.LOSS, 0.4),
        ),
        (
            Phrase("How many {i} are left?", R.NOW),
            Phrase("The baker needs {b} {i}. How many more must be made?", R.MISSING, R.NOW, _PLAIN),
            Phrase(
                "That is {b} {i} more than another shop has. How many do both have?",
                R.BOTH_FEWER,
                R.BOTH_MORE,
                0.55,
            ),
        ),
    ),
    Theme(
        "rope",
        ("rope", "ribbon", "wire"),
        "A {i} is {a} cm long.",
        (
            Phrase("{b} cm are cut off.", R.LOSS, R.GAIN, _PLAIN),
            Phrase("{b} cm are tied on.", R.GAIN, R.LOSS, _PLAIN),
            Phrase("{b} pieces of {c} cm are cut off.", R.PACKS_OUT, R.ONE_PACK_OUT, 0.03),
            Phrase("{b} pieces of {c} cm are tied on.", R.PACKS_IN, R.ONE_PACK_IN, 0.03),
            Phrase("It is stretched to {b} times its length.", R.TIMES, R.GAIN, 0.02),
            Phrase("It is cut into {b} equal pieces and one is kept.", R.PART, R.PART_OUT, 0.5),
            Phrase("It is cut into {b} equal pieces and one is thrown away.", R.PART_OUT, R.PART, 0.5),
            Phrase("It is {b} cm too short, so it is made longer.", R.GAIN, R.LOSS, 0.48),
            Phrase("It is {b} cm too long, so it is made shorter.", R.LOSS, R.GAIN, 0.45),
            Phrase("It costs {b} dollars.", R.NOTHING, R.LOSS, _PLAIN),
            Phrase("Another {i} is cut by {b} cm.", R.NOTHING, R.LOSS, 0.4),
        ),
        (
            Phrase("How many cm long is the {i} now?", R.NOW),
            Phrase("It should be {b} cm long. How many cm are missing?", R.MISSING, R.NOW, _PLAIN),
            Phrase(
                "It is now {b} cm longer than a second {i}. How many cm are both together?",
                R.BOTH_FEWER,
                R.BOTH_MORE,
                0.55,
            ),
        ),
    ),
)
