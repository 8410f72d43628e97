"""Which rollouts the rules ask for, round by round."""

import pytest

from stepward.labeling.allocation.binary_search import BinarySearch
from stepward.labeling.allocation.difficulty_k import DifficultyK
from stepward.labeling.allocation.fixed_k import FixedK, StopAtFirstRight
from stepward.labeling.allocation.registry import ALLOCATIONS, make_allocation
from stepward.labeling.allocation.two_fidelity import TwoFidelity
from stepward.labeling.allocation.variance_rounds import VarianceRounds
from stepward.labeling.evidence import AllocationRule, Draw, SolutionEvidence
from stepward.prm.errors import ConfigError
from stepward.prm.types import Outcome

R, W = Outcome.RIGHT, Outcome.WRONG


def fresh(steps: int, outcome: Outcome = W) -> SolutionEvidence:
    return SolutionEvidence(steps, (10,) * steps, outcome, ((),) * (steps + 1))


def play(rule: AllocationRule, solutions: list[SolutionEvidence], answer, rounds: int = 10_000):
    """Ask for rounds and answer each draw with ``answer(draw)`` until the rule is done."""
    log: list[list[Draw]] = []
    while len(log) < rounds and (batch := rule.next_draws(solutions)):
        log.append(batch)
        for draw in batch:
            old = solutions[draw.solution]
            draws = list(old.draws)
            draws[draw.prefix] = (*draws[draw.prefix], answer(draw))
            solutions[draw.solution] = SolutionEvidence(
                old.num_steps, old.step_tokens, old.outcome, tuple(draws), old.verdicts, old.prm_scores
            )
    return log


def test_fixed_k_draws_k_at_every_inner_prefix_in_one_round():
    log = play(FixedK(2), [fresh(3), fresh(1)], lambda d: W)
    assert log == [[Draw(0, 1), Draw(0, 1), Draw(0, 2), Draw(0, 2)]]


def test_fixed_k_with_the_root_draws_at_the_bare_problem_too():
    assert FixedK(1, include_root=True).next_draws([fresh(2)]) == [Draw(0, 0), Draw(0, 1)]


def test_stopping_at_the_first_right_one_draws_no_more_there():
    log = play(StopAtFirstRight(3), [fresh(3)], lambda d: R if d.prefix == 1 else W)
    assert log == [[Draw(0, 1), Draw(0, 2)], [Draw(0, 2)], [Draw(0, 2)]]


def test_binary_search_halves_what_is_possible():
    # T = 8, first error at step number 6: prefixes up to 5 still succeed
    log = play(BinarySearch(2), [fresh(8)], lambda d: R if d.prefix <= 5 else W)
    assert [d.prefix for batch in log for d in batch] == [4, 6, 6, 5]


def test_binary_search_after_the_paper_draws_all_k_at_once():
    log = play(BinarySearch(3, stop_at_first_right=False), [fresh(4)], lambda d: R)
    assert [[d.prefix for d in batch] for batch in log] == [[2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize("outcome", [R, Outcome.NO_GOLD, Outcome.UNDECIDED])
def test_binary_search_spends_nothing_where_the_answer_is_not_wrong(outcome):
    assert BinarySearch().next_draws([fresh(6, outcome)]) == []


def test_binary_search_ends_where_the_engine_gives_only_faults():
    log = play(BinarySearch(3), [fresh(8)], lambda d: Outcome.ERROR)
    assert [d.prefix for batch in log for d in batch] == [4, 4, 4]


def test_the_bare_problem_is_drawn_once_for_all_its_solutions():
    draws = FixedK(2, include_root=True).next_draws([fresh(2), fresh(2)])
    assert [d for d in draws if d.prefix == 0] == [Draw(0, 0), Draw(0, 0)]


@pytest.mark.parametrize(("rate", "k"), [(0.0, 5), (0.5, 3), (1.0, 2)])
def test_difficulty_sets_k_from_a_probe_of_the_bare_problem(rate, k):
    rule = DifficultyK(hard=5, medium=3, easy=2, probe=4)
    seen = iter([R, W, R, W])
    answers = {0.0: lambda d: W, 1.0: lambda d: R, 0.5: lambda d: next(seen) if d.prefix == 0 else W}
    log = play(rule, [fresh(3), fresh(2)], answers[rate])
    assert log[0] == [Draw(0, 0)] * 4
    assert log[1] == [Draw(0, 1)] * k + [Draw(0, 2)] * k + [Draw(1, 1)] * k
    assert len(log) == 2


def test_difficulty_stops_where_the_probe_met_only_faults():
    assert len(play(DifficultyK(probe=3), [fresh(4)], lambda d: Outcome.TIMEOUT)) == 1


def test_variance_rounds_go_where_outcomes_differ_and_keep_the_budget():
    seen = iter([R, W] * 50)
    log = play(VarianceRounds(first=2, mean_rollouts=4, share=0.5), [fresh(4)],
               lambda d: next(seen) if d.prefix == 2 else R)  # fmt: skip
    draws = [d.prefix for batch in log for d in batch]
    assert draws[:6] == [1, 1, 2, 2, 3, 3]
    assert len(draws) == 12  # 4 a prefix on average
    assert draws.count(2) == 8  # all that was left


def test_two_fidelities_draw_only_where_the_scores_are_unsure():
    sure = SolutionEvidence(3, (10,) * 3, W, ((),) * 4, prm_scores=(0.99, 0.5, 0.2))
    assert TwoFidelity(2).next_draws([sure]) == [Draw(0, 2)] * 2
    assert [d.prefix for d in TwoFidelity(1).next_draws([fresh(3)])] == [1, 2]


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="hard_below"):
        DifficultyK(hard_below=0.9, easy_from=0.1)
    with pytest.raises(ValueError, match="mean_rollouts"):
        VarianceRounds(first=4, mean_rollouts=2)
    with pytest.raises(ValueError, match="low"):
        TwoFidelity(low=0.9, high=0.1)


def test_rules_have_names_and_refuse_zero_rollouts():
    assert make_allocation("fixed_k", num_rollouts=4) == FixedK(4)
    with pytest.raises(ConfigError, match="binary_search"):
        make_allocation("fixedk")
    with pytest.raises(ValueError, match="num_rollouts is 0"):
        StopAtFirstRight(0)


def test_compilation_waits_until_a_process_has_had_many_rounds(monkeypatch):
    from stepward.labeling.allocation import information_gain as module

    monkeypatch.setattr(module, "_rounds", module.ROUNDS_BEFORE_COMPILING - 1)
    monkeypatch.setattr(module, "_has_numba", lambda: True)
    assert [module._worth_compiling() for _ in range(2)] == [False, True]
    monkeypatch.setattr(module, "_has_numba", lambda: False)
    assert not module._worth_compiling()


@pytest.mark.parametrize("name", ALLOCATIONS)
def test_a_problem_without_a_solution_gets_no_rollouts(name):
    """Every solution was blank: nothing has a step, and nobody asks for anything."""
    assert make_allocation(name).next_draws([]) == []
