"""Four servers behind vllm-router: requests of one problem stay on one server, and the load is even."""

import asyncio
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from stepward.labeling.policies.vllm_server import load_vllm_server
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Prefix, Sampler

pytestmark = pytest.mark.cluster
ROUTER = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or shutil.which("vllm-router")
NUM_PROBLEMS, NUM_STEPS, NUM_ROLLOUTS = 64, 6, 4


def stand_in_module() -> ModuleType:
    name = "stepward_tests_stand_in_server"
    if name not in sys.modules:
        place = Path(__file__).with_name("stand_in_server.py")
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def requests() -> list[SampleRequest]:
    """Rollouts at every prefix of 64 problems, as a labelling run makes them: prompts that grow by 16 tokens a step."""
    made = []
    for step in range(NUM_STEPS):
        for problem in range(NUM_PROBLEMS):
            prompt = tuple(5 + derive_seed(problem, i) % 90 for i in range(64))
            steps = tuple(5 + derive_seed(problem, "step", i) % 90 for i in range(16 * step))
            prefix = Prefix(f"problem-{problem}", prompt, steps, step)
            made += [
                SampleRequest(prefix, Sampler(max_tokens=8), derive_seed(problem, step, i), i)
                for i in range(NUM_ROLLOUTS)
            ]
    return made


async def through_router(policy_name: str, tokenizer: Path) -> tuple[float, list[Counter[str]]]:
    """(share of prompt tokens that a server had in its cache, sessions by server)."""
    servers = [stand_in_module().StandIn(obeys=True, delay_s=0.002) for _ in range(4)]
    urls = [(await server.start()).removesuffix("/v1") for server in servers]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(ROUTER), "--host", "127.0.0.1", "--port", str(port), "--policy", policy_name, "--worker-urls", *urls,
        "--health-check-endpoint", "/version", "--log-level", "error", "--worker-startup-timeout-secs", "30",
        "--prometheus-port", str(port + 1 if port < 65000 else port - 1),
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient() as client:
            for _ in range(300):
                try:
                    if (await client.get(f"http://127.0.0.1:{port}/v1/models")).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.1)
        policy = await asyncio.to_thread(
            load_vllm_server,
            f"http://127.0.0.1:{port}/v1",
            model="stand-in",
            tokenizer=tokenizer,
            max_in_flight=64,
        )
        made = await asyncio.gather(*(policy.sample(r) for r in requests()))
        assert len(made) == NUM_PROBLEMS * NUM_STEPS * NUM_ROLLOUTS
        usage = policy.usage
        await policy.close()
        return usage.cached_tokens / usage.prompt_tokens, [Counter(s.sessions) for s in servers]
    finally:
        process.terminate()
        await process.wait()
        for server in servers:
            await server.stop()


@pytest.mark.skipif(ROUTER is None, reason="needs vllm-router: make test-cluster")
async def test_sessions_stay_on_one_of_four_servers_and_keep_its_cache_warm(tiny_tokenizer: Path) -> None:
    sticky, by_server = await through_router("sticky_least_loaded", tiny_tokenizer)
    spread, _ = await through_router("round_robin", tiny_tokenizer)
    # Each problem's requests reach one server, and each server has a fair part of them.
    homes = Counter(session for served in by_server for session in served)
    assert set(homes) == {f"problem-{i}" for i in range(NUM_PROBLEMS)}
    assert set(homes.values()) == {1}
    loads = [served.total() for served in by_server]
    assert sum(loads) == NUM_PROBLEMS * NUM_STEPS * NUM_ROLLOUTS
    assert min(loads) >= 0.6 * max(loads)
    assert sticky > spread + 0.05
