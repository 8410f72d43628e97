"""What a prefix cache could have saved, counted by hand, and as a watched policy reports it."""

import asyncio
from dataclasses import dataclass, field

from stepward.labeling.policies import prefix_ceiling
from stepward.labeling.policies.http_pool import Usage
from stepward.labeling.policies.metered import Meter, MeteredPolicy
from stepward.labeling.policies.prefix_ceiling import CacheCeiling
from stepward.prm.policy import SampleRequest
from stepward.prm.types import FinishReason, Prefix, Rollout, Sampler


def test_a_question_finds_the_whole_blocks_of_earlier_questions_and_finished_answers() -> None:
    prompt = tuple(range(10))
    ceiling = CacheCeiling(4)
    # The first question finds nothing; its own blocks 0-3 and 4-7 are then known.
    ceiling.ask(prompt)
    assert ceiling.possible_tokens == 0
    # The same question again: 2 blocks.
    ceiling.ask(prompt)
    assert ceiling.possible_tokens == 8
    # An answer of 14 ids: its last id is never computed, so blocks 0-3, 4-7, 8-11 are.
    answer = (*prompt, 90, 91, 92, 93)
    ceiling.answer(answer)
    assert ceiling.possible_tokens == 8
    # A question from 13 ids of it: 3 blocks; from 12 ids: 2, for the last id is always computed.
    ceiling.ask(answer[:13])
    assert ceiling.possible_tokens == 8 + 12
    ceiling.ask(answer[:12])
    assert ceiling.possible_tokens == 8 + 12 + 8
    # Another beginning shares nothing, whatever follows.
    ceiling.ask((99, *answer[1:]))
    assert ceiling.possible_tokens == 8 + 12 + 8


def test_blocks_not_asked_for_lately_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(prefix_ceiling, "MOST_BLOCKS", 2)
    ceiling = CacheCeiling(2)
    ceiling.ask((1, 2, 3))
    ceiling.ask((4, 5, 6))
    ceiling.ask((7, 8, 9))  # the block (1, 2) goes
    ceiling.ask((1, 2, 3))
    assert ceiling.possible_tokens == 0
    ceiling.ask((7, 8, 9))
    assert ceiling.possible_tokens == 2


@dataclass
class _Engine:
    """An engine of blocks of 4 that had half of what it could have had."""

    block_size: int = 4
    usage: Usage = field(default_factory=Usage)

    async def sample(self, request: SampleRequest) -> Rollout:
        self.usage.prompt_tokens += len(request.prefix.token_ids)
        self.usage.cached_tokens += 4
        return Rollout(request.prefix.problem_id, 0, 0, 1, (7,), "x", FinishReason.STOP)


def test_a_watched_engine_reports_its_hits_over_what_was_possible() -> None:
    policy = MeteredPolicy.watching(_Engine(), Meter())  # type: ignore[arg-type]
    assert policy.hits_of_possible() is None
    request = SampleRequest(Prefix("p", tuple(range(13))), Sampler(max_tokens=1), 1)

    async def twice() -> None:
        await policy.sample(request)
        await policy.sample(request)

    asyncio.run(twice())
    # 3 blocks of the second question were there: 12 tokens; the engine had 4 each time: 8 of 12.
    assert policy.hits_of_possible() == 8 / 12


def test_an_engine_that_tells_no_block_size_reports_none() -> None:
    engine = _Engine()
    engine.block_size = None  # type: ignore[assignment]
    assert MeteredPolicy.watching(engine, Meter()).hits_of_possible() is None  # type: ignore[arg-type]
