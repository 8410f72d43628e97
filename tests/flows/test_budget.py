"""Problems are admitted as long as the budget surely holds them, and wait for those in flight near its end."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from stepward.flows.budget import Budget
from stepward.prm.errors import BudgetSpent


def spending(problems=0, tokens=0, dearest=0):
    return SimpleNamespace(problems=problems, tokens=tokens, dearest=dearest, began=time.monotonic())


def test_few_problems_go_ahead_while_none_has_finished_and_fewer_where_the_budget_may_not_hold_them():
    async def admitted(budget):
        count = 0
        while count < 10:
            try:
                await asyncio.wait_for(budget.admit(), 0.05)
            except TimeoutError:
                break
            count += 1
        return count

    assert asyncio.run(admitted(Budget(spending(), 10_000, None))) == 4
    assert asyncio.run(admitted(Budget(spending(), 450, None, least=200.0))) == 2
    # three have finished: at most six are in flight, for those that finish first are the cheap ones
    assert asyncio.run(admitted(Budget(spending(3, 30, 10), 10_000, None))) == 6


def test_in_flight_problems_are_charged_as_the_dearest_and_the_next_waits_until_one_has_ended():
    async def play():
        progress = spending(problems=2, tokens=300, dearest=200)
        budget = Budget(progress, 750, None)
        await budget.admit()  # 300 + 200
        await budget.admit()  # 300 + 400
        waiting = asyncio.create_task(budget.admit())  # 300 + 600 > 750
        await asyncio.sleep(0.03)
        assert not waiting.done()
        progress.tokens += 50  # one of them ended, and was cheap: 350 + 400 <= 750
        budget.in_flight -= 1
        await asyncio.wait_for(waiting, 1)
        progress.tokens, budget.in_flight = 700, 0
        with pytest.raises(BudgetSpent, match="750 tokens is spent"):
            await budget.admit()

    asyncio.run(play())


def test_a_pilots_tokens_are_part_of_the_budget_and_a_shard_is_admitted_whole():
    async def play():
        budget = Budget(spending(problems=1, tokens=100, dearest=100), 600, None, spent_before=150)
        await budget.admit(3)  # 150 + 100 + 300
        assert budget.in_flight == 3
        budget.in_flight = 0
        with pytest.raises(BudgetSpent):
            await budget.admit(4)

    asyncio.run(play())


def test_hours_end_a_run_too():
    progress = spending()
    progress.began -= 3600
    with pytest.raises(BudgetSpent, match="hours"):
        asyncio.run(Budget(progress, None, 0.5).admit())
