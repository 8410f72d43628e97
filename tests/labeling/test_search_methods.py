"""Every test-time search method on a scripted policy and a scripted reward model, by hand.

The policy is a small tree of texts, the reward model a table from a step to its score. Tokens are bytes.
"""

import asyncio
from dataclasses import replace

import pytest

from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.search.adaptive import Judged, contender
from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.growth import OutOfTokens, TokenMeter, new_tree
from stepward.labeling.search.particles import softmax_of_logits
from stepward.labeling.search.registry import make_search, search_names
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.tree import ROOT
from stepward.prm.errors import ConfigError, ModelError
from stepward.prm.steps import StepFormat
from stepward.prm.types import Problem, Sampler

PROBLEM = Problem("p", "Which way?", ("unread",))
SCORES = {"left": 0.8, "right": 0.3, "up": 0.6, "A": 0.9, "B": 0.2, "C": 0.5}


class Table:
    """A reward model that looks steps up: "answer A" has A's score. It keeps what it was asked."""

    name = "table"

    def __init__(self, scores=None):
        self.scores, self.asked = scores or SCORES, []

    def score(self, problems, solutions):
        self.asked += [tuple(s) for s in solutions]
        return [tuple(self.scores[step.split()[-1]] for step in s) for s in solutions]


class Turns:
    """A policy that gives each state's continuations in turn, in the order in which they are asked for."""

    def __init__(self, table):
        self.table, self.next = table, {}

    def __call__(self, problem_id, so_far, seed):
        options = self.table[so_far]
        index = self.next.get(so_far, 0)
        self.next[so_far] = index + 1
        return options[index % len(options)]


def explore(table, *, model=None, budget=None, seed=0, doubts=None) -> Exploration:
    policy = scripted_policy(Turns(table) if isinstance(table, dict) else table)
    tree = new_tree(PROBLEM, policy.tokenizer.encode("Which way?\n"))
    return Exploration(
        PROBLEM, tree, policy, Sampler(max_tokens=60), StepFormat(), seed, TokenMeter(budget),
        ScoreQueue(model or Table()), None if doubts is None else ScoreQueue(doubts), 20,
    )  # fmt: skip


def found(x: Exploration, name: str, **settings) -> list[str]:
    asyncio.run(make_search(name, **settings)(x))
    return [x.text(n) for n in x.found]


TWO_STEPS = {
    "": ["left\n", "right\n", "up\n"],
    "left\n": ["answer B", "answer A"],
    "right\n": ["answer C"],
    "up\n": ["answer C", "answer B"],
}


def test_all_methods_of_the_issue_are_registered_and_unknown_names_or_settings_are_refused():
    assert set(search_names()) == {
        "majority", "best_of_n", "greedy", "beam", "dvts", "best_first", "rest_mcts", "particles", "vgs",
        "stepco", "aca",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="one of aca, beam"):
        make_search("beem")
    with pytest.raises(ConfigError, match="beams is 0"):
        make_search("beam", beams=0)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        make_search("greedy", width=3)


def test_greedy_takes_the_best_step_each_time():
    # left .8 > up .6 > right .3; below left A .9 > B .2
    assert found(explore(TWO_STEPS), "greedy", samples=3) == ["left\nanswer A"]


def test_greedy_scores_nothing_where_there_is_nothing_to_choose():
    model = Table()
    x = explore({"": ["left\n"], "left\n": ["answer A"]}, model=model)
    assert found(x, "greedy", samples=4) == ["left\nanswer A"]
    assert model.asked == []
    assert x.scored_tokens == 0


def test_beam_keeps_the_best_states_of_all_beams_together():
    # Root: 2 x 2 draws left, right, up, left: left .8 and up .6 stay. Below left B .2, A .9; below up C .5, B .2:
    # of the four A .9 and C .5 stay, both ended.
    x = explore(TWO_STEPS)
    assert found(x, "beam", beams=2, samples=2) == ["left\nanswer A", "up\nanswer C"]
    # bytes: left, right, up, left + answers 4 x 8
    assert x.generated_tokens == 5 + 6 + 3 + 5 + 32
    # scored: left, right, up (14), then left + answer (13) twice, up + answer (11) twice
    assert x.scored_tokens == 14 + 2 * 13 + 2 * 11


def test_dvts_keeps_one_state_in_every_subtree_whatever_the_others_have():
    # Two subtrees of width 2, drawn in turn: the first gets left and up, the second right and left; each keeps left.
    # Below left the turns are B, A, B, A: the first subtree gets B and B, the second A and A.
    x = explore(TWO_STEPS)
    assert found(x, "dvts", subtrees=2, width=2) == ["left\nanswer B", "left\nanswer A"]


def test_best_first_expands_by_utility_of_the_path_plus_lambda_times_the_value_of_its_end():
    # f = min + 1 x last. left .8 + .8 = 1.6; right .6; up 1.2. Below left: A min(.8, .9) + .9 = 1.7, B .2 + .2 = .4.
    x = explore(TWO_STEPS)
    assert found(x, "best_first", samples=3) == ["left\nanswer A"]
    assert x.drawn_at(ROOT) == 3
    assert x.num_draws == 6
    # With lambda = 0 and the last step's score alone, up (.9) comes before left; below it C .95 ends first.
    model = Table({**SCORES, "up": 0.9, "C": 0.95})
    x = explore(TWO_STEPS, model=model)
    assert found(x, "best_first", samples=3, weight=0.0, aggregate="last") == ["up\nanswer C"]


def test_rest_mcts_visits_by_value_and_bonus_and_backs_up_the_reward_models_values():
    # Iteration 1: root's children left .8, right .3, up .6 are valued: root has 3 visits, mean (.8 + .3 + .6) / 3.
    # Iteration 2: V + .7 sqrt(2 ln 3 / 1) is largest for left: A .9 and B .2 are valued; A passes the gate .9.
    x = explore(TWO_STEPS)
    assert found(x, "rest_mcts", width=3, iterations=9) == ["left\nanswer B", "left\nanswer A"]
    tree = x.tree
    by_text = {x.text(n): n for n in range(len(tree))}
    left = by_text["left\n"]
    # left: its own .8, then B .2 and A .9 (three draws, two states)
    assert tree.visits[left] == 3
    assert tree.mean(left) == pytest.approx((0.8 + 0.2 + 0.9) / 3)
    assert tree.mean(ROOT) == pytest.approx((0.8 + 0.3 + 0.6 + 0.2 + 0.9) / 5)


def test_rest_mcts_mixes_the_value_with_the_highest_one_of_a_short_greedy_rollout():
    # Only left is drawn at the root. Its rollout of one step reaches A .9: .5 x .8 + .5 x .9 = .85.
    x = explore({"": ["left\n"], "left\n": ["answer A"]})
    asyncio.run(make_search("rest_mcts", width=1, iterations=1, rollout_steps=1)(x))
    assert x.tree.mean(1) == pytest.approx(0.85)


def test_particles_are_weighted_by_the_softmax_of_logits():
    # logit(.8) - logit(.2) = 2 ln 4, so the weights are 16 : 1; at temperature 2 they are 4 : 1.
    assert softmax_of_logits([0.8, 0.2]) == pytest.approx([16 / 17, 1 / 17])
    assert softmax_of_logits([0.8, 0.2], 2.0) == pytest.approx([4 / 5, 1 / 5])
    assert softmax_of_logits([1.0, 0.0]) == pytest.approx([1.0, 0.0], abs=1e-9)


def test_particles_leave_what_the_reward_model_holds_for_impossible():
    model = Table({**SCORES, "left": 1.0, "right": 0.0, "up": 0.0})
    x = explore(TWO_STEPS, model=model)
    texts = found(x, "particles", particles=6)
    assert len(texts) == 6
    assert {t.split("\n")[0] for t in texts} == {"left"}
    # six draws at the root, one answer for each particle; ended particles are not resampled
    assert x.num_draws == 12


def test_vgs_cuts_by_tokens_and_not_by_steps():
    table = {
        "": ["left\nanswer A", "right\nanswer B"],
        "left\na": ["nswer A", "nswer A"],
        "right\n": ["answer B"],
    }
    # Blocks of 6 bytes: "left\na" ends within a step ("a" scores .9), "right\n" at one (.3). The best block stays.
    model = Table({**SCORES, "a": 0.9})
    x = explore(table, model=model)
    asyncio.run(make_search("vgs", block_tokens=6, subtrees=1, width=2)(replace_sampler(x, 12)))
    assert model.asked[:2] == [("left", "a"), ("right",)]
    # The second block of 6 is cut at the solution's 12 tokens: it never ends.
    assert [x.text(n) for n in x.found] == []
    assert [x.text(n) for n in x.frontier] == ["left\nanswer "]


def replace_sampler(x: Exploration, max_tokens: int) -> Exploration:
    x.sampler = replace(x.sampler, max_tokens=max_tokens)
    return x


def test_vgs_finds_a_solution_that_ends_within_a_block():
    table = {"": ["left\nansw"], "left\nansw": ["er A"]}
    x = explore(table, model=Table({**SCORES, "answ": 0.5}))
    assert found(x, "vgs", block_tokens=9, subtrees=1, width=1) == ["left\nansw"]
    # A script ends where its text ends; a block that stops at its limit goes on.
    table = {"": ["left\nanswer A"], "left\nansw": ["er A"]}
    x = explore(table, model=Table({**SCORES, "answ": 0.5}))
    assert found(x, "vgs", block_tokens=9, subtrees=2, width=1) == ["left\nanswer A"] * 2


def test_stepco_cuts_at_the_first_step_under_the_threshold_and_draws_again():
    table = {
        "": ["right\nanswer A", "left\nanswer B"],
        "left\n": ["answer B", "answer A"],
    }
    # right .3 < .5: cut at step 0, drawn again as left, B. B .2 < .5: cut at step 1, B again; then A .9 stands.
    x = explore(table)
    assert found(x, "stepco", threshold=0.5, revisions=5) == ["left\nanswer A"]
    assert x.num_draws == 4
    # With one revision the last version stands although its answer lies under the threshold.
    assert found(explore(table), "stepco", threshold=0.5, revisions=1) == ["left\nanswer B"]


def judged(node, mu, sigma):
    return Judged(node, mu, sigma)


def test_aca_stops_where_the_best_lower_bound_is_above_every_rivals_upper_bound():
    # score = mean(mu - .5 sigma), bounds +- .3 mean(sigma). Best: (.9 - .05 + .8 - .05) / 2 = .8, u = .1: LCB .77.
    best = judged(1, (0.9, 0.8), (0.1, 0.1))
    assert (best.score, best.lower, best.upper) == pytest.approx((0.8, 0.77, 0.83))
    # Rival .72 + .3 x .1 = .75 < .77: decided.
    assert contender([best, judged(2, (0.82, 0.72), (0.1, 0.1))]) is None
    # Rival .60 with sigma .6: UCB .78 >= .77; another of .75, UCB .759, is not asked.
    wide = judged(3, (0.9,), (0.6,))
    assert contender([best, wide, judged(4, (0.765,), (0.03,))]) is wide


def test_aca_cuts_a_rival_at_its_first_bad_step_and_draws_there():
    table = {
        "": ["left\nanswer A", "left\nanswer C"],
        "left\n": ["answer A", "answer B"],
    }
    mu = Table({**SCORES, "left": 0.9, "A": 0.9, "C": 0.85})
    sigma = Table({"left": 0.01, "A": 0.2, "C": 0.3, "B": 0.01})
    x = explore(table, model=mu, doubts=sigma)
    texts = found(x, "aca", first=2, total=4, more=2, p_bad=0.5, c_cut=2.0)
    # A: score (.895 + .8) / 2 = .8475, u .105, LCB .816; C: (.895 + .7) / 2 = .7975, u .155, UCB .844 >= .816.
    # C is cut at "answer C", .85 - .6 < .5: two draws after left give A (a second vote) and B.
    assert texts == ["left\nanswer A", "left\nanswer C", "left\nanswer A", "left\nanswer B"]


def test_aca_without_a_deviation_takes_that_of_a_beta_distribution():
    x = explore(TWO_STEPS | {"": ["left\nanswer A"]})
    # .9 (1 - .9) / 9 = .01: sigma .1 for A; the one candidate has no rival.
    assert found(x, "aca", first=1, total=2) == ["left\nanswer A"]
    with pytest.raises(ModelError, match="gives no deviation"):
        asyncio.run(x.deviations([1]))


def test_majority_scores_nothing_and_best_of_n_scores_every_solution_once():
    table = {"": ["left\nanswer A", "right\nanswer B"]}
    x = explore(table)
    assert len(found(x, "majority", samples=4)) == 4
    assert x.scored_tokens == 0
    model = Table()
    x = explore(table, model=model)
    assert len(found(x, "best_of_n", samples=4)) == 4
    # two states: left, answer A (13 bytes) and right, answer B (14)
    assert x.scored_tokens == 27
    assert len(model.asked) == 2


@pytest.mark.parametrize("name", ["greedy", "beam", "dvts", "best_first", "rest_mcts", "particles", "stepco"])
def test_a_method_ends_by_out_of_tokens_before_it_spends_what_it_has_not(name):
    x = explore(TWO_STEPS | {"": ["left\nanswer A"]}, budget=30)
    with pytest.raises(OutOfTokens):
        asyncio.run(make_search(name)(x))
    assert x.meter.generated <= 30
    assert x.meter.reserved == 0
