"""The viewer: what it lists against the records themselves, who may ask, and how it behaves in a browser."""

import http.client
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import pytest

from stepward.flows.viewer.server import ViewerServer, discover
from stepward.flows.viewer.source import clean, shorten
from stepward.flows.viewer.summaries import LEAVES, summarize
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import InputError
from stepward.prm.types import LabeledSolution, Outcome, VerdictKind


def _data() -> ModuleType:
    """viewer_data.py beside this file; tests are no package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("viewer_data", Path(__file__).with_name("viewer_data.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["viewer_data"] = module
    spec.loader.exec_module(module)
    return module


data = _data()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("viewer")
    data.make_dataset(place / "dataset")
    data.make_results(place / "evaluation")
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewerServer]:
    with ViewerServer(*discover(folder)) as served:
        thread = threading.Thread(target=lambda: served.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def get(
    server: ViewerServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    named = {k.lower(): v for k, v in answer.getheaders()}
    connection.close()
    kind = named.get("content-type", "")
    return answer.status, json.loads(body) if kind == "application/json" else body, named


def page(server: ViewerServer, folder: str = "dataset", **given: object) -> dict[str, Any]:
    status, body, _ = get(server, "/api/page?" + urlencode({"folder": folder, "limit": 500, **given}))
    assert status == 200, body
    return body


def ids(answer: dict[str, Any]) -> list[str]:
    return [row["id"] for row in answer["rows"]]


# --- what is listed


@pytest.fixture(scope="module")
def records(folder: Path) -> list[LabeledSolution]:
    return list(open_dataset(folder / "dataset").solutions())


def test_the_list_begins_as_stored_and_counts_all(
    server: ViewerServer, records: list[LabeledSolution]
) -> None:
    answer = page(server, limit=50)
    assert answer["total"] == len(records) == 160
    assert ids(answer) == [r.solution.id for r in records[:50]]
    assert answer["rows"][1]["strip"] == [0.7, 0.05, 0.02]
    assert answer["rows"][3]["strip"] == [0.5, None]  # a value that is not known is no value of 0
    assert ids(page(server, offset=70, limit=25)) == [
        r.solution.id for r in records[70:95]
    ]  # over a shard's end


def conflict(record: LabeledSolution) -> float | None:
    """By the definition: value after a refuted step, drop at a supported one, the greatest."""
    found = []
    for t, label in enumerate(record.labels):
        before, after = record.prefixes[t].value, record.prefixes[t + 1].value
        kinds = {v.kind for v in label.verdicts}
        if VerdictKind.REFUTED in kinds and after is not None:
            found.append(after)
        if VerdictKind.SUPPORTED in kinds and before is not None and after is not None:
            found.append(before - after)
    return max(found, default=None)


def unknown(record: LabeledSolution) -> bool:
    return any(label.label is None for label in record.labels)


def decided(record: LabeledSolution, kind: VerdictKind) -> bool:
    return any(v.kind is kind for label in record.labels for v in label.verdicts)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({"outcome": "wrong"}, lambda r: r.solution.outcome is Outcome.WRONG),
        ({"outcome": "truncated"}, lambda r: r.solution.outcome is Outcome.TRUNCATED),
        ({"outcome": "none"}, lambda r: r.solution.outcome is None),
        ({"labels": "error"}, lambda r: r.first_error is not None),
        ({"labels": "clean"}, lambda r: r.first_error is None and not unknown(r)),
        ({"labels": "unknown"}, unknown),
        ({"verdicts": "refuted"}, lambda r: decided(r, VerdictKind.REFUTED)),
        ({"verdicts": "silent"}, lambda r: not decided(r, VerdictKind.REFUTED)
         and not decided(r, VerdictKind.SUPPORTED)),
        ({"conflict": "returns"}, lambda r: (conflict(r) or 0) > 0.5),
        ({"conflict": "outcome"}, lambda r: r.first_error is not None and r.solution.outcome is Outcome.RIGHT),
        ({"problem": "p7"}, lambda r: r.problem.id == "p7"),
        ({"search": "PROBLEM 11:"}, lambda r: r.problem.id == "p11"),
        ({"search": "p3-"}, lambda r: r.solution.id.startswith("p3-")),
        ({"search": "<script>"}, lambda r: r.problem.id == "p0"),
        ({"search": ".*"}, lambda r: False),  # text, not a pattern
        ({"outcome": "right", "verdicts": "refuted"}, lambda r: r.solution.outcome is Outcome.RIGHT
         and decided(r, VerdictKind.REFUTED)),
    ],
)  # fmt: skip
def test_filters_list_exactly_the_rows_that_hold(
    server: ViewerServer, records: list[LabeledSolution], given: dict[str, str], holds: Any
) -> None:
    answer = page(server, **given)
    assert ids(answer) == [r.solution.id for r in records if holds(r)]
    assert answer["total"] == len(answer["rows"])


def test_sorts_order_by_what_they_say(server: ViewerServer, records: list[LabeledSolution]) -> None:
    by_id = {r.solution.id: r for r in records}
    conflicts = [conflict(by_id[i]) for i in ids(page(server, sort="conflict"))]
    assert len(conflicts) == 120  # rows without any decided verdict are not in the list
    assert conflicts == sorted(conflicts, reverse=True)
    assert conflicts[0] == pytest.approx(0.8)
    lowest = [
        min(p.value for p in by_id[i].prefixes if p.value is not None)
        for i in ids(page(server, sort="value_lowest"))
    ]
    assert lowest == sorted(lowest)
    assert len(ids(page(server, sort="largest_drop"))) == 160


def test_summaries_hold_the_numbers_of_the_records(folder: Path, records: list[LabeledSolution]) -> None:
    dataset = open_dataset(folder / "dataset")
    summary = summarize(dataset.files()[1], 1)
    for row, record in zip(summary.frame.to_dicts(), records[40:80], strict=True):
        values = [p.value for p in record.prefixes]
        known = [v for v in values if v is not None]
        drops = [a - b for a, b in pairwise(values) if a is not None and b is not None]
        assert row["solution_id"] == record.solution.id
        assert row["value_start"] == values[0]
        assert row["value_end"] == values[-1]
        assert row["value_lowest"] == min(known)
        assert row["largest_drop"] == pytest.approx(max(drops))
        assert row["widest"] == pytest.approx(
            max(p.high - p.low for p in record.prefixes if p.value is not None)
        )
        assert row["conflict"] == (None if conflict(record) is None else pytest.approx(conflict(record)))
        assert row["num_unknown_labels"] == sum(label.label is None for label in record.labels)
        assert row["generated_tokens"] == record.generated_tokens


def test_no_text_and_no_token_is_read_for_the_list() -> None:
    assert not any("text" in leaf or "token_ids" in leaf or leaf == "problem" for leaf in LEAVES)


def test_a_solution_shows_all_that_its_row_holds(
    server: ViewerServer, records: list[LabeledSolution]
) -> None:
    record = records[1]
    _, shown, _ = get(server, "/api/solution?" + urlencode({"folder": "dataset", "id": record.solution.id}))
    assert [s["text"] for s in shown["steps"]] == [s.text for s in record.solution.steps]
    assert [p["value"] for p in shown["prefixes"]] == [p.value for p in record.prefixes]
    assert shown["prefixes"][0]["counts"] == {"right": 5, "wrong": 3}
    assert shown["first_error"] == 1
    assert shown["steps"][1]["label"] == 0
    assert shown["steps"][1]["verdicts"][0]["verdict"] == "refuted"
    assert shown["steps"][1]["verdicts"][0]["span"] == {"start": 3, "end": 13}
    assert shown["answers"] == ["12"]
    assert shown["final_answer"] == "11"


def test_rollouts_of_a_prefix_come_in_order_with_whole_seeds(server: ViewerServer) -> None:
    _, body, _ = get(server, "/api/rollouts?" + urlencode({"folder": "dataset", "id": "p5-1", "prefix": 2}))
    rollouts = body["rollouts"]
    assert [r["index"] for r in rollouts] == [0, 1]
    assert rollouts[1]["seed"] == str(2**62 + 1)  # more than a page's numbers can tell apart
    assert rollouts[0]["text"].startswith("continuation 0 of prefix 2")
    _, body, _ = get(server, "/api/rollouts?" + urlencode({"folder": "dataset", "id": "p5-1", "prefix": 9}))
    assert body["rollouts"] == []


def test_the_tree_has_every_solution_of_the_problem(server: ViewerServer) -> None:
    _, body, _ = get(server, "/api/problem?" + urlencode({"folder": "dataset", "id": "p7"}))
    assert [s["id"] for s in body["solutions"]] == ["p7-0", "p7-1", "p7-2", "p7-3"]
    assert body["solutions"][0]["steps"][0] == {"text": "Add: 2 + 2 = 4.", "label": 1, "value": 0.7}


def test_evaluated_items_are_told_by_what_the_human_says(server: ViewerServer) -> None:
    # Odd items are erroneous at k % 3; those with k % 4 == 1 are called wrong at step 1, the others missed.
    missed = [f"item-{k}" for k in range(20) if k % 4 == 3]
    exact = [f"item-{k}" for k in range(20) if k % 4 == 1 and k % 3 == 1]
    late = [f"item-{k}" for k in range(20) if k % 4 == 1 and k % 3 == 0]
    early = [f"item-{k}" for k in range(20) if k % 4 == 1 and k % 3 == 2]
    assert ids(page(server, "evaluation", kind="missed")) == missed
    assert ids(page(server, "evaluation", kind="exact")) == exact
    assert ids(page(server, "evaluation", kind="too_late")) == late
    assert ids(page(server, "evaluation", kind="too_early")) == early
    assert sorted(ids(page(server, "evaluation", kind="disagree"))) == sorted([*missed, *late, *early])
    assert ids(page(server, "evaluation", subset="easy")) == [f"item-{k}" for k in range(0, 20, 2)]
    surest = ids(page(server, "evaluation", sort="disagreement"))
    # 0.9 at the gold step 0 (missed, or named too late) is the surest mistake
    assert set(surest[:3]) == {i for i in [*missed, *late] if int(i[5:]) % 3 == 0}
    _, shown, _ = get(server, "/api/solution?" + urlencode({"folder": "evaluation", "id": "item-1"}))
    assert shown["human"] == {"first_error": 1}
    assert next(iter(shown["predictions"].values())) == {"first_error": 1, "kind": "first error named"}
    assert [p["value"] for p in shown["prefixes"]] == [None, 0.9, 0.2, 0.1]


def test_folders_and_evaluation_pages_are_found(server: ViewerServer, folder: Path, tmp_path: Path) -> None:
    _, body, _ = get(server, "/api/folders")
    assert [(f["name"], f["kind"], f["count"]) for f in body["folders"]] == [
        ("dataset", "dataset", 160),
        ("evaluation", "results", 20),
    ]
    assert body["reports"] == ["evaluation"]
    status, report, headers = get(server, "/report/evaluation")
    assert status == 200
    assert report == (folder / "evaluation" / "report.html").read_bytes()
    assert "script-src" not in headers["content-security-policy"]  # default-src 'none' holds for scripts
    with pytest.raises(InputError, match="holds neither a dataset"):
        discover(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        discover(tmp_path / "nowhere")
    sources, _ = discover(folder / "dataset")
    assert [s.name for s in sources] == ["dataset"]


def test_what_is_not_there_is_not_found_and_faults_are_told(server: ViewerServer) -> None:
    assert get(server, "/api/solution?folder=dataset&id=none")[0] == 404
    assert get(server, "/api/page?folder=other")[0] == 404
    assert get(server, "/api/other?folder=dataset")[0] == 404
    status, body, _ = get(server, "/api/page?folder=dataset&offset=x")
    assert status == 500
    assert "invalid literal" in body["error"]
    assert page(server)["total"] == 160  # and the server lives on


# --- who may ask, and for what


def test_only_this_machine_by_its_own_name_is_answered(server: ViewerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    assert get(server, "/", Host="evil.example")[0] == 403
    assert get(server, "/api/folders", Host=f"evil.example:{port}")[0] == 403
    assert get(server, "/api/folders", Origin="http://evil.example")[0] == 403
    assert get(server, "/api/folders", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/static/../server.py", "/%2e%2e/server.py", "/report/../../manifest.json", "/report/..%2f..",
     "/app.js/../server.py", "//etc/passwd"],
)  # fmt: skip
def test_no_path_leads_out_of_what_is_served(server: ViewerServer, path: str) -> None:
    assert get(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(server: ViewerServer, method: str) -> None:
    assert get(server, "/api/folders", method)[0] == 501


def test_the_page_may_run_its_own_script_and_ask_its_own_server_only(server: ViewerServer) -> None:
    for path in ("/", "/app.js", "/detail.js", "/tree.js", "/style.css", "/api/folders"):
        status, _, headers = get(server, path)
        assert status == 200
        policy = headers["content-security-policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
        )
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_way_to_parse_text_as_html() -> None:
    static = Path(sys.modules[ViewerServer.__module__].__file__ or "").parent / "static"
    for script in static.glob("*.js"):
        source = script.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "srcdoc",
            "http://",
            "https://",
        ):
            assert word not in source.replace("http://www.w3.org/2000/svg", ""), (script.name, word)
    page_source = (static / "index.html").read_text()
    assert "http" not in page_source  # no asset from elsewhere


def test_values_that_json_has_no_word_for_become_null() -> None:
    assert clean({"a": float("nan"), "b": (1.0, float("inf")), "c": None}) == {
        "a": None,
        "b": [1.0, None],
        "c": None,
    }
    assert shorten("a\n b  " + "x" * 200, 10) == "a b xxxxx…"
