"""The supervisor of killable workers."""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepward.prm.errors import ConfigError, StepwardError
from stepward.prm.types import Reason
from stepward.verifiers.workers import CallKind, Limits, Supervisor

_MODULE = """
import os, sys, time

calls = 0
held = []

def add(a, b): return a + b
def echo(x): return x
def spin():
    while True: pass
def nap(s):
    time.sleep(s)
    return s
def interval(s):
    began = time.monotonic()
    time.sleep(s)
    return [began, time.monotonic()]
def nap_first_time(path):
    if not os.path.exists(path):
        open(path, "w").close()
        time.sleep(30)
    return "second try"
def mark_and_nap(path):
    with open(path, "a") as f: f.write("x")
    time.sleep(30)
def hog(): return len([bytearray(1 << 20) for _ in range(4000)])
def hold(mib):
    held.append(bytearray(mib << 20))
    return len(held)
def leave(): os._exit(3)
def segfault():
    import ctypes
    ctypes.string_at(0)
def refuse(): raise ValueError("no such number")
def chatter():
    print("x" * 100000)
    sys.stderr.write("y" * 1000)
    os.write(1, b"zz")
    return 5
def count():
    global calls
    calls += 1
    return calls
def environment(): return dict(os.environ)
def text(n): return "x" * n
def nested(n):
    x = []
    for _ in range(n): x = [x]
    return x
def pid(): return os.getpid()
def modules(): return sorted(sys.modules)
def order(): return list({"a", "b", "c", "d", "e", "f", "g"})
def child():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    held.append(pid)
    return pid
def give_object(): return object()
"""


@pytest.fixture(scope="module")
def module_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("worker_module")
    (folder / "worker_functions.py").write_text(_MODULE)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def supervisor(module_dir: Path) -> Iterator[Supervisor]:
    with Supervisor(num_workers=2, limits=Limits(cpu_s=0.3, wall_s=30.0)) as made:
        yield made


def _f(name: str) -> str:
    return f"worker_functions:{name}"


def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_value_comes_back_under_its_key(supervisor: Supervisor) -> None:
    result = supervisor.run(_f("add"), [1, 2], key="sum")
    assert (result.key, result.kind, result.value, result.attempts) == ("sum", CallKind.VALUE, 3, 1)
    assert result.reason is Reason.NONE


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        ("spin", CallKind.TIMEOUT, "0.3 CPU seconds spent"),
        ("leave", CallKind.CRASH, "the worker ended: exit status 3"),
        ("segfault", CallKind.CRASH, "the worker ended: signal SIGSEGV"),
        ("refuse", CallKind.ERROR, "ValueError: no such number"),
        ("no_such_function", CallKind.ERROR, "has no attribute 'no_such_function'"),
        ("give_object", CallKind.ERROR, "not JSON serializable"),
    ],
)
def test_a_fault_has_its_own_kind_and_never_a_value(
    supervisor: Supervisor, function: str, kind: CallKind, message: str
) -> None:
    result = supervisor.run(_f(function))
    assert (result.kind, result.value, result.ok) == (kind, None, False)
    assert message in result.message
    assert result.reason in (Reason.TIMEOUT, Reason.CRASH)


def test_memory_beyond_the_cap_is_a_memory_result(supervisor: Supervisor) -> None:
    result = supervisor.run(_f("hog"), cpu_s=20.0)
    assert (result.kind, result.value) == (CallKind.MEMORY, None)
    assert supervisor.run(_f("add"), [1, 1]).value == 2


def test_a_wall_time_out_is_tried_once_more_alone_and_may_then_give_a_value(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    result = supervisor.run(_f("nap_first_time"), [str(tmp_path / "seen")], wall_s=0.3)
    assert (result.kind, result.value, result.attempts) == (CallKind.VALUE, "second try", 2)


def test_a_second_wall_time_out_is_final(supervisor: Supervisor, tmp_path: Path) -> None:
    began = time.monotonic()
    result = supervisor.run(_f("mark_and_nap"), [str(tmp_path / "marks")], wall_s=0.2)
    assert (result.kind, result.attempts) == (CallKind.TIMEOUT, 2)
    assert (tmp_path / "marks").read_text() == "xx"
    assert time.monotonic() - began < 0.4 + 2.0  # two tries; the allowance is for a busy machine


def test_one_killed_call_of_a_batch_costs_no_other_its_value(supervisor: Supervisor) -> None:
    calls: dict[str, list[object]] = {f"k{i}": [i, 1] for i in range(100)}
    assert {k: r.value for k, r in supervisor.run_many(_f("add"), calls).items()} == {
        f"k{i}": i + 1 for i in range(100)
    }
    naps = supervisor.run_many(_f("nap"), {"a": [0.01], "b": [20], "c": [0.02], "d": [0.03]}, wall_s=0.4)
    assert [(k, r.kind, r.value) for k, r in naps.items()] == [
        ("a", CallKind.VALUE, 0.01),
        ("b", CallKind.TIMEOUT, None),
        ("c", CallKind.VALUE, 0.02),
        ("d", CallKind.VALUE, 0.03),
    ]


def test_verdicts_are_equal_from_main_thread_pool_threads_and_event_loop(supervisor: Supervisor) -> None:
    inputs = {str(i): [i, i * i] for i in range(50)}
    here = {k: r.value for k, r in supervisor.run_many(_f("add"), inputs).items()}
    from_threads: dict[str, object] = {}

    def work(key: str) -> None:
        from_threads[key] = supervisor.run(_f("add"), inputs[key]).value

    threads = [threading.Thread(target=work, args=(key,)) for key in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def on_loop() -> dict[str, object]:
        results = await supervisor.arun_many(_f("add"), inputs)
        return {k: r.value for k, r in results.items()}

    assert here == from_threads == asyncio.run(on_loop()) == {k: a + b for k, (a, b) in inputs.items()}


async def test_a_cancelled_caller_leaves_the_others_their_results(supervisor: Supervisor) -> None:
    slow = asyncio.create_task(supervisor.arun(_f("nap"), [0.3]))
    quick = asyncio.create_task(supervisor.arun(_f("add"), [2, 2]))
    await asyncio.sleep(0.05)
    slow.cancel()
    assert (await quick).value == 4
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_an_import_fault_reaches_the_awaiting_caller(supervisor: Supervisor) -> None:
    with pytest.raises(ConfigError, match=r"'no_such_module' cannot be imported: ModuleNotFoundError"):
        await supervisor.arun("no_such_module:f")


def test_arguments_that_are_no_plain_data_are_refused_before_a_worker_sees_them(
    supervisor: Supervisor,
) -> None:
    with pytest.raises(StepwardError, match=r"call 'k' of worker_functions:echo"):
        supervisor.run(_f("echo"), [object()], key="k")  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="module:function"):
        supervisor.run("worker_functions")


def test_a_function_that_prints_does_not_disturb_the_protocol(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    assert supervisor.run(_f("chatter")).value == 5
    assert capfd.readouterr() == ("", "")


def test_workers_see_no_secret_of_the_environment_and_import_nothing_of_the_caller(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Supervisor(num_workers=1) as fresh:
        assert "hf_secret" not in json.dumps(fresh.run(_f("environment")).value)
        loaded = set(fresh.run(_f("modules")).value)
    assert "worker_functions" in loaded
    assert not loaded & {"stepward", "pytest", "numpy", "asyncio", "hypothesis"}


def test_hash_order_is_the_same_in_every_supervisor(module_dir: Path) -> None:
    seen: list[object] = []
    for _ in range(2):
        with Supervisor(num_workers=1) as fresh:
            seen.append(fresh.run(_f("order")).value)
    assert seen[0] == seen[1]


def test_a_worker_is_recycled_after_its_calls(module_dir: Path) -> None:
    with Supervisor(num_workers=1, limits=Limits(recycle_calls=3)) as fresh:
        # One worker counts 1, 2, 3; the next begins again.
        assert [fresh.run(_f("count")).value for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_a_worker_is_recycled_after_growth(module_dir: Path) -> None:
    with Supervisor(num_workers=1, limits=Limits(growth_bytes=32 << 20)) as fresh:
        # 20 MiB: kept. 40 MiB: over 32 MiB, ended. The third call sees a new worker.
        assert [fresh.run(_f("hold"), [20]).value for _ in range(3)] == [1, 2, 1]


def test_what_was_called_before_does_not_make_a_call_run_out_of_memory(module_dir: Path) -> None:
    limits = Limits(memory_bytes=256 << 20, growth_bytes=1 << 40)
    with Supervisor(num_workers=1, limits=limits) as fresh:
        # 150 MiB held by the first call leave no room for 150 more: the second is repeated in a fresh worker.
        assert [fresh.run(_f("hold"), [150]).value for _ in range(3)] == [1, 1, 1]


def test_a_value_with_too_long_a_text_is_an_error(module_dir: Path) -> None:
    with Supervisor(num_workers=1, limits=Limits(reply_bytes=1000)) as fresh:
        assert fresh.run(_f("text"), [998]).value == "x" * 998  # with its two quotes 1000 bytes
        result = fresh.run(_f("text"), [999])
    assert (result.kind, result.message) == (CallKind.ERROR, "the reply has 1001 bytes; the limit is 1000")


@pytest.mark.parametrize("depth", [5_000, 100_000])
def test_deep_nesting_in_a_value_is_an_error_here_and_not_a_crash(supervisor: Supervisor, depth: int) -> None:
    assert supervisor.run(_f("nested"), [depth]).kind is CallKind.ERROR


def test_a_module_that_does_not_fit_the_cap_is_named(module_dir: Path) -> None:
    with (
        Supervisor(num_workers=1, limits=Limits(memory_bytes=8 << 20)) as fresh,
        pytest.raises(ConfigError, match="memory_bytes is 8 MiB: raise it"),
    ):
        fresh.run(_f("add"), [1, 2])


def test_equal_input_is_computed_once_under_one_version(module_dir: Path) -> None:
    with Supervisor(num_workers=1) as fresh:
        first = fresh.run(_f("count"), version="1")
        again = fresh.run(_f("count"), key="again", version="1")
        assert (first.value, again.value, again.key, again.attempts) == (1, 1, "again", 0)
        assert fresh.run(_f("count"), version="2").value == 2
        assert fresh.run(_f("count")).value == 3
        twins = fresh.run_many(_f("count"), {"a": [], "b": []}, version="3")
        assert {k: r.value for k, r in twins.items()} == {"a": 4, "b": 4}


def test_the_cache_drops_the_least_recently_used(module_dir: Path) -> None:
    with Supervisor(num_workers=1, cache_entries=2) as fresh:
        # 1 and 2 stored, 1 used again, 3 drops 2.
        for value in (1, 2, 1, 3):
            fresh.run(_f("echo"), [value], version="v")
        assert fresh.run(_f("echo"), [1], version="v").attempts == 0
        assert fresh.run(_f("echo"), [2], version="v").attempts == 1


def test_a_crash_is_never_remembered(module_dir: Path) -> None:
    with Supervisor(num_workers=1) as fresh:
        assert fresh.run(_f("leave"), version="v").attempts == 1
        assert fresh.run(_f("leave"), version="v").attempts == 1


def test_a_killed_worker_takes_its_children_along(supervisor: Supervisor) -> None:
    with Supervisor(num_workers=1, limits=Limits(recycle_calls=1)) as fresh:
        assert _gone(fresh.run(_f("child")).value)


def test_workers_and_template_end_when_their_supervisor_is_killed(module_dir: Path) -> None:
    script = (
        f"import sys, time; sys.path.insert(0, {str(module_dir)!r})\n"
        "from stepward.verifiers.workers import Supervisor\n"
        "s = Supervisor(num_workers=1)\n"
        "print(s.run('worker_functions:pid').value, flush=True)\n"
        "import threading; threading.Thread(target=s.run, args=('worker_functions:nap', [60])).start()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        template = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
        time.sleep(0.1)
        process.kill()
    assert _gone(worker)
    assert _gone(template)


def test_a_template_killed_from_outside_is_started_again(module_dir: Path) -> None:
    with Supervisor(num_workers=1, limits=Limits(recycle_calls=1)) as fresh:
        worker = fresh.run(_f("pid")).value
        assert _gone(worker)
        pool = fresh._pools["worker_functions"]
        assert pool._template._process is not None
        pool._template._process.kill()
        assert fresh.run(_f("add"), [1, 2]).value == 3


def _run_in_child(supervisor: Supervisor, queue: "multiprocessing.Queue[object]") -> None:
    queue.put(supervisor.run(_f("add"), [20, 3]).value)
    supervisor.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_workers(supervisor: Supervisor) -> None:
    before = supervisor.run(_f("pid")).value
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[object] = context.Queue()
    child = context.Process(target=_run_in_child, args=(supervisor, queue))
    child.start()
    assert queue.get(timeout=20) == 23
    child.join(20)
    assert child.exitcode == 0
    assert supervisor.run(_f("pid")).ok
    assert os.path.exists(f"/proc/{before}")  # the parent's workers were left alone


def test_a_closed_supervisor_refuses(module_dir: Path) -> None:
    fresh = Supervisor(num_workers=1)
    fresh.run(_f("add"), [1, 2])
    fresh.close()
    with pytest.raises(StepwardError, match="closed"):
        fresh.run(_f("add"), [1, 2])


def test_closing_ends_calls_in_flight_with_an_error_and_leaves_no_process(module_dir: Path) -> None:
    fresh = Supervisor(num_workers=1)
    worker = fresh.run(_f("pid")).value
    ended: list[BaseException] = []

    def call() -> None:
        try:
            fresh.run(_f("nap"), [60])
        except StepwardError as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.1)
    fresh.close()
    thread.join(5)
    assert [str(error) for error in ended] == ["this supervisor of workers is closed; make a new one"]
    assert _gone(worker)


def test_a_call_alone_overlaps_with_no_other(supervisor: Supervisor) -> None:
    spans: dict[str, list[float]] = {}

    def call(name: str, alone: bool) -> None:
        spans[name] = supervisor.run(_f("interval"), [0.05], alone=alone).value

    threads = [threading.Thread(target=call, args=(f"{i}", i % 3 == 1)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("1", "4"):
        began, ended = spans.pop(name)
        assert all(end <= began or ended <= start for start, end in spans.values())


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=_plain)
def test_plain_data_comes_back_as_it_went(supervisor: Supervisor, value: object) -> None:
    assert supervisor.run(_f("echo"), [value]).value == value  # type: ignore[list-item]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec=None), max_size=200))
def test_any_text_comes_back_as_it_went(supervisor: Supervisor, text: str) -> None:
    hostile = text + "\x00\ud800]\"'\\\u2028"
    assert supervisor.run(_f("echo"), [hostile]).value == hostile


@pytest.mark.slow
@pytest.mark.alone
def test_trivial_calls_travel_at_several_thousand_a_second(supervisor: Supervisor) -> None:
    calls = {str(i): [i, 1] for i in range(20_000)}
    before = os.times()
    supervisor.run_many(_f("add"), calls)
    after = os.times()
    ours = after.user + after.system - before.user - before.system
    assert 20_000 / ours > 5_000
