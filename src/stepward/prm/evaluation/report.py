"""The results folder's page: tables and plots of a ``Results``, nothing computed anew."""

from collections.abc import Mapping, Sequence

from stepward.prm.evaluation.best_of_n import BestOfNResult
from stepward.prm.evaluation.intervals import Measure
from stepward.prm.evaluation.page import Cell, heading, page, paragraph, settings_table, table
from stepward.prm.evaluation.prmbench import PRMBenchResult
from stepward.prm.evaluation.processbench import ProcessBenchResult, SubsetScore
from stepward.prm.evaluation.q_alignment import QAlignment
from stepward.prm.evaluation.results import Results, ScorerRun
from stepward.prm.evaluation.svg import MOST_LINES, Series, interval_chart, line_chart, reliability_chart


def render(results: Results) -> str:
    """The page as text."""
    blocks = [paragraph(note, warning=True) for note in results.notes]
    if results.runs:
        blocks += _processbench(results)
    for run in results.runs:
        blocks += _steps(run)
    for curves in results.best_of_n:
        blocks += _best_of_n(curves)
    for scored in results.prmbench:
        blocks += _prmbench(scored)
    if results.q_alignment:
        blocks += _q_alignment(results.q_alignment)
    blocks += _manifest(results)
    return page(results.title, _lead(results), blocks)


def _lead(results: Results) -> str:
    if results.runs:
        first = results.runs[0].result
        lead = f"{first.scorer}: macro F1 {first.macro.f1} over {len(results.items):,} solutions."
        if first.decided:
            lead += (
                f" {first.num_undecided:,} of them are undecided and count as misses; over the others it is "
                f"{first.decided[-1].f1}."
            )
        return lead
    return "Numbers in brackets are intervals, drawn by resampling problems."


def _processbench(results: Results) -> list[str]:
    runs = [run.result for run in results.runs]
    names = _shown([*(s.name for s in runs[0].subsets), "macro"])
    blocks = [
        heading("First wrong step"),
        paragraph(
            "Error accuracy: the first wrong step of an erroneous solution named exactly. Correct accuracy: no step "
            "of a right solution called wrong. F1 is their harmonic mean, macro the mean over subsets. Numbers in "
            "brackets are 95 % intervals unless the settings say otherwise, drawn by resampling problems."
        ),
        interval_chart(
            [(name, [(r.scorer, _part(r, name).f1) for r in runs]) for name in names],
            title="F1 by subset and scorer",
            x_name="F1",
        ),
        table(
            ["scorer", "subset", "error accuracy", "correct accuracy", "F1", "items"],
            [
                (r.scorer, name, _part(r, name).error_accuracy, _part(r, name).correct_accuracy, _part(r, name).f1,
                 _part(r, name).f1.n)
                for r in runs
                for name in names
            ],
        ),
        table(
            ["scorer", "threshold", "chosen on", "F1 there", "erroneous and correct items there", "undecided"],
            [_threshold_row(r) for r in runs],
            caption="Thresholds were fixed before these items were looked at.",
        ),
    ]  # fmt: skip
    if any(r.decided for r in runs):
        blocks += [
            paragraph(
                "Undecided solutions count as misses above, since a scorer could otherwise leave out what is hard. "
                "Over the decided ones alone:"
            ),
            table(
                ["scorer", "subset", "error accuracy", "correct accuracy", "F1", "decided"],
                [
                    (r.scorer, s.name, s.error_accuracy, s.correct_accuracy, s.f1, s.f1.n)
                    for r in runs
                    for s in r.decided
                    if s.name in names
                ],
            ),
        ]
    if results.differences:
        blocks += [
            interval_chart(
                [
                    (name, [(part, by_subset[part]) for part in _shown(list(by_subset))])
                    for name, by_subset in results.differences.items()
                ],
                title="Differences of F1 on the same items",
                x_name="difference of F1 (paired)",
                low=None,
                high=None,
                coloured=False,
            ),
        ]
    corrected = [run.corrected for run in results.runs if run.corrected is not None]
    if corrected:
        blocks += [
            paragraph(
                "The same predictions under corrected labels, a second score beside the published one:"
            ),
            table(
                ["scorer", "labels", "subset", "F1"],
                [(r.scorer, r.labels, s.name, s.f1) for r in corrected for s in (*r.subsets, r.macro)],
            ),
        ]
    blocks += _breakdown(runs[0])
    if results.oracle:
        blocks += [
            heading("Oracle sweep: an upper bound, not a result"),
            paragraph("The threshold was chosen on the very items below, separately for each subset.", warning=True),
            table(
                ["scorer", "subset", "threshold", "oracle F1"],
                [(r.scorer, s.name, r.threshold.value if r.threshold else None, s.f1) for r in results.oracle
                 for s in r.subsets],
            ),
        ]  # fmt: skip
    return blocks


def _shown(parts: list[str]) -> list[str]:
    """Subsets and macro; of one subset the macro is the same once more."""
    return [p for p in parts if p != "macro"] if len(parts) == 2 else parts


def _part(result: ProcessBenchResult, name: str) -> SubsetScore:
    return result.macro if name == "macro" else next(s for s in result.subsets if s.name == name)


def _threshold_row(result: ProcessBenchResult) -> Sequence[Cell]:
    t = result.threshold
    if t is None:
        return (result.scorer, None, "names steps itself", None, None, result.num_undecided)
    counts = f"{t.num_error:,} and {t.num_correct:,}" if t.f1 is not None else None
    return (result.scorer, t.value, t.source, t.f1, counts, result.num_undecided)


def _breakdown(result: ProcessBenchResult) -> list[str]:
    blocks = [
        heading("Where it finds errors and where not"),
        interval_chart(
            [("", [(s.name, s.error_accuracy) for s in result.by_position if s.name != "no error"])],
            title="Error accuracy by position of the first error",
            x_name="error accuracy by gold position",
            coloured=False,
        ),
    ]
    if any(s.name for s in result.by_generator):
        blocks.append(
            table(
                ["generator", "error accuracy", "correct accuracy", "F1"],
                [
                    (s.name or "(unknown)", s.error_accuracy, s.correct_accuracy, s.f1)
                    for s in result.by_generator
                ],
            )
        )
    names = {
        "exact": "erroneous, first error named", "too_early": "erroneous, an earlier step named",
        "too_late": "erroneous, a later step named", "missed": "erroneous, nothing named",
        "none_right": "correct, nothing named", "false_alarm": "correct, a step named", "undecided": "undecided",
    }  # fmt: skip
    return [*blocks, table(["what happened", "solutions"], [(names[k], n) for k, n in result.misses.items()])]


def _steps(run: ScorerRun) -> list[str]:
    blocks: list[str] = []
    if run.calibration is not None:
        c = run.calibration
        blocks += [
            heading(f"Step scores of {run.result.scorer}"),
            reliability_chart([(b.mean_score, b.share_right) for b in c.bins], title="Reliability"),
            table(
                ["AUROC", "Brier", "Brier of the share alone", "ECE", "labelled steps", "wrong ones"],
                [(c.auroc, c.brier, c.brier_of_share, c.ece, c.num_steps, c.num_wrong)],
            ),
        ]
    if run.early is not None:
        e = run.early
        rows = [
            (f"flagged by {e.slack} steps after the first error" if e.slack else "flagged at or before the first error",
             e.intervention_rate),
            ("flagged anywhere", e.recall), ("flagged before the error", e.before_the_error),
            ("false alarms on correct solutions", e.false_alarm_rate),
            ("steps from error to flag, where flagged", e.intervention_gap),
            ("tokens saved on erroneous solutions", e.tokens_saved), ("tokens lost on correct ones", e.tokens_lost),
        ]  # fmt: skip
        blocks.append(table(["early detection", run.result.scorer], rows))
    return blocks


def _best_of_n(result: BestOfNResult) -> list[str]:
    by_tokens = result.cut_by == "tokens"
    methods = list(dict.fromkeys(p.method for p in result.points))
    # So many lines are told apart; the table below has every method.
    shown = methods[:MOST_LINES]
    x_name = "tokens a problem, generated and scored" if by_tokens else "samples a problem"
    series = [Series(m, tuple((p.cut, p.accuracy) for p in result.points if p.method == m)) for m in shown]
    return [
        heading("Accuracy against tokens" if by_tokens else "Accuracy against samples"),
        line_chart(series, title="Accuracy of selected answers", x_name=x_name, y_name="accuracy"),
        table(
            ["method", "token budget" if by_tokens else "N", "accuracy", "over majority", "samples", "generated",
             "scored"],
            [(p.method, p.cut, p.accuracy, None if p.method == "majority" else p.over_majority, p.num_samples,
              p.generated_tokens, p.scored_tokens) for p in result.points],
            caption="Samples and tokens are means a problem; differences are paired by problem.",
        ),
        table(["k", "pass@k (unbiased)"], list(result.pass_at_k.items())),
        paragraph(
            f"{result.num_problems:,} problems; {result.num_problems_left_out:,} left out for want of samples; "
            f"{result.num_samples_left_out:,} samples of unknown outcome left out; {result.num_split_classes:,} "
            "answer classes hold both right and wrong samples."
        ),
    ]  # fmt: skip


def _prmbench(result: PRMBenchResult) -> list[str]:
    parts = [result.total, *result.categories, *result.classes]
    return [
        heading(f"PRMBench: {result.scorer}"),
        paragraph(
            f"PRMScore = {result.weight_right:g} F1(right) + {1 - result.weight_right:g} F1(wrong), pooled over steps. "
            f"Threshold {result.threshold if result.threshold is not None else 'none'} ({result.threshold_source}). "
            "Unmodified solutions ('correct') stay out of the total."
        ),
        table(
            ["class", "PRMScore", "F1(right)", "F1(wrong)", "step accuracy"],
            [(c.name, c.prm_score, c.f1_right, c.f1_wrong, c.accuracy) for c in parts],
        ),
        table(["first wrong step called wrong"], [(result.first_error_accuracy,)]),
    ]


def _q_alignment(results: Mapping[str, QAlignment]) -> list[str]:
    rows: list[Sequence[Cell]] = [
        (name, q.agreement, q.ceiling, q.rank_correlation, q.num_states, q.num_pairs)
        for name, q in results.items()
    ]
    chart: list[tuple[str, Measure]] = [(name, q.agreement) for name, q in results.items()]
    return [
        heading("Q-alignment"),
        paragraph(
            "Does a signal order sibling steps as their measured values do? One half is chance; the ceiling is what "
            "a perfect signal could be expected to reach against values measured with so few rollouts."
        ),
        interval_chart(
            [("", chart)], title="Pairwise agreement", x_name="pairwise agreement", coloured=False
        ),
        table(["signal", "agreement", "ceiling", "rank correlation", "states", "pairs"], rows),
    ]


def _manifest(results: Results) -> list[str]:
    rows: list[tuple[str, object]] = list(results.manifest.items())
    sources = sorted({item.source for item in results.items if item.source})
    if sources:
        rows.append(("items from", sources))
    return [heading("How this was made"), settings_table(rows)] if rows else []
