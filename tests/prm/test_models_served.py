"""A served reward model against a stand-in: whatever is not one row of scores an id is an error, never a score."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaModel

from stepward.prm.errors import EngineError, ModelError
from stepward.prm.models.discriminative import DiscriminativePRM
from stepward.prm.models.folder import PrmDescription, save_prm
from stepward.prm.models.heads import build_head, head_spec
from stepward.prm.models.inputs import InputRefused
from stepward.prm.models.load import load
from stepward.prm.models.served import load_served, probability
from stepward.prm.models.serving import serving_arguments
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import Problem

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


def checkpoint(folder: Path, kind: str, vocab: int = 258) -> Path:
    """An untrained reward model on a byte tokenizer."""
    base = folder / "base"
    base.mkdir(parents=True)
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(base / "tokenizer.json"))
    (base / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    spec = head_spec(kind)
    model = DiscriminativePRM(LlamaModel(config), build_head(16, spec))
    save_prm(folder / kind, model, PrmDescription(spec, StepFormat()), tokenizer_from=base)
    return folder / kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("served"), "two_class")


class Server:
    """Speaks what the client asks of vLLM: models, tokenize, pooling. ``pooling`` may be replaced by a test."""

    def __init__(self, folder: Path) -> None:
        self.card: dict[str, Any] = {"id": "prm", "root": str(folder), "max_model_len": 256}
        self.key: str | None = None
        self.tokenizer = load_tokenizer(folder)
        self.asked: list[dict[str, Any]] = []
        self.pooling: Answer = by_id
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, {"data": [stand_in.card]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/tokenize":
                    self.reply(200, {"tokens": list(stand_in.tokenizer.encode(body["prompt"]))})
                else:
                    stand_in.asked.append(body)
                    self.reply(*stand_in.pooling(body))

            def reply(self, status: int, answer: Any) -> None:
                if stand_in.key and self.headers.get("authorization") != f"Bearer {stand_in.key}":
                    status, answer = 401, {"error": "Unauthorized"}
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def rows(data: Any) -> tuple[int, Any]:
    return 200, {"object": "list", "model": "prm", "data": [{"index": 0, "object": "pooling", "data": data}]}


def by_id(body: dict[str, Any]) -> tuple[int, Any]:
    """Row i holds (0, i / 100): the score of a step tells where it was read."""
    return rows([[0.0, i / 100] for i in range(len(body["input"]))])


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_step_is_scored_at_its_last_id_from_raw_outputs(server: Server) -> None:
    model = load("vllm:" + server.url)
    (scores,) = model.score(["ab"], [["c", "de"]])
    encoded = model.inputs.encode(Problem("", "ab"), ["c", "de"])  # type: ignore[union-attr]
    # sigmoid of the two classes' difference, which the stand-in makes position / 100.
    assert scores == pytest.approx([1 / (1 + math.exp(-end / 100)) for end in encoded.step_ends])
    body = server.asked[-1]
    assert body["input"] == list(encoded.token_ids)
    assert (body["task"], body["use_activation"], body["model"]) == ("token_classify", False, "prm")


def test_probabilities_of_heads_and_of_huge_logits() -> None:
    assert probability("scalar", [0.0]) == 0.5
    assert probability("two_class", [math.log(3), 0.0]) == pytest.approx(0.25)
    assert probability("scalar", [-1000.0]) == 0.0
    assert probability("two_class", [-1000.0, 1000.0]) == 1.0


def test_scores_keep_their_order_and_number_over_many_solutions(server: Server) -> None:
    steps = [["x" * (i % 7 + 1)] * (i % 5 + 1) for i in range(60)]
    scores = load(server.url).score(["p"] * 60, steps)
    assert [len(s) for s in scores] == [len(s) for s in steps]
    # Later steps are read further right, and the stand-in's scores grow to the right.
    assert all(list(s) == sorted(s) for s in scores)


def test_an_empty_list_of_step_pooling_is_an_error_that_names_the_tag(server: Server) -> None:
    model = load(server.url)
    server.pooling = lambda body: rows([])
    with pytest.raises(EngineError, match=r"problem q7 .*empty list.*step_tag_id"):
        model.score([Problem("q7", "ab")], [["c"]])


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([[0.1] * 4096], r"\[1, 4096\]"),  # P044: an embedding
        ([[0.2, 0.8]], r"\[1, 2\]"),  # one row a step, where rows of ids are asked for
        ([[0.2]] * 12, r"\[12, 1\]"),  # another head
    ],
)
def test_another_shape_is_an_error_that_names_model_task_and_shape(
    server: Server, data: Any, shape: str
) -> None:
    model = load(server.url)
    server.pooling = lambda body: rows(data)
    with pytest.raises(EngineError, match=rf"prm .*token_classify.*{shape}"):
        model.score(["ab"], [["c"]])


def test_a_list_shorter_than_the_prompt_is_refused(server: Server) -> None:
    # P079: what a part of the prompt gave is no complete result.
    model = load(server.url)
    server.pooling = lambda body: rows([[0.0, 1.0]] * (len(body["input"]) - 1))
    with pytest.raises(EngineError, match="shape"):
        model.score(["ab"], [["c"]])


def test_one_failure_is_asked_again_and_failures_alone_are_an_error_and_never_a_zero(server: Server) -> None:
    # P048: a failed request must not become scores of 0, nor a wrong number of them.
    model = load_served(server.url, pause_s=0.001, most_tries=3)
    failed = iter([True, False])
    server.pooling = lambda body: (500, {"error": "CUDA"}) if next(failed) else by_id(body)
    assert len(model.score(["ab"], [["c", "d"]])[0]) == 2
    server.pooling = lambda body: (500, {"error": "CUDA"})
    with pytest.raises(EngineError, match=r"problem q1 .*HTTP 500.*after 3 tries") as raised:
        model.score([Problem("q1", "ab")], [["c"]])
    assert raised.value.retryable


def test_on_the_command_line_a_failed_solution_is_null_with_its_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepward.flows.cli import evaluate
    from stepward.flows.cli.app import app
    from stepward.prm.models import served

    assert evaluate
    monkeypatch.setattr(served.time, "sleep", lambda s: None)
    bad = list(server.tokenizer.encode("bad step"))
    server.pooling = lambda body: (
        (500, {"error": "CUDA"})
        if any(body["input"][i : i + len(bad)] == bad for i in range(len(body["input"])))
        else by_id(body)
    )
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"problem": "p", "steps": steps} for steps in (["a"], ["a", "bad step"], ["b", "c"])]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(SystemExit) as stopped:
        app(["score", server.url, str(file), "--out", str(out)], standalone_mode=False)
    assert stopped.value.code == 1
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [None if r["scores"] is None else len(r["scores"]) for r in found] == [1, None, 2]
    assert "HTTP 500" in found[1]["error"]


def test_a_score_that_is_not_finite_is_an_error(server: Server) -> None:
    model = load(server.url)
    server.pooling = lambda body: rows([[0.0, float("nan")]] * len(body["input"]))
    with pytest.raises(ModelError, match="not finite"):
        model.score(["ab"], [["c"]])


def test_a_generating_server_is_refused_when_it_is_loaded(server: Server) -> None:
    server.pooling = lambda body: (404, {"detail": "Not Found"})
    with pytest.raises(EngineError, match="pooling runner"):
        load(server.url)


def test_wrong_url_key_name_and_folder_are_each_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is the server up"):
        load("http://127.0.0.1:9")
    with pytest.raises(ModelError, match="serves prm and not 'other'"):
        load_served(server.url, model="other")
    server.card["root"] = "/nowhere/prm"
    with pytest.raises(ModelError, match="name its folder"):
        load(server.url)
    server.key = "secret"
    with pytest.raises(EngineError, match="key is refused") as raised:
        load_served(server.url, api_key="wrong")
    assert "wrong" not in str(raised.value)


def test_a_server_with_another_tokenizer_is_refused_with_both_ids(server: Server) -> None:
    # P014: ids of another tokenizer are other words, or lie outside its vocabulary.
    class Other:
        def encode(self, text: str) -> list[int]:
            return [7, 8, 9]

    server.tokenizer = Other()  # type: ignore[assignment]
    with pytest.raises(ModelError, match=r"another tokenizer.*\[7, 8, 9\] there.*258 ids"):
        load(server.url)


def test_a_solution_over_the_servers_context_is_refused_by_name(server: Server) -> None:
    server.card["max_model_len"] = 40
    with pytest.raises(InputRefused, match=r"problem q3 has \d+ ids .* takes 40"):
        load(server.url).score([Problem("q3", "ab")], [["x" * 60]])


def test_what_vllm_is_told_for_each_head(folder: Path, tmp_path: Path) -> None:
    arguments = serving_arguments(folder, "prm")
    assert arguments[:2] == ["--runner", "pooling"]
    assert json.loads(arguments[-1]) == {"task": "token_classify", "tok_pooling_type": "ALL"}
    for kind in ("beta", "ensemble"):
        with pytest.raises(ModelError, match=f"head {kind}.*scalar, two_class"):
            serving_arguments(checkpoint(tmp_path / kind, kind), "prm")
