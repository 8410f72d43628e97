"""Pairs, credit and rationales of stored rows, worked out by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from stepward.flows.cli.main import app
from stepward.flows.products import (
    CREDIT,
    PAIRS,
    Filters,
    ProblemRows,
    by_problem,
    products,
    write_rationales,
)
from stepward.labeling import advantages
from stepward.labeling.rationales import rationale_of
from stepward.labeling.row_trees import tree_of
from stepward.labeling.signatures import normalised_text
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.dataset.manifest import Manifest
from stepward.prm.dataset.store import ShardStore, open_dataset
from stepward.prm.errors import ConfigError
from stepward.prm.formats.fields import NOBODY
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    Problem,
    Rollout,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

PROBLEM = Problem("p", "Which way?", ("L",))
R, W = Outcome.RIGHT, Outcome.WRONG


def row(number, texts, outcome, *, p=None, values=None, hints=None):
    p = p or [0.1] * len(texts)
    labels = tuple(
        StepLabel(1, p[t], "returns", (), None, None if hints is None else hints[t])
        for t in range(len(texts))
    )
    values = values or [None] * (len(texts) + 1)
    return LabeledSolution(
        PROBLEM, Solution(f"p-{number}", "p", tuple(Step(t) for t in texts), seed=100 + number, outcome=outcome),
        tuple(Estimate(value=v) for v in values), labels, None, NOBODY, NOBODY, "", 0, Allocation.FIXED_K, 0, 0,
        LabelerInfo("x", "1", ""),
    )  # fmt: skip


def rollout(number, prefix, text, outcome, seed):
    return f"p-{number}", Rollout("p", prefix, 0, seed, (1,), text, FinishReason.STOP, outcome=outcome)


def rows() -> ProblemRows:
    """left,up is right; left,down and right,up are wrong. From "left" two rollouts: up (right), down (wrong)."""
    solutions = [
        row(0, ["left", "up"], R, values=[0.5, 0.6, 1.0]),
        row(1, ["left", "down"], W, hints=[0.9, 0.2]),
        row(2, ["right", "up"], W, p=[0.9, 0.05]),
    ]
    drawn = [
        rollout(0, 0, "left\nup", R, 100),  # the solution itself, drawn at the root
        rollout(0, 1, "up", R, 1),
        rollout(0, 1, "down", W, 2),
        rollout(1, 1, "up", Outcome.TIMEOUT, 3),
    ]
    return ProblemRows(solutions, drawn, StepFormat())


def test_the_tree_of_rows_counts_each_end_once_and_a_fault_is_no_leaf():
    grown = rows().tree()
    named = {t: n for n, t in enumerate(grown.texts)}
    left = named["left"]
    tree = grown.tree
    ends = {grown.texts[c]: tree.trials(c, pooled=False) for c in tree.children(left)}
    # up: the solution and one rollout right; down: the solution and one rollout wrong
    assert ends == {"up": (2, 2), "down": (0, 2)}
    assert len(grown.episodes) == 3 + 3
    assert [grown.texts[n] for n in grown.paths[2]] == ["right", "up"]


def test_a_rollout_from_the_bare_problem_that_is_no_solution_counts():
    grown = tree_of([rows().solutions[0]], [rollout(0, 0, "left\nup", R, 7)], StepFormat())
    assert [o for _, o in grown.episodes] == [R, R]


def test_sibling_pairs_have_their_prompt_values_and_evidence_and_pass_the_filters():
    found = list(PAIRS["siblings"](rows(), Filters()))
    got = {(p["chosen"], p["rejected"]): p for p in found}
    # V(up | left) = 1 over V(down | left) = 0; V(left) = 2/4 over V(right) = 0
    assert set(got) == {("up", "down"), ("left", "right")}
    assert got["up", "down"]["prompt"] == "Which way?\n\nleft\n\n"
    assert (got["left", "right"]["chosen_value"], got["left", "right"]["chosen_leaves"]) == (0.5, 4)
    assert [p["weight"] for p in PAIRS["step_apo"](rows(), Filters())] == [0.5, 1.0]
    assert [p["chosen"] for p in PAIRS["siblings"](rows(), Filters(min_gap=0.5))] == ["up"]
    assert [p["chosen"] for p in PAIRS["siblings"](rows(), Filters(min_leaves=2))] == ["up"]
    # "left" and "right" differ in four or five characters, "up" and "down" in four
    assert list(PAIRS["siblings"](rows(), Filters(min_edit=6))) == []


def test_step_dpo_takes_only_certain_steps():
    assert [(p["chosen"], p["rejected"]) for p in PAIRS["step_dpo"](rows(), Filters())] == [("up", "down")]


def test_critical_steps_are_doubted_steps_of_failed_solutions_with_an_alternative_that_succeeds():
    found = list(PAIRS["cso"](rows(), Filters()))
    # solution 1: the reward model doubts "down" (.2): "up" succeeds. Solution 2: P(first error) = .9 doubts "right".
    assert [(p["solution_id"], p["step"], p["chosen"]) for p in found] == [
        ("p-1", 1, "up"),
        ("p-2", 0, "left"),
    ]
    assert [p["p_right"] for p in found] == pytest.approx([0.2, 0.1])
    assert [p["step"] for p in PAIRS["cso"](rows(), Filters(doubt_below=0.15))] == [0]


def test_credit_of_the_tree_methods():
    # V: root 2/5, left 1/2 of four leaves, right 0 of one
    tree_rpo = CREDIT["tree_rpo"](rows())
    assert tree_rpo[0] == pytest.approx([0.25, 0.5])  # .5 - (.5 + 0)/2; 1 - (1 + 0)/2
    assert tree_rpo[2] == pytest.approx([-0.25, 0.0])
    tree_rl = CREDIT["tree_rl"](rows())
    # left: ((.5 - .4) + (.5 - .4)) / sqrt 4 = .1; up: ((1 - .4) + (1 - .5)) / sqrt 2 = .77782
    assert tree_rl[0] == pytest.approx([0.1, 0.7778174])


def test_credit_of_groups_is_null_where_a_solution_has_no_verdict():
    known = rows()
    unknown = replace(
        known.solutions[2], solution=replace(known.solutions[2].solution, outcome=Outcome.UNDECIDED)
    )
    known = ProblemRows([*known.solutions[:2], unknown], known.rollouts, known.step_format)
    # rewards 1, 0: the median is .5
    assert CREDIT["median"](known) == [[0.5, 0.5], [-0.5, -0.5], [None, None]]
    assert CREDIT["gigpo"](known)[2] == [None, None]
    assert CREDIT["rtmc"](known)[2] == [None, None]
    assert CREDIT["tree_grpo"](known)[2] == [None, None]


def test_rtmc_credit_is_q_minus_v_over_signatures():
    # from the root: left leads to 1, 0, 1, 0 (mean .5), all five have mean .4; after left: up 1, down 0
    found = CREDIT["rtmc"](rows())
    assert found[0] == pytest.approx([0.1, 0.5])
    assert found[2] == pytest.approx([-0.4, 0.0])


def test_pav_credit_is_null_where_a_value_is_not_known():
    found = CREDIT["pav"](rows())
    # K = 4: Q^mu of .5, .6, 1 = .9375, .9744, 1: .6 + .5 * .0369 = .61845; 1 + .5 * .0256 = 1.0128
    assert found[0] == pytest.approx([0.61845, 1.0128])
    assert found[1] == [None, None]


def test_pooled_values_share_the_leaves_of_equal_states():
    tokenizer = ByteTokenizer()
    tree = Tree("p", (0,), normalised_text(tokenizer))
    for text, outcome in (("Go left.", R), ("go  left", W)):
        node, _ = tree.add_child(ROOT, tokenizer.encode(text), seed=node_seed(text))
        tree.add_outcome(node, outcome)
    np.testing.assert_allclose(advantages.leaf_values(tree).value, [0.5, 1.0, 0.0])
    np.testing.assert_allclose(advantages.leaf_values(tree, pooled=True).value, [0.5, 0.5, 0.5])


def node_seed(text):
    return len(text)


def test_a_rationale_says_what_is_known_and_nothing_else():
    seen = Verdict(VerdictKind.REFUTED, "arithmetic", "1", evidence="2 + 2 = 5 is false: 4.")
    label = StepLabel(0, decided_by="veto", verdicts=(seen,))
    before, after = Estimate(Counts(right=3, wrong=1)), Estimate(Counts(truncated=4))
    assert rationale_of(label, before, after) == (
        "Checked by arithmetic: 2 + 2 = 5 is false: 4. 3 of 4 continuations from before it end right. "
        "The step is wrong."
    )
    assert rationale_of(StepLabel(1), Estimate(), Estimate()) is None
    assert rationale_of(StepLabel(None, verdicts=(seen,)), before, after) is None


@pytest.fixture
def dataset(tmp_path):
    manifest = Manifest({}, "0", Allocation.FIXED_K, LabelerInfo("x", "1", ""))
    known = rows()
    seen = Verdict(VerdictKind.SUPPORTED, "arithmetic", "1", evidence="1 + 1 = 2 is true")
    first = known.solutions[0]
    told = replace(first, labels=(replace(first.labels[0], verdicts=(seen,)), first.labels[1]))
    with ShardStore.create_or_resume(tmp_path / "data", manifest) as store:
        store.write_shard(0, [told, *known.solutions[1:]], known.rollouts, {})
        store.seal()
    return open_dataset(tmp_path / "data")


def test_products_of_a_dataset_are_read_problem_by_problem_and_are_json(dataset):
    (known,) = by_problem(dataset)
    assert len(known.solutions) == 3
    assert len(known.rollouts) == 4
    for name in (*PAIRS, *CREDIT):
        for found in products(name, dataset):
            json.dumps(found, allow_nan=False)
    with pytest.raises(ConfigError, match="one of siblings"):
        list(products("nonesuch", dataset))
    with pytest.raises(ConfigError, match="name a policy and a reference"):
        list(products("progress_advantage", dataset, policy="embedded"))


def test_rationales_make_a_new_dataset_and_leave_the_old_one_as_it_is(dataset, tmp_path):
    write_rationales(dataset, tmp_path / "told")
    new = list(open_dataset(tmp_path / "told").solutions())
    assert new[0].labels[0].rationale == "Checked by arithmetic: 1 + 1 = 2 is true. The step is right."
    assert new[1].labels[0].rationale is None
    assert [r.labels[0].rationale for r in dataset.solutions()] == [None] * 3
    assert (
        open_dataset(tmp_path / "told").manifest.derived_from["fingerprint"] == dataset.manifest.fingerprint
    )


@pytest.mark.slow
def test_credit_from_the_log_probabilities_of_the_embedded_policy(dataset):
    found = list(products("progress_advantage", dataset, policy="embedded", reference="embedded"))
    assert [r["credit"] for r in found] == [[0.0, 0.0]] * 3, "a policy over itself has no advantage"
    gains = [r["credit"] for r in products("information_gain", dataset, policy="embedded")]
    assert all(x >= 0 for credit in gains for x in credit)


def test_the_command_writes_json_lines_or_a_new_folder_and_names_what_there_is(dataset, tmp_path):
    def command(*words):
        return CliRunner().invoke(app, ["products", *map(str, words)])

    out = tmp_path / "pairs.jsonl"
    done = command("siblings", dataset.folder, "--out", out, "--min-leaves", 2)
    assert done.exit_code == 0, done.output
    assert "1 rows of siblings" in done.output
    (pair,) = map(json.loads, out.read_text().splitlines())
    assert (pair["chosen"], pair["rejected"]) == ("up", "down")
    done = command("rationales", dataset.folder, "--out", tmp_path / "told")
    assert "3 solutions" in done.output
    assert "one of siblings" in str(command("nonesuch", dataset.folder, "--out", out).exception)
