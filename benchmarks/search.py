"""Test-time search under a PRM of this project: accuracy against tokens, 3 seeds. ``make bench-search``.

    python -m benchmarks.search [--parts FOLDER] [--seeds 0 1 2] [--costs 8 32] [--methods ...] [--report]

The embedded policy solves held-out problems of the generator's ``demo`` level; the PRM is the quickstart's, trained on
900 other problems of the same seed. Majority vote, best-of-N and weighted vote read one stored pool of samples a
problem; every search runs live under a budget of generated plus scored tokens a problem. Finished parts lie in FOLDER
(175 problems a file), so that a run may be stopped and goes on; ``--report`` reads what is there and writes
benchmarks/results/search.json and, with ``--figures``, the plot. Settings were chosen on generator seed 77.
"""

import argparse
import asyncio
import json
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from benchmarks.report import Row, write
from stepward.flows.build import prompt_template
from stepward.flows.config import LabelConfig, TrainConfig, parse
from stepward.flows.label import label
from stepward.flows.resumption import nothing_left
from stepward.flows.train import train
from stepward.labeling.policies.embedded import embedded_folder
from stepward.labeling.policies.transformers import load_transformers
from stepward.labeling.search.registry import make_search
from stepward.labeling.search.test_time import SearchPlan, search_all
from stepward.prm.evaluation.aggregation import product
from stepward.prm.evaluation.best_of_n import SamplePool, classes_by_key
from stepward.prm.evaluation.intervals import Bootstrap, Measure, bootstrap_ratio
from stepward.prm.evaluation.page import standalone
from stepward.prm.evaluation.svg import Series, interval_chart, line_chart
from stepward.prm.evaluation.votes import best_is_right, ends_of, random_orders, total_at, vote_is_right
from stepward.prm.models.load import load
from stepward.prm.policy import SampleRequest
from stepward.prm.problems import read_problems
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import Outcome, Prefix, Problem, Sampler
from stepward.verifiers.answer import Grader

TUNING, REPORTED, CHUNK = 60, 350, 175
"""The quickstart's tuning problems are left out; the next 350 a seed are reported, 175 a file."""
MEAN_TOKENS = 30
"""Tokens of a sampled solution, on average (29.8 on seed 0)."""

METHODS: dict[str, dict[int, dict[str, Any]]] = {
    "beam": {8: {"beams": 2, "samples": 2}, 32: {"beams": 4, "samples": 3}},
    "particles": {8: {"particles": 4}, 32: {"particles": 12}},
    "greedy": {8: {"samples": 3}, 32: {"samples": 3}},
    "dvts": {8: {"subtrees": 1, "width": 2}, 32: {"subtrees": 4, "width": 3}},
    "best_first": {8: {"samples": 2}, 32: {"samples": 3}},
    "rest_mcts": {8: {"width": 2}, 32: {"width": 3}},
    "stepco": {8: {"threshold": 0.5}, 32: {"threshold": 0.5}},
    "aca": {8: {"first": 2, "more": 2, "total": 8}, 32: {"first": 4, "more": 4, "total": 16}},
    "vgs": {
        8: {"block_tokens": 10, "subtrees": 1, "width": 2},
        32: {"block_tokens": 10, "subtrees": 4, "width": 2},
    },
}


def trained_prm(parts: Path, seed: int) -> Path:
    """The quickstart's PRM of that seed."""
    folder, data = parts / f"prm-{seed}", parts / f"labels-{seed}"
    if not (folder / "prm.json").exists():
        config = parse(
            LabelConfig, "quickstart", problems=f"generator:900?split=label&level=demo&seed={seed}", out=data, seed=seed
        )  # fmt: skip
        if not nothing_left(config):
            asyncio.run(label(config, resume=(data / "manifest.partial.json").exists()))
        base = {"base": "embedded", "reference": "embedded", "seed": seed}
        train(parse(TrainConfig, "quickstart-train", data=data, out=folder, **base))
    return folder


def held_out(seed: int) -> list[Problem]:
    """The reported problems: those after the quickstart's 60 tuning problems."""
    name = f"generator:{TUNING + REPORTED}?split=held_out&level=demo&seed={seed}"
    return list(islice(read_problems(name), TUNING + REPORTED))[TUNING:]


async def pool_chunk(parts: Path, seed: int, first: int, last: int, chunk: int) -> None:
    """Samples ``first`` to ``last`` of one file's worth of problems with their step scores, one row a sample.

    They are the solutions that ``stepward label`` samples under that seed. Samples of the same ids are graded and
    scored once: at temperature 1 the policy writes nearly half of its solutions more than once.
    """
    path = parts / f"pool-{seed}-{first}-{last}-{chunk}.json"
    if path.exists():
        return
    began = time.process_time()
    policy = load_transformers(embedded_folder(), batch_size=512)
    template = prompt_template(None, embedded_folder())
    problems = held_out(seed)[chunk * CHUNK : (chunk + 1) * CHUNK]
    drawn = await asyncio.gather(
        *(
            policy.sample(
                SampleRequest(
                    Prefix(p.id, template.render(p, policy.tokenizer).ids),
                    Sampler(temperature=1.0, max_tokens=120),
                    derive_seed(seed, p.id, "solution", i),
                    i,
                )
            )
            for p in problems
            for i in range(first, last)
        )
    )
    tokenizer = policy.tokenizer
    await policy.close()
    by_id = {p.id: p for p in problems}
    kinds = {(r.problem_id, r.token_ids): r for r in drawn}
    steps = {k: [s.text for s in StepFormat().split_ids(k[1], tokenizer)] for k in kinds}
    able = [k for k in kinds if steps[k]]
    scored = load(trained_prm(parts, seed)).score([by_id[k[0]] for k in able], [steps[k] for k in able])
    scores = dict(zip(able, scored, strict=True))
    grader = Grader()
    grades = {k: grader.grade_exactly(by_id[k[0]], r.text, r.finish_reason) for k, r in kinds.items()}
    keys = [(r.problem_id, r.token_ids) for r in drawn]
    table = [
        {
            "problem": k[0], "answer": grades[k].answer, "outcome": grades[k].outcome.value, "tokens": len(k[1]),
            "scores": list(scores.get(k, (0.0,))),
        }
        for k in keys
    ]  # fmt: skip
    path.write_text(json.dumps(table))
    spent = time.process_time() - began
    print(f"pool {seed} {first}-{last} chunk {chunk}: {len(kinds)} kinds, {spent:.0f} CPU s", flush=True)


async def search_chunk(parts: Path, seed: int, method: str, samples: int, chunk: int) -> None:
    """One method at one budget on one file's worth of problems."""
    path = parts / f"search-{seed}-{method}-{samples}-{chunk}.json"
    if path.exists():
        return
    began, clock = time.process_time(), time.perf_counter()
    policy = load_transformers(embedded_folder(), batch_size=128)
    template = prompt_template(None, embedded_folder())
    prm = load(trained_prm(parts, seed))
    problems = held_out(seed)[chunk * CHUNK : (chunk + 1) * CHUNK]
    prompts = [(p, template.render(p, policy.tokenizer).ids) for p in problems]
    plan = SearchPlan(
        make_search(method, **METHODS[method][samples]),
        Sampler(temperature=1.0, max_tokens=64),
        StepFormat(),
        product,
        budget_tokens=samples * MEAN_TOKENS,
        max_step_tokens=12,
        seed=seed,
    )
    grader, rows = Grader(), list[dict[str, Any]]()
    found = search_all(prompts, plan, policy, prm, in_flight=128)
    async for result in found:
        problem = problems[len(rows)]
        row = {"problem": problem.id, "generated": result.generated_tokens, "scored": result.scored_tokens}
        for which in ("answer", "best"):
            index = getattr(result, which)
            row[which] = (
                index is not None
                and grader.grade_exactly(problem, result.candidates[index].text).outcome is Outcome.RIGHT
            )
        rows.append(row)
    await policy.close()
    spent = time.process_time() - began
    path.write_text(json.dumps({"cpu_s": spent, "rows": rows}))
    right = sum(r["answer"] for r in rows) / len(rows)
    print(
        f"{method} {samples} seed {seed} chunk {chunk}: {right:.3f}, {spent:.0f} CPU s, "
        f"{time.perf_counter() - clock:.0f} s",
        flush=True,
    )


def pool_rows(parts: Path, seed: int, samples: int) -> dict[str, dict[str, tuple[float, float]]]:
    """(accuracy, tokens) by method and problem at the cost of ``samples`` samples, averaged over 32 orders.

    Majority has the first ``samples`` samples; methods that need scores have as many as fit into the tokens.
    """
    import numpy as np

    pools: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(parts.glob(f"pool-{seed}-*.json")):
        for row in json.loads(path.read_text()):
            pools.setdefault(row["problem"], []).append(row)
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for name, rows in pools.items():
        if len(rows) < samples:
            continue
        pool = SamplePool(
            name,
            classes_by_key([r["answer"] for r in rows], str.strip),
            tuple(r["outcome"] == "right" for r in rows),
            tuple(r["tokens"] for r in rows),
            tuple(tuple(r["scores"]) for r in rows),
        )
        rng = np.random.default_rng(int(name, 16) % 2**63)
        n = len(rows)
        orders = random_orders(n, 32, rng)
        classes = np.array([-1 if c is None else c for c in pool.classes])
        right, tokens = np.array(pool.right, bool), np.array(pool.tokens)[orders].cumsum(axis=1)
        values = np.array([product(s) for s in pool.scores])
        ties = rng.random((32, n))
        free = ends_of(tokens, [min(samples, n)], "samples")
        paid = ends_of(2 * tokens, [samples * MEAN_TOKENS], "tokens")
        hits = {
            "majority": (vote_is_right(orders, classes, np.ones(n), right, free, ties), total_at(tokens, free)),
            "best of N": (best_is_right(orders, classes, values, right, paid, ties), 2 * total_at(tokens, paid)),
            "weighted vote": (vote_is_right(orders, classes, values, right, paid, ties), 2 * total_at(tokens, paid)),
        }  # fmt: skip
        for method, (hit, spent) in hits.items():
            out.setdefault(method, {})[name] = (float(hit.mean()), float(spent.mean()))
    return out


def search_rows(parts: Path, seed: int, method: str, samples: int) -> dict[str, tuple[float, float]]:
    """(right, tokens) by problem of the chunks that are there."""
    out: dict[str, tuple[float, float]] = {}
    for path in sorted(parts.glob(f"search-{seed}-{method}-{samples}-*.json")):
        for row in json.loads(path.read_text())["rows"]:
            out[row["problem"]] = (float(row["answer"]), float(row["generated"] + row["scored"]))
    return out


def collect(parts: Path, seeds: list[int], samples: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Everything at one cost: method -> "seed problem" -> (accuracy, tokens)."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for seed in seeds:
        tables = pool_rows(parts, seed, samples)
        tables |= {m: search_rows(parts, seed, m, samples) for m in METHODS}
        for method, rows in tables.items():
            for problem, row in rows.items():
                found.setdefault(method, {})[f"{seed} {problem}"] = row
    return found


def mean_of(values: list[float], names: list[str]) -> Measure:
    """Mean with its interval over problems."""
    import numpy as np

    return bootstrap_ratio(np.array(values), np.ones(len(values)), names, Bootstrap(), "search")


def report(parts: Path, seeds: list[int], figures: Path | None) -> None:
    """The table, results/search.json and the plot, from the parts that are there."""
    rows: list[Row] = []
    lines: dict[str, list[tuple[float, Measure]]] = {}
    gains: list[tuple[str, list[tuple[str, Measure]]]] = []
    for samples in (2, 4, 8, 16, 32):
        found = collect(parts, seeds, samples)
        majority = found.get("majority")
        if majority is None:
            continue
        gains.append((f"at the cost of {samples} samples", []))
        print(
            f"\n| at the cost of {samples} samples | accuracy | over majority, paired | "
            f"seed {', '.join(map(str, seeds))} | tokens | problems |\n| --- | --- | --- | --- | --- | --- |"
        )
        for method, by_problem in found.items():
            names = [n for n in by_problem if n in majority]
            if not names:
                continue
            accuracy = mean_of([by_problem[n][0] for n in names], names)
            over = mean_of([by_problem[n][0] - majority[n][0] for n in names], names)
            tokens = sum(by_problem[n][1] for n in names) / len(names)
            own = {s: [n for n in names if n.startswith(f"{s} ")] for s in seeds}
            gaps = {
                s: sum(by_problem[n][0] - majority[n][0] for n in part) / len(part)
                for s, part in own.items()
                if part
            }
            base = sum(majority[n][0] for n in names) / len(names)
            aside = f" (same problems: {base:.3f})" if len(names) < len(majority) else ""
            by_seed = ", ".join(f"{gaps[s]:+.3f}" if s in gaps else "–" for s in seeds)
            compared = "" if method == "majority" else str(over)
            print(
                f"| {method} | {accuracy}{aside} | {compared} | {by_seed if compared else ''} | {tokens:.0f} | "
                f"{len(names):,} |"
            )
            lines.setdefault(method, []).append((float(round(tokens)), accuracy))
            if samples not in (8, 32):
                continue  # searches run at these two; the pool's curves have more points
            if method != "majority":
                gains[-1][1].append((f"{method} ({len(names):,})", over))
            if method == "majority":
                rows.append(Row(f"accuracy of majority at the cost of {samples} samples", accuracy.value))
                continue
            named = f"{method} over majority at the cost of {samples} samples, {len(names)} problems"
            must = method in ("best of N", "weighted vote", "beam", "particles")
            rows.append(Row(named, over.value))
            rows.append(
                Row(
                    f"  lower end of its 95 % interval, {method} {samples}",
                    over.low,
                    None,
                    0.0 if must else None,
                )
            )
            rows += [
                Row(f"  seed {s}, {len(own[s])} problems, {method} {samples}", gap) for s, gap in gaps.items()
            ]
    write("search", rows)
    if figures is not None:
        shown = ["majority", "best of N", "weighted vote", *METHODS]
        curves = line_chart(
            [Series(m, tuple(lines[m])) for m in shown if m in lines],
            title="Accuracy against tokens",
            x_name="tokens a problem, generated and scored",
            y_name="accuracy",
        )
        (figures / "search_curves.svg").write_text(standalone(curves))
        chart = interval_chart(
            [g for g in gains if g[1]],
            title="Accuracy over majority vote at equal tokens",
            x_name="accuracy minus majority's, paired (problems in brackets)",
            low=None,
            high=None,
            coloured=False,
        )
        (figures / "search.svg").write_text(standalone(chart))


def main() -> None:
    """Do what is missing, in order of importance; then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=Path, default=Path("runs/search"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--costs", type=int, nargs="+", default=[8, 32], help="in samples")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--chunks", type=int, nargs="+", default=list(range(REPORTED // CHUNK)))
    parser.add_argument(
        "--pool", type=int, nargs="*", default=[8, 32], help="ends of the ranges of samples stored"
    )
    parser.add_argument("--report", action="store_true", help="only report what is there")
    parser.add_argument("--no-report", action="store_true", help="only do what is missing")
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    if not options.report:
        for first, last in pairwise([0, *options.pool]):
            for seed in options.seeds:
                for chunk in options.chunks:
                    asyncio.run(pool_chunk(options.parts, seed, first, last, chunk))
        for samples in options.costs:
            for method in options.methods:
                for seed in options.seeds:
                    for chunk in options.chunks:
                        asyncio.run(search_chunk(options.parts, seed, method, samples, chunk))
    if not options.no_report:
        report(options.parts, options.seeds, options.figures)


if __name__ == "__main__":
    main()
