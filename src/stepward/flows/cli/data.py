"""``stepward dataset``, ``relabel``, ``import``, ``export`` and ``audit``: work on datasets without a model."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepward.flows.cli.app import app

if TYPE_CHECKING:
    from stepward.prm.evaluation.calibration import Calibration

Opt = typer.Option
Folder = Annotated[Path, typer.Argument(help="Dataset folder")]

dataset_app = typer.Typer(help="Look at a dataset folder and check it.", no_args_is_help=True)
audit_app = typer.Typer(help="Compare a dataset with annotations and with benchmarks.", no_args_is_help=True)
app.add_typer(dataset_app, name="dataset")
app.add_typer(audit_app, name="audit")


@dataset_app.command()
def verify(folder: Folder) -> None:
    """Hash every shard and compare with the manifest; exit code 1 where anything is cut, swapped or edited."""
    from stepward.prm.dataset.integrity import verify as run

    found = run(folder)
    state = "finished" if found.sealed else "not finished"
    print(f"{folder}: {found.num_shards:,} shards, {found.num_bytes:,} bytes, {state}")
    for fault in found.faults:
        print(f"  FAULT {fault}")
    if not found.ok:
        sys.exit(1)
    print("  everything is as it was written")


@dataset_app.command()
def stats(folder: Folder) -> None:
    """Print lengths, balance and unknown labels as JSON."""
    from stepward.prm.audit.hygiene import statistics
    from stepward.prm.dataset.store import open_dataset

    print(json.dumps(statistics(open_dataset(folder)), indent=1, default=str))


@dataset_app.command()
def card(
    folder: Folder, repo: Annotated[str, Opt(help="Hub id that the card will stand under, owner/name")]
) -> None:
    """Write the dataset's card, README.md, from its manifest."""
    from stepward.prm.publishing.cards import write_card

    print(write_card(folder, repo=repo))


@app.command("model-card")
def model_card(
    folder: Annotated[Path, typer.Argument(help="Folder of a trained reward model")],
    repo: Annotated[str, Opt(help="Hub id that the card will stand under, owner/name")],
    licence: Annotated[str, Opt(help="Licence of the weights, such as apache-2.0; the base model's binds")],
    evaluation: Annotated[Path | None, Opt(help="Folder that stepward evaluate wrote")] = None,
    data: Annotated[Path | None, Opt(help="Folder of the dataset that it was trained on")] = None,
    dataset: Annotated[list[str] | None, Opt(help="Hub id of that dataset; may be repeated")] = None,
) -> None:
    """Write a reward model's card, README.md, from its checkpoint, its evaluation and its data."""
    from stepward.prm.publishing.model_card import write_model_card

    print(
        write_model_card(
            folder, repo=repo, licence=licence, evaluation=evaluation, data=data, datasets=dataset or ()
        )
    )


@app.command()
def relabel(
    folder: Folder,
    out: Annotated[Path, Opt(help="Folder of the new dataset")],
    rule: Annotated[
        str, Opt(help="Label rule, or a labeler such as changepoint; a wrong name lists all")
    ] = "hard",
    option: Annotated[list[str] | None, Opt(help="name=value of the rule; may be repeated")] = None,
    truncated_as: Annotated[str, Opt(help="exclude, wrong or bounds")] = "bounds",
    stop_after_first_error: Annotated[bool, Opt("--stop-after-first-error")] = False,
    consensus: Annotated[str, Opt(help="strict or no_contradiction: keep what the tools agree with")] = "",
    consensus_with: Annotated[
        Path | None, Opt(help="Dataset of the same solutions that must agree in place of the tools (strict)")
    ] = None,
    verifier: Annotated[
        list[str] | None, Opt(help="Whose verdicts count; may be repeated; all by default")
    ] = None,
    fusion: Annotated[
        str, Opt(help="How verdicts and hints enter a labeler: returns, posterior, ...")
    ] = "returns",
    resume: Annotated[bool, Opt("--resume")] = False,
    overwrite: Annotated[bool, Opt("--overwrite")] = False,
) -> None:
    """Derive labels again from stored counts, without a model."""
    from stepward.labeling.relabel import Relabeling, relabel_dataset
    from stepward.prm.dataset.store import open_dataset
    from stepward.prm.errors import ConfigError

    options: dict[str, float] = {}
    for text in option or ():
        name, _, value = text.partition("=")
        try:
            options[name] = float(value)
        except ValueError:
            raise ConfigError([f"option {text!r}: write name=number"]) from None
    how = Relabeling(
        rule,
        options,
        truncated_as=truncated_as,  # type: ignore[arg-type]  (checked by name when the rule is)
        stop_after_first_error=stop_after_first_error,
        consensus=consensus or ("strict" if consensus_with else ""),  # type: ignore[arg-type]
        verifiers=verifier or (),
        fusion=fusion,
    )
    manifest, report = relabel_dataset(
        open_dataset(folder),
        out,
        how,
        second=open_dataset(consensus_with) if consensus_with else None,
        resume=resume,
        overwrite=overwrite,
    )
    print(f"{out}: {report.solutions:,} solutions labelled by {manifest.labeler.name}")
    print(f"  decided {report.decided:,}, undecided {report.undecided:,}, disagreeing {report.disagreeing:,}")
    for allocation, number in report.refused.items():
        print(f"  {number:,} refused: the rule is not valid for allocation {allocation}")
    print("  steps: " + ", ".join(f"{n:,} {name}" for name, n in report.labels.items()))


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Dataset or model folder")],
    repo: Annotated[str, typer.Argument(help="Hub id, owner/name")],
    model: Annotated[bool, Opt("--model", help="The folder is a reward model")] = False,
    public: Annotated[bool, Opt("--public", help="Private by default")] = False,
    allow: Annotated[list[str] | None, Opt(help="Publish although this named check fails")] = None,
    dry_run: Annotated[bool, Opt("--dry-run", help="Show files, card and checks; send nothing")] = False,
) -> None:
    """Publish to the Hugging Face Hub: a branch first, one commit on main once everything is verified there."""
    from stepward.prm.publishing.hub import plan_publication
    from stepward.prm.publishing.hub import publish as run

    kind = "model" if model else "dataset"
    if dry_run:
        plan = plan_publication(folder, repo, kind=kind)
        for file in plan.files:
            print(f"{file.num_bytes:>12,}  {file.path}")
        for check, why in plan.refusals.items():
            print(f"refused by {check}: {why}")
        print(plan.card)
        return
    done = run(folder, repo, kind=kind, private=not public, allow=allow or ())
    print(f"{done.url} at {done.tag}: {done.uploaded:,} files sent, {done.found:,} were there")


@app.command("export")
def export(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="Name of a foreign format")],
    folder: Folder,
    out: Annotated[Path, Opt(help="JSON-lines file to write")],
) -> None:
    """Write a dataset in a foreign format and say what it could not hold."""
    from stepward.prm.dataset.store import open_dataset
    from stepward.prm.formats.registry import ExportReport, export_rows, format_named

    report = ExportReport()
    rows = export_rows(format_named(format_name), open_dataset(folder).solutions(), report)
    with out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    print(f"{out}: {report.rows:,} rows from {report.written:,} of {report.solutions:,} solutions")
    for why, number in report.left_out.most_common():
        print(f"  {number:,} left out: {why}")
    for name, number in report.lost.most_common():
        print(f"  {number:,} lost {name}")


@app.command("import")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help="Name of a foreign format")],
    source: Annotated[str, typer.Argument(help="File, folder or Hub id")],
    out: Annotated[Path, Opt(help="Dataset folder to write")],
    name: Annotated[str | None, Opt(help="Name of the source in the rows; the file's by default")] = None,
    overwrite: Annotated[bool, Opt("--overwrite")] = False,
) -> None:
    """Read a foreign format into a dataset folder; every row that cannot be read is named."""
    from stepward.flows.foreign import import_dataset

    report = import_dataset(format_name, source, out, name=name, overwrite=overwrite)
    print(f"{out}: {report.solutions:,} solutions from {report.kept:,} of {report.rows:,} rows")
    for place, why in report.rejected[:10]:
        print(f"  rejected {place}: {why}")
    if len(report.rejected) > 10:
        print(f"  ... and {len(report.rejected) - 10:,} more")


@app.command("verify")
def verify_steps(
    solutions: Annotated[list[Path], typer.Argument(help="Files of solutions")],
    verifier: Annotated[str, Opt(help="Name of the verifier")] = "arithmetic",
    against: Annotated[str, Opt(help="labels: files are ProcessBench's; print precision and recall")] = "",
    out: Annotated[Path | None, Opt(help="JSON lines of verdicts; the screen by default")] = None,
) -> None:
    """Check the claims in steps with a tool verifier."""
    from stepward.flows.verify import measure_verifier, verify_file
    from stepward.prm.errors import InputError

    if against not in ("", "labels"):
        raise InputError(
            f"stepward verify --against {against!r}: 'labels' is what can be measured against; give that"
        )
    if against:
        found = measure_verifier(solutions, verifier)
        print(
            f"{found.solutions:,} solutions, {found.erroneous:,} of them erroneous, {found.flags:,} flagged"
        )
        print(f"  precision {found.precision}, recall {found.recall}")
        print(f"  {found.supported:,} of {found.steps:,} steps hold a supported claim and no refuted one")
        return
    lines = [json.dumps(row, ensure_ascii=False) for path in solutions for row in verify_file(path, verifier)]
    if out is None:
        print("\n".join(lines))
    else:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


@audit_app.command()
def labels(
    folder: Folder,
    against: Annotated[Path | None, Opt(help="Annotated file of ProcessBench's format")] = None,
) -> None:
    """Compare first errors with annotated ones, or, for generated problems, with the exact ones."""
    from stepward.prm.dataset.store import open_dataset

    dataset = open_dataset(folder)
    if against is None:
        from stepward.flows.machine_checked import audit

        quality = audit(dataset)
        print(f"{quality.num_solutions:,} solutions against the exact truth")
        print(
            f"  on erroneous {quality.first_error.error_accuracy}, on correct {quality.first_error.correct_accuracy}"
        )
        print(
            f"  F1 {quality.first_error.f1}; {quality.right_answer_wrong_step:.1%} of right answers hold a wrong step"
        )
        _print_calibration(quality.by_completer)
        return
    from stepward.prm.audit.labels import audit_labels
    from stepward.prm.evaluation.readers.processbench import read_items

    found = audit_labels(dataset.solutions(), read_items(against))
    print(
        f"{found.paired:,} solutions in both ({found.undecided:,} undecided; {found.only_ours:,} only ours)"
    )
    print(f"  F1 {found.score.macro.f1}")
    _print_calibration(found.by_completer)
    for (theirs, ours, by), ids in found.disagreements.items():
        print(f"  theirs {theirs}, ours {ours}, decided by {by}: {len(ids)} such as {ids[0]}")


def _print_calibration(by_completer: "Mapping[str, Calibration]") -> None:
    """One line for rows whose rollouts are their generator's own, one for the others."""
    for kind, found in by_completer.items():
        print(
            f"  {kind.replace('_', '-')} P(step is right): calibration error {found.ece}, Brier {found.brier} "
            f"({found.num_steps:,} steps)"
        )


@audit_app.command()
def contamination(
    folder: Folder,
    against: Annotated[Path, Opt(help="A problem file, or a folder with the default benchmarks")],
) -> None:
    """Look for benchmark problems in a dataset; exit code 1 where there are any."""
    from stepward.prm.audit.contamination import benchmark_file, benchmarks_in, build_index, check_problems
    from stepward.prm.dataset.store import open_dataset

    benchmarks = benchmarks_in(against) if against.is_dir() else {against.stem: benchmark_file(against)}
    rows = open_dataset(folder).solutions()
    report = check_problems((row.problem for row in rows), build_index(benchmarks))
    print(
        f"{report.checked:,} problems against {', '.join(f'{n} ({k:,})' for n, k in report.benchmarks.items())}"
    )
    for match in report.matches[:20]:
        print(f"  {match}")
    if report.matches:
        print(f"{len(report.matches):,} matches")
        sys.exit(1)
    print("  no match")
