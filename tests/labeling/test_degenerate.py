"""Copies are one draw: greedy decoding and cached answers are flagged, and labels rest on them once."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.degenerate import counted_once, is_degenerate
from stepward.prm.types import MARKS, FinishReason, Outcome, Rollout, Sampler


def _harness():
    spec = importlib.util.spec_from_file_location("annotating", Path(__file__).with_name("annotating.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


h = _harness()
GREEDY, WARM = Sampler(temperature=0.0, max_tokens=400), Sampler(max_tokens=400)


def draw(text: str, index: int = 0, outcome: Outcome | None = Outcome.RIGHT) -> Rollout:
    return Rollout("p", 1, index, index, tuple(text.encode()), text, FinishReason.STOP, outcome=outcome)


LONG = "so we add the two numbers and find that the answer is 6"  # 55 bytes, over the 32 of COPY_TOKENS


@pytest.mark.parametrize(
    ("draws", "sampler", "degenerate"),
    [
        ([[draw("a"), draw("a", 1)]], GREEDY, True),
        ([[draw("a"), draw("b", 1)]], GREEDY, False),
        ([[draw("a")], [draw("b")]], GREEDY, False),  # one draw a prefix: nothing is repeated
        ([[draw("a"), draw("a", 1)]], Sampler(top_k=1), True),
        ([[draw(LONG, i) for i in range(9)]], WARM, True),  # eight copies of 55 tokens
        ([[draw(LONG, i) for i in range(8)]], WARM, False),  # seven
        ([[draw("The answer is 6.", i) for i in range(20)]], WARM, False),  # a confident end of 16 tokens
        ([[draw(LONG, i) for i in range(9)], [draw("a"), draw("b", 1)]], WARM, False),
        ([[draw("", i, Outcome.ERROR) for i in range(9)]], GREEDY, False),  # faults are no copies
    ],
)
def test_only_copies_are_degenerate(draws, sampler, degenerate):
    assert is_degenerate(draws, sampler) is degenerate


def test_copies_count_once_and_faults_stay():
    fault = draw("", 7, Outcome.ERROR)
    kept = counted_once([draw("a"), draw("a", 1), fault, draw("b", 2), fault, draw("a", 3)])
    assert [(r.text, r.index) for r in kept] == [("a", 0), ("", 7), ("b", 2), ("", 7)]


def test_a_greedy_labelling_is_marked_counts_each_prefix_once_and_keeps_every_rollout():
    policy = h.script([h.WRONG, h.WRONG], h.finish)
    plan = h.labelling(policy, allocation=FixedK(4), sampler=GREEDY)
    found = h.run(policy, plan)
    row = found.solutions[0]
    assert "degenerate" in row.marks
    # prefixes 1 and 2: four draws, all one wrong text; they count as one, which is too little for a hard 0
    assert [p.counts.wrong for p in row.prefixes] == [1, 1, 1, 1]
    assert [p.counts.n_unique for p in row.prefixes] == [1, 1, 1, 1]
    assert [x.label for x in row.labels] == [None, None, 0]
    # what was sampled is kept and charged: two solutions, and four rollouts at two prefixes of each
    assert len(found.rollouts) == 2 + 2 * 2 * 4
    assert row.generated_tokens > 5 * len(h.WRONG[-10:])


def test_the_same_draws_of_a_sampler_at_work_count_in_full():
    policy = h.script([h.WRONG, h.WRONG], h.finish)
    row = h.run(policy, h.labelling(policy, allocation=FixedK(4), sampler=WARM)).solutions[0]
    assert "degenerate" not in row.marks
    assert [p.counts.wrong for p in row.prefixes[1:3]] == [4, 4]
    assert [x.label for x in row.labels] == [0, 0, 0]


def test_answers_from_a_cache_are_marked_although_the_sampler_is_warm():
    # Case P061: every worker gave the same output. 2 solutions x 2 prefixes x 4 draws of one long text each.
    lines = ["2 + 2 = 5 because two and two more are counted.", f"{LONG} plus one. The answer is 7."]
    whole = "\n".join([lines[0], lines[1], "The answer is 7, as was found in the lines above."])
    policy = h.script(
        [whole, whole], lambda so_far: whole[len(so_far) :] if whole.startswith(so_far) else whole
    )
    row = h.run(policy, h.labelling(policy, allocation=FixedK(4), sampler=WARM)).solutions[0]
    assert "degenerate" in row.marks
    assert [p.counts.total for p in row.prefixes[1:3]] == [1, 1]


def test_rows_of_a_greedy_labelling_do_not_depend_on_which_copy_came_first():
    one = h.script([h.WRONG, h.WRONG], h.finish)
    plan = h.labelling(one, allocation=FixedK(4), sampler=GREEDY)
    other = h.script([h.WRONG, h.WRONG], h.finish)
    assert h.run(one, plan).solutions == h.run(other, replace(plan)).solutions


def test_the_mark_is_explained():
    assert "counted once" in MARKS["degenerate"]
