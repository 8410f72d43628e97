"""The labelling run: same bytes however it is interrupted, nothing lost, nothing counted wrong that is not."""

import asyncio
import json
from pathlib import Path

import pytest
from benchmarks.soak import write_inputs

from stepward.flows import label as label_module
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.flows.part import Part
from stepward.flows.problems import problems_of
from stepward.flows.resumption import nothing_left
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import ConfigError, EngineError, ProblemFileError, StoreError
from stepward.prm.types import Outcome

PROBLEMS = 7


@pytest.fixture
def config(tmp_path) -> LabelConfig:
    """Seven sums; each has two logged solutions of three lines and two logged rollouts at every prefix."""
    write_inputs(tmp_path, PROBLEMS)
    return LabelConfig(
        problems=str(tmp_path / "problems.jsonl"),
        out=tmp_path / "out",
        policy=f"replay:{tmp_path / 'log.jsonl'}",
        num_solutions=2,
        allocation="fixed_k",
        num_rollouts=2,
        labeler="math_shepherd",
        shard_problems=3,
    )


def run(config: LabelConfig, **options):
    return asyncio.run(label(config, **options))


def content(folder: Path) -> dict[str, bytes]:
    """All bytes of a dataset but the metrics, which hold times, and the lock."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
        and "metrics" not in p.name
        and ".metrics" not in p.parts
        and not p.name.startswith(".")
    }


def test_a_run_labels_every_problem_and_keeps_every_rollout(config):
    progress = run(config)
    dataset = open_dataset(config.out)
    rows = list(dataset.solutions())
    assert (progress.problems, len(rows)) == (PROBLEMS, 2 * PROBLEMS)
    # a solution is a rollout at the root, and each of its prefixes 1 and 2 has two more
    assert len(list(dataset.rollouts())) == 2 * PROBLEMS * (1 + 4)
    wrong = next(r for r in rows if r.solution.outcome is Outcome.WRONG and r.problem.id == "sum-3")
    # at each prefix of the wrong solution one of two rollouts is right: "any right" keeps its steps, the last is wrong
    assert [p.counts.right for p in wrong.prefixes] == [1, 1, 1, 0]
    assert [x.label for x in wrong.labels] == [1, 1, 0]
    assert wrong.first_error == 2
    assert nothing_left(config) is not None


def test_an_engine_that_dies_in_the_middle_loses_nothing_and_the_resumed_bytes_are_the_same(
    config, monkeypatch, tmp_path
):
    run(config)
    whole = content(config.out)
    broken = config.model_copy(update={"out": tmp_path / "broken"})
    real, calls = label_module.annotate, []

    async def counted(problem, *rest, **options):
        result = await real(problem, *rest, **options)
        calls.append(problem.id)
        return result

    async def dies(problem, *rest, **options):
        if problem.id == "sum-4":
            await asyncio.sleep(0.05)
            raise EngineError("the engine is gone")
        return await counted(problem, *rest, **options)

    monkeypatch.setattr(label_module, "annotate", dies)
    with pytest.raises(EngineError, match="gone"):
        run(broken)
    first = list(calls)
    calls.clear()
    monkeypatch.setattr(label_module, "annotate", counted)
    run(broken, resume=True)
    assert content(broken.out) == whole
    assert sorted(first + calls) == [f"sum-{i}" for i in range(PROBLEMS)], "no problem was paid for twice"


def test_a_token_budget_stops_at_a_problem_boundary_and_can_be_gone_on_with(config, tmp_path):
    run(config)
    whole = content(config.out)
    total = open_dataset(config.out).manifest.totals.generated_tokens
    small = config.model_copy(update={"out": tmp_path / "small", "budget_tokens": total // 2})
    progress = run(small)
    assert progress.stopped is not None
    assert "tokens is spent" in progress.stopped
    assert 0 < progress.problems < PROBLEMS
    assert progress.tokens <= total // 2
    with pytest.raises(StoreError, match="not finished"):
        open_dataset(small.out)
    rest = run(small.model_copy(update={"budget_tokens": None}), resume=True)
    assert rest.found + rest.problems == PROBLEMS
    assert rest.problems == PROBLEMS - progress.problems
    assert content(small.out) == whole


def test_a_folder_of_another_run_is_refused_by_name(config):
    run(config)
    with pytest.raises(StoreError, match="--resume"):
        run(config)
    with pytest.raises(StoreError, match="another run"):
        run(config.model_copy(update={"seed": 1}), resume=True)
    run(config.model_copy(update={"seed": 1}), overwrite=True)


def test_a_problem_without_gold_is_kept_and_never_counted_as_wrong(config):
    path = Path(config.problems)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[2]["answer"]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    progress = run(config)
    assert progress.outcomes[Outcome.NO_GOLD] == 2
    assert progress.outcomes[Outcome.RIGHT] + progress.outcomes[Outcome.WRONG] == 2 * (PROBLEMS - 1)
    kept = [r for r in open_dataset(config.out).solutions() if r.problem.id == "sum-2"]
    assert [[x.label for x in r.labels] for r in kept] == [[None] * 3] * 2
    assert all(r.first_error is None for r in kept)


def test_bad_problem_files_are_named_with_their_line(config, tmp_path):
    path = Path(config.problems)
    good = path.read_text().splitlines()
    for lines, words in (
        ([*good, '{"question": "cut'], f"{path.name}:{PROBLEMS + 1}"),
        ([*good, good[0]], "sum-0"),
        ([*good, '{"id": "x", "question": "  ", "answer": "1"}'], "empty"),
    ):
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(ProblemFileError, match=words):
            run(config)
        assert not config.out.exists(), "nothing is written before the input is known to be good"
    path.write_text("")
    with pytest.raises((ConfigError, ProblemFileError)):
        run(config)


def test_solutions_that_the_user_has_are_labelled_and_marked_as_encoded(config, tmp_path):
    mine = tmp_path / "mine.jsonl"
    rows = [
        {"problem": "What is 1 + 1?", "steps": ["We add 1 and 1.", "The answer is 2."], "generator": "me"},
        {"problem_id": "sum-2", "solution": "We add 2 and 2.\n2 + 2 = 5.\nThe answer is 5."},
    ]
    mine.write_text("\n".join(map(json.dumps, rows)) + "\n")
    run(config.model_copy(update={"solutions": mine, "allocation": "none", "num_rollouts": 0}))
    got = {r.problem.id: r for r in open_dataset(config.out).solutions()}
    assert set(got) == {"sum-1", "sum-2"}
    assert [s.text for s in got["sum-1"].solution.steps] == ["We add 1 and 1.", "The answer is 2."]
    assert got["sum-1"].solution.outcome is Outcome.RIGHT
    assert got["sum-2"].solution.outcome is Outcome.WRONG
    assert {r.solution.ids_from for r in got.values()} == {"encoded"}


@pytest.mark.slow
def test_two_workers_write_the_same_bytes_as_one(config, tmp_path):
    run(config)
    other = config.model_copy(update={"out": tmp_path / "two", "workers": 2})
    run(other)
    assert content(other.out) == content(config.out)


def test_parts_of_several_processes_make_the_same_bytes_and_the_last_one_seals(config, tmp_path):
    run(config)
    parts = config.model_copy(update={"out": tmp_path / "parts"})
    third = run(parts, part=Part(3, 3))  # shard 2, which holds the seventh problem alone
    assert (third.problems, third.total_problems, third.shards_left) == (1, 1, 2)
    assert nothing_left(parts) is None
    first = run(parts, part=Part(1, 3))
    assert (first.problems, first.shards_left) == (3, 1)
    last = run(parts, part=Part(1, 1))  # takes whatever is left
    assert (last.problems, last.found, last.shards_left) == (3, 4, 0)
    assert content(parts.out) == content(config.out)
    assert nothing_left(parts) is not None


def test_a_shard_that_another_process_is_at_is_left_to_it(config, tmp_path):
    part = Part(1, 1)
    progress = []

    def watch(_):
        # While this run is in its first shard, another one of the same run comes and does the others.
        if not progress:
            progress.append(None)
            progress.append(asyncio.run_coroutine_threadsafe(label(config, part=part), loop))

    async def both():
        nonlocal loop
        loop = asyncio.get_running_loop()
        mine = await label(config, part=part, watch=watch)
        return mine, await asyncio.wrap_future(progress[1])

    loop = None
    mine, other = asyncio.run(both())
    assert mine.problems + other.problems == PROBLEMS
    assert open_dataset(config.out).manifest.fingerprint is not None
    run(config.model_copy(update={"out": tmp_path / "alone"}))
    assert content(config.out) == content(tmp_path / "alone")


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "-1/3", "1/0", "1.5/2"])
def test_a_part_that_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="i/n"):
        Part.parse(text)
    assert Part.parse("3/8").holds(2)


def test_folds_share_no_problem_and_hold_all_of_them(config):
    folds = [[p.id for p in problems_of(config.model_copy(update={"fold": f"{i}/3"}))] for i in (1, 2, 3)]
    assert sorted(p for fold in folds for p in fold) == sorted(p.id for p in problems_of(config))
    assert folds == [
        [p.id for p in problems_of(config.model_copy(update={"fold": f"{i}/3"}))] for i in (1, 2, 3)
    ]
    with pytest.raises(ConfigError, match="fold 1/1000"):
        problems_of(config.model_copy(update={"fold": "1/1000"}))
