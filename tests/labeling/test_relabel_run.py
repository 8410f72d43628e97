"""What a run wrote with a labeler is what relabel derives from the stored rows with it, without the model."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stepward.labeling.allocation.registry import make_allocation
from stepward.labeling.constants import to_json
from stepward.labeling.estimators.registry import estimators
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.label_rules import RULES
from stepward.labeling.relabel import Relabeling, relabel_dataset, relabel_table, rule_names
from stepward.labeling.relabel_evidence import stored_solutions
from stepward.prm.dataset.schema import rollouts_table, rows_of, solution_of, solutions_table
from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset
from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.types import Allocation, LabeledSolution, LabelerInfo, VerdictKind


def _harness():
    spec = importlib.util.spec_from_file_location("annotating", Path(__file__).with_name("annotating.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hand = _harness()
RIGHT, WRONG = hand.RIGHT, hand.WRONG
ON_COLUMNS = {
    "math_shepherd": "hard",
    "math_shepherd_soft": "soft_mean",
    "genprm_relative": "relative_progress",
    "pav": "progress_advantage",
    "scan": "scan",
    "omegaprm": "omegaprm",
    "rest_mcts": "rest_mcts",
}
"""Labelers of the registry by the rule on columns that computes the same."""
SPREAD = {
    "fixed_k": Allocation.FIXED_K,
    "binary_search": Allocation.BINARY_SEARCH,
    "information_gain": Allocation.INFORMATION_GAIN,
}
PAIRS = [
    (allocation, labeler)
    for allocation, kind in SPREAD.items()
    for labeler, entry in estimators().items()
    if kind in entry.valid_for
]


def recovering(so_far):
    """A wrong start is repaired in some draws, by how much has been said: counts that are neither 0 nor all."""
    recovering.calls += 1
    return hand.finish(so_far) if recovering.calls % 3 else "\nThe answer is 6."


def written(labeler: str, allocation: str = "fixed_k", *, blank: bool = True, **changes):
    """Rows and rollouts of a scripted run of two solutions, and a third sample that is blank."""
    recovering.calls = 0
    hands = {name: changes.pop(name) for name in ("verify_steps",) if name in changes}
    said = [RIGHT, "   ", WRONG] if blank else [RIGHT, WRONG]
    plan = hand.labelling(
        hand.script(said, recovering),
        allocation=make_allocation(allocation),
        estimator=labeler,
        num_solutions=len(said),
        **changes,
    )
    policy = hand.script(said, recovering)
    found = hand.run(policy, plan, **hands)
    assert len(found.solutions) == 2
    return found.solutions, found.rollouts


def relabelled(rows, how: Relabeling, rollouts=None, **kwargs) -> list[LabeledSolution]:
    drawn = None if rollouts is None else rollouts_table(rollouts)
    table, _ = relabel_table(solutions_table(rows), how, rollouts=drawn, **kwargs)
    return [replace(solution_of(r), labeler=rows[0].labeler) for r in rows_of(table)]


def said(row: LabeledSolution, *, who: bool = True):
    labels = [(s.label, s.decided_by if who else "", s.p_first_error) for s in row.labels]
    values = [(e.counts, e.value, e.low, e.high) for e in row.prefixes]
    return labels, values, row.first_error


def close(one, other) -> bool:
    labels, values, error = one
    return (labels, error) == (other[0], other[2]) and all(
        a[0] == b[0] and a[1:] == pytest.approx(b[1:]) for a, b in zip(values, other[1], strict=True)
    )


@pytest.mark.parametrize(("allocation", "labeler"), PAIRS)
def test_the_rows_of_a_run_come_again_from_rows_that_another_labeler_wrote(allocation, labeler):
    wanted, rollouts = written(labeler, allocation)
    other, same = written("changepoint", allocation)
    assert same == rollouts
    if labeler in ON_COLUMNS:
        again = relabelled(other, Relabeling(ON_COLUMNS[labeler]))
        for mine, theirs in zip(again, wanted, strict=True):
            assert close(said(mine, who=False), said(theirs, who=False))
    if labeler not in RULES:
        named = [replace(row, labeler=other[0].labeler) for row in wanted]
        assert relabelled(other, Relabeling(labeler), rollouts) == named


@pytest.mark.parametrize("allocation", SPREAD)
def test_counts_alone_give_the_labels_of_the_run_where_every_sample_is_a_row(allocation):
    wanted, _ = written("changepoint", allocation, blank=False)
    assert relabelled(wanted, Relabeling("changepoint")) == list(wanted)


def test_the_draws_of_a_run_are_found_again_in_their_order():
    rows, rollouts = written("math_shepherd")
    stored = stored_solutions(solutions_table(rows), rollouts_table(rollouts))
    for row, found in zip(rows, stored, strict=True):
        drawn = [r for i, r in rollouts if i == row.solution.id]
        own, others = drawn[0], drawn[1:]
        assert own.seed == row.solution.seed
        for t, outcomes in enumerate(found.evidence.draws):
            assert outcomes == tuple(r.outcome for r in others if r.num_steps == t)
        assert found.evidence.on_policy
        assert found.counts == tuple(e.counts for e in row.prefixes)


def test_counts_alone_are_the_same_draws_without_the_solutions_that_they_count():
    rows, rollouts = written("math_shepherd")
    with_order = stored_solutions(solutions_table(rows), rollouts_table(rollouts))
    without = stored_solutions(solutions_table(rows))
    for a, b in zip(with_order, without, strict=True):
        assert [sorted(d) for d in a.evidence.draws[1:]] == [sorted(d) for d in b.evidence.draws[1:]]
        # the blank sample has no row: what is known of it is that somebody drew it
        assert len(b.evidence.draws[0]) == len(a.evidence.draws[0]) + 1


def test_rollouts_of_another_run_are_refused_with_the_solution_and_prefix():
    rows, rollouts = written("math_shepherd")
    fewer = [
        (i, r) for i, r in rollouts if not (i == rows[0].solution.id and r.num_steps == 1 and r.index == 0)
    ]
    with pytest.raises(FormatError, match=rf"{rows[0].solution.id} again: 7 rollouts .* prefix 1 and 8"):
        relabelled(rows, Relabeling("changepoint"), fewer)


@pytest.mark.parametrize("fusion", ["returns", "veto", "intersect", "posterior"])
def test_verdicts_enter_again_as_they_did_in_the_run(fusion):
    refuted = hand.says({"2 + 2 = 5": VerdictKind.REFUTED, "2 + 2 = 4": VerdictKind.SUPPORTED}, "arithmetic")
    constants = LabelingConstants(precision={"arithmetic": 0.9}, recall={"arithmetic": 0.3})
    wanted, rollouts = written("changepoint", fusion=fusion, constants=constants, verify_steps=refuted)
    assert any(s.verdicts for row in wanted for s in row.labels)
    again = relabelled(wanted, Relabeling("changepoint", fusion=fusion), rollouts, constants=constants)
    assert again == list(wanted)
    if fusion == "posterior":
        plain = relabelled(wanted, Relabeling("changepoint"), rollouts, constants=constants)
        assert plain != again


def test_a_dataset_is_labelled_again_with_the_constants_of_its_own_manifest(tmp_path):
    # A verifier of precision 0.9: with the default for one that nobody measured the posterior is another.
    refuted = hand.says({"2 + 2 = 5": VerdictKind.REFUTED, "2 + 2 = 4": VerdictKind.SUPPORTED}, "arithmetic")
    constants = LabelingConstants(
        precision={"arithmetic": 0.9},
        recall={"arithmetic": 0.3},
        axis_points={"rho": (0.3, 0.6)},
        axis_weights={"rho": (0.5, 0.5)},
    )
    rows, rollouts = written(
        "changepoint", "information_gain", fusion="posterior", constants=constants, verify_steps=refuted
    )
    kept = to_json(constants, rows[0].allocation)
    source = stored(tmp_path / "run", rows, rollouts, constants=kept)
    how = Relabeling("changepoint", fusion="posterior")
    labels = {}
    for name, given in (("again", None), ("default", LabelingConstants())):
        sealed, _ = relabel_dataset(source, tmp_path / name, how, constants=given)
        labels[name] = [said(r) for r in open_dataset(tmp_path / name).solutions()]
        assert sealed.constants == kept
    assert labels["again"] == [said(r) for r in rows]
    assert labels["default"] != labels["again"]


def test_hints_enter_again_as_they_did_in_the_run():
    rows, rollouts = written("changepoint")
    hinted = [
        replace(r, labels=tuple(replace(s, hint=0.9 if t else 0.05) for t, s in enumerate(r.labels)))
        for r in rows
    ]
    told = relabelled(hinted, Relabeling("changepoint", fusion="posterior"), rollouts)
    alone = relabelled(hinted, Relabeling("changepoint"), rollouts)
    assert said(alone[0]) == said(rows[0])
    assert told[1].labels[0].p_first_error > alone[1].labels[0].p_first_error
    assert [s.hint for s in told[1].labels] == [s.hint for s in hinted[1].labels]


def test_a_labeler_is_refused_where_its_counts_would_mislead_it():
    rows, rollouts = written("changepoint", "information_gain")
    for rule in rule_names():
        if rule in ("changepoint", "posterior_mean"):
            continue
        entry = RULES.get(rule) or estimators()[rule]
        if Allocation.INFORMATION_GAIN in entry.valid_for:
            continue
        again = relabelled(rows, Relabeling(rule), rollouts)
        assert all(s.label is None for r in again for s in r.labels), rule
        assert all(e.value is None for r in again for e in r.prefixes), rule


def test_options_of_a_labeler_are_named_where_they_are_wrong():
    with pytest.raises(ConfigError, match=r"no option 'k'; it has pool, confidence"):
        Relabeling("changepoint", {"k": 1}).checked()
    with pytest.raises(ConfigError, match="reads returns alone"):
        Relabeling("hard", fusion="veto").checked()
    with pytest.raises(ConfigError, match="changepoint"):
        Relabeling("none such").checked()


def test_an_option_changes_the_labels_and_the_hash_that_names_them():
    rows, rollouts = written("changepoint")
    sure = Relabeling("changepoint", {"confidence": 0.999})
    assert sum(s.label is not None for r in relabelled(rows, sure, rollouts) for s in r.labels) < sum(
        s.label is not None for r in rows for s in r.labels
    )
    assert sure.labeler != Relabeling("changepoint").labeler


# --- a second dataset -------------------------------------------------------------------------------------


def stored(folder, rows, rollouts=(), **kwargs):
    manifest = Manifest({"n": folder.name}, "1", rows[0].allocation, LabelerInfo("x", "1", ""), **kwargs)
    with ShardStore.create_or_resume(folder, manifest) as store:
        store.write_shard(0, rows, rollouts)
        store.seal()
    return open_dataset(folder)


def judged(row: LabeledSolution, first_error: int | None, *, sure: bool = True) -> LabeledSolution:
    """The same solution as somebody else labelled it, under another id."""
    labels = [
        1 if sure and (first_error is None or t < first_error) else None for t in range(len(row.labels))
    ]
    if first_error is not None:
        labels[first_error] = 0
    return replace(
        row,
        problem=replace(row.problem, id="theirs"),
        solution=replace(row.solution, id="theirs-0", problem_id="theirs"),
        labels=tuple(replace(s, label=v) for s, v in zip(row.labels, labels, strict=True)),
        first_error=first_error,
    )


@pytest.mark.parametrize(
    ("theirs", "strict", "lax"),
    [
        (lambda right, wrong: [judged(right, None), judged(wrong, 2)], (None, 2), (None, 2)),  # the same
        (lambda right, wrong: [judged(right, 1), judged(wrong, 1)], "none", "none"),  # another place
        (lambda right, wrong: [judged(wrong, 2)], (..., 2), (None, 2)),  # one of them is not there
        (lambda right, wrong: [judged(right, None, sure=False), judged(wrong, 2)], (..., 2), (None, 2)),
        (
            lambda right, wrong: [judged(wrong, 2), judged(wrong, 1)],
            "none",
            (None, 2),
        ),  # it contradicts itself
    ],
)
def test_labels_stand_where_a_second_dataset_has_the_same_first_error(tmp_path, theirs, strict, lax):
    rows, rollouts = written("math_shepherd")
    assert [r.first_error for r in rows] == [None, 2]
    source = stored(tmp_path / "ours", rows, rollouts)
    second = stored(tmp_path / "theirs", theirs(*rows))
    for mode, wanted in (("strict", strict), ("no_contradiction", lax)):
        how = Relabeling("hard", consensus=mode)
        sealed, report = relabel_dataset(source, tmp_path / mode, how, second=second)
        kept = [
            r.first_error if any(s.label is not None for s in r.labels) else ...
            for r in open_dataset(tmp_path / mode).solutions()
        ]
        assert kept == ([..., ...] if wanted == "none" else list(wanted))
        assert report.disagreeing == sum(k is ... for k in kept)
        assert sealed.config["relabel"]["consensus_with"] == second.manifest.fingerprint


def test_a_second_dataset_without_a_consensus_is_a_configuration_fault(tmp_path):
    rows, _ = written("math_shepherd")
    data = stored(tmp_path / "d", rows)
    with pytest.raises(ConfigError, match="needs a consensus"):
        relabel_dataset(data, tmp_path / "e", Relabeling("hard"), second=data)


# --- a real policy ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Label a few made problems with the embedded policy by one labeler and allocation; each pair once."""
    done = {}

    def label(labeler: str, allocation: str) -> Path:
        if (labeler, allocation) not in done:
            out = done[labeler, allocation] = tmp_path_factory.mktemp("run") / "data"
            words = ["label", "generator:4", "--no-prefect", "--num-solutions", "3", "--num-rollouts", "4"]
            words += ["--labeler", labeler, "--allocation", allocation, "--out", str(out)]
            ran = subprocess.run(
                [sys.executable, "-m", "stepward", *words],
                capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr[-2000:]
        return done[labeler, allocation]

    return label


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allocation", "labeler"),
    [("fixed_k", "math_shepherd"), ("fixed_k", "scan"), ("fixed_k", "rest_mcts"), ("fixed_k", "pav"),
     ("binary_search", "omegaprm"), ("information_gain", "changepoint"), ("fixed_k", "changepoint")],
)  # fmt: skip
def test_the_rows_of_the_embedded_policy_come_again_by_every_labeler(embedded, allocation, labeler, tmp_path):
    wanted = list(open_dataset(embedded(labeler, allocation)).solutions())
    by = "math_shepherd" if allocation == "fixed_k" and labeler == "changepoint" else "changepoint"
    source = open_dataset(embedded(by, allocation))
    rule = ON_COLUMNS.get(labeler, labeler)
    relabel_dataset(source, tmp_path / "again", Relabeling(rule))
    again = list(open_dataset(tmp_path / "again").solutions())
    assert len(again) == len(wanted) >= 8
    # SCAN labels easy problems only, and so few need not have one.
    assert labeler == "scan" or len({s.label for r in wanted for s in r.labels}) > 1
    for mine, theirs in zip(again, wanted, strict=True):
        assert mine.solution == theirs.solution
        assert close(said(mine, who=labeler not in ON_COLUMNS), said(theirs, who=labeler not in ON_COLUMNS))
