"""Step scores of real vLLM's pooling runner are those of transformers, for every head that it can serve.

Run with ``pytest -m vllm``; STEPWARD_VLLM_PYTHON names an interpreter that has vLLM.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

from stepward.labeling.policies.embedded import embedded_folder
from stepward.prm.errors import EngineError
from stepward.prm.models.folder import PrmDescription, save_prm
from stepward.prm.models.heads import head_spec
from stepward.prm.models.load import load
from stepward.prm.models.served import checked_outputs, probability
from stepward.prm.models.serving import read_inputs, serving_arguments
from stepward.prm.models.weights import new_prm
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import Problem

pytestmark = pytest.mark.vllm

# Twenty solutions of one to five steps (P007: fast and slow scorer differ by at most 1e-3).
SOLUTIONS = [
    (
        f"Tom has {3 + i} apples. He gets {i + 2} more. How many apples does he have?",
        [f"He has {3 + i} + {i + 2} = {5 + 2 * i + j} apples." for j in range(i % 5)] + [f"#### {5 + 2 * i}"],
    )
    for i in range(20)
]
TOLERANCE = 1e-4  # float32 in both, other kernels


@pytest.fixture(scope="module")
def prms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reward models on the embedded backbone, heads as they are drawn but sharper, and a Qwen2.5-Math-PRM."""
    root = tmp_path_factory.mktemp("prms")
    made: dict[str, Path] = {}
    # After a step the language model goes on with a number or with a word, more or less surely.
    rows = tuple(load_tokenizer(embedded_folder()).encode(text)[0] for text in ("7", "Then "))
    for kind, options in (("two_class", {}), ("scalar", {}), ("vocabulary", {"token_ids": rows})):
        spec = head_spec(kind, **options)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = new_prm(embedded_folder(), spec)
        if kind != "vocabulary":
            with torch.no_grad():
                model.head.linear.weight.mul_(20)  # type: ignore[union-attr]
        save_prm(
            root / kind,
            model,
            PrmDescription(spec, StepFormat("newline")),
            tokenizer_from=embedded_folder(),
        )
        made[kind] = root / kind
    made["qwen_math_prm"] = qwen(root / "Qwen2.5-Math-PRM-tiny")
    return made


def qwen(folder: Path) -> Path:
    """A random checkpoint of Qwen2.5-Math-PRM's architecture, layout and marker."""
    folder.mkdir()
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(s, special=True) for s in ("<|im_start|>", "<|im_end|>", "<extra_0>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "chat_template": template,
            }
        )
    )
    with torch.random.fork_rng():
        torch.manual_seed(4)
        config = Qwen2Config(
            vocab_size=259, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.2,
        )  # fmt: skip
        Qwen2ForCausalLM(config).save_pretrained(folder)
        head = {
            "score.0.weight": torch.randn(64, 64), "score.0.bias": torch.randn(64),
            "score.2.weight": torch.randn(2, 64), "score.2.bias": torch.randn(2),
        }  # fmt: skip
    tensors = {k: v for k, v in load_file(folder / "model.safetensors").items() if k[:7] != "lm_head"}
    save_file({**tensors, **head}, folder / "model.safetensors", metadata={"format": "pt"})
    stored = json.loads((folder / "config.json").read_text())
    stored["architectures"] = ["Qwen2ForProcessRewardModel"]
    (folder / "config.json").write_text(json.dumps(stored))
    return folder


def assert_equal_scores(got: list[tuple[float, ...]], folder: Path) -> None:
    want = load(folder).score([p for p, _ in SOLUTIONS], [s for _, s in SOLUTIONS])
    for ours, theirs, (_, steps) in zip(got, want, SOLUTIONS, strict=True):
        assert len(ours) == len(steps)
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
        assert all(0 <= s <= 1 for s in ours)
    # Scores that hardly differ would agree whatever was read.
    flat = [s for row in want for s in row]
    assert max(flat) - min(flat) > 0.05


@pytest.fixture(scope="module")
def served(
    prms: dict[str, Path], vllm_interpreter: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """``stepward serve`` as a user runs it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("serve") / "log"
    entry = "from stepward.flows.cli.main import main; main()"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", entry, "serve", str(prms["two_class"]), "--port", str(port)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + 300
            while True:
                try:
                    urllib.request.urlopen(url + "/health", timeout=5)
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        pytest.fail(f"stepward serve did not start:\n{log.read_text()[-3000:]}")
                    time.sleep(0.3)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


def test_stepward_serve_scores_as_transformers_does_and_twice_the_same(
    served: str, prms: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load("vllm:" + served)
    problems, solutions = [p for p, _ in SOLUTIONS], [s for _, s in SOLUTIONS]
    scores = model.score(problems, solutions)
    assert_equal_scores(scores, prms["two_class"])
    # P047: what the prefix cache holds of a prompt must not shorten or change its scores.
    again = model.score(problems, solutions)
    assert [len(s) for s in again] == [len(s) for s in scores]
    assert [x for s in again for x in s] == pytest.approx([x for s in scores for x in s], abs=TOLERANCE)
    # The command line, on the same server.
    file, out = tmp_path / "solutions.jsonl", tmp_path / "scores.jsonl"
    file.write_text("".join(json.dumps({"problem": p, "steps": s}) + "\n" for p, s in SOLUTIONS[:3]))
    from stepward.flows.cli.app import app
    from stepward.flows.cli.main import COMMANDS

    assert COMMANDS
    app(["score", served, str(file), "--out", str(out)], standalone_mode=False)
    lines = [json.loads(line)["scores"] for line in out.read_text().splitlines()]
    assert [x for s in lines for x in s] == pytest.approx([x for s in scores[:3] for x in s], abs=TOLERANCE)


OFFLINE = """
import json, sys
from vllm import LLM, PoolingParams, TokensPrompt
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

def rows(folder, arguments, prompts):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(["--model", folder, *arguments]))
    args.dtype, args.enforce_eager, args.block_size = "float32", True, 32
    llm = LLM.from_engine_args(args)
    params = PoolingParams(task="token_classify", use_activation=False)
    asked = [TokensPrompt(prompt_token_ids=p) for p in prompts]
    outputs = llm.encode(asked, params, pooling_task="token_classify", use_tqdm=False)
    return [o.outputs.data.tolist() for o in outputs]

if __name__ == "__main__":
    for job in json.load(open(sys.argv[1])):
        print("RESULT" + json.dumps(rows(**job)), flush=True)
"""


def test_every_head_that_vllm_serves_scores_as_in_process_and_a_wrong_step_tag_is_an_error(
    prms: dict[str, Path], in_vllm: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    kinds = ("scalar", "vocabulary", "qwen_math_prm")
    encoded: dict[str, list[Any]] = {}
    jobs: list[dict[str, Any]] = []
    for kind in kinds:
        inputs, _ = read_inputs(prms[kind], prms[kind].name, None)
        encoded[kind] = [inputs.encode(Problem("", p), s) for p, s in SOLUTIONS]
        arguments = serving_arguments(prms[kind], prms[kind].name)
        prompts = [list(e.token_ids) for e in encoded[kind]]
        jobs.append({"folder": str(prms[kind]), "arguments": arguments, "prompts": prompts})
    # Step pooling with a tag that this tokenizer does not give: vLLM answers with nothing and no error.
    wrong = [
        "--runner",
        "pooling",
        "--pooler-config",
        json.dumps({"task": "token_classify", "step_tag_id": 151651}),
    ]
    jobs.append({**jobs[-1], "arguments": wrong, "prompts": jobs[-1]["prompts"][:1]})
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    done = in_vllm(OFFLINE, str(tmp_path / "jobs.json"))
    lines = [json.loads(x.removeprefix("RESULT")) for x in done.stdout.splitlines() if x[:6] == "RESULT"]
    assert len(lines) == 4, done.stdout[-1500:] + done.stderr[-3000:]
    for kind, outputs in zip(kinds, lines, strict=False):
        head = {"qwen_math_prm": "mlp"}.get(kind, kind)
        checked = [
            checked_outputs({"data": [{"data": rows}]}, len(e.token_ids), len(rows[0]), kind)
            for rows, e in zip(outputs, encoded[kind], strict=True)
        ]
        scores = [
            tuple(probability(head, rows[end]) for end in e.step_ends)
            for rows, e in zip(checked, encoded[kind], strict=True)
        ]
        assert_equal_scores(scores, prms[kind])
    assert lines[3] == [[]]
    with pytest.raises(EngineError, match="step_tag_id"):
        checked_outputs({"data": [{"data": lines[3][0]}]}, 10, 2, "scoring")
