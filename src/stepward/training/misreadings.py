"""Solutions of word problems as a careless reader writes them: what the embedded policy learns from.

A phrase that is easily misread is misread at its rate (``stepward.prm.word_problems.phrases``) and the solution goes on
from the wrong amount as if nothing had happened. Wording that means nothing is strewn in at random, so that a
step's likelihood says little about whether it is right.
"""

import random

from stepward.prm.word_problems.problems import Story, act
from stepward.prm.word_problems.solutions import answer_line

LEADS = ("So ", "Then ", "Now ", "Next ", "We get ", "That is ", "First ", "Thus ", "Here ", "Well, ")
TAILS = (
    " in all",
    " so far",
    " now",
    " by then",
    " for sure",
    " then",
    " as said",
    " it is",
    " at last",
    " I think",
)
WORDING_SHARE = 0.25
COMMUTED_SHARE = 0.2


def write_solution(story: Story, rng: random.Random, *, rate_scale: float = 1.0) -> list[str]:
    """Steps and answer line of one solution, misread at random.

    Args:
        story: The problem.
        rng: Where the draws come from.
        rate_scale: Factor on every misreading rate; 0 writes right solutions.
    """
    amount, steps = story.start, list[str]()
    for event in story.events:
        phrase = event.phrase
        slips = phrase.misreading is not None and rng.random() < rate_scale * phrase.misread_rate
        reading = phrase.misreading if slips and phrase.misreading is not None else phrase.reading
        for left, operator, right, result in act(reading, amount, event.numbers):
            steps.append(write_step(left, operator, right, result, rng))
            amount = result
    steps.append(answer_line(amount))
    return steps


def write_step(left: int, operator: str, right: int, result: int, rng: random.Random) -> str:
    """One equation, its operands swapped and words put around it at random."""
    if operator in "+*" and rng.random() < COMMUTED_SHARE:
        left, right = right, left
    lead = LEADS[rng.randrange(len(LEADS))] if rng.random() < WORDING_SHARE else ""
    tail = TAILS[rng.randrange(len(TAILS))] if rng.random() < WORDING_SHARE else ""
    return f"{lead}{left} {operator} {right} = {result}{tail}"
