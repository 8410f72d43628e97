"""Unit tests against a program, in two confined processes, so that the program cannot pass by cheating.

The *candidate* process runs the program and answers calls; the *examiner* process runs the tests, in which the
program's functions are proxies. Arguments and values cross a socket as tagged JSON and arrive as new objects of
built-in types. So the program never sees an expected value, a frame of the tests, or a place where the result
is written, an object that says it equals everything arrives as what it is, and leaving the process is no pass.

What cannot cross (a function, an object of the program's own class) makes the verdict unknown, never a pass or
a failure. Standard library only; imported inside the sandbox, see ``sandbox_job``.
"""

import builtins
import collections
import contextlib
import hashlib
import importlib
import json
import os
import random
import socket
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from stepward.verifiers import sandbox_job
from stepward.verifiers.sandbox_job import PROGRAM, fresh_module, fresh_streams, program_traceback
from stepward.verifiers.sandbox_transfer import (
    Untransferable,
    decode,
    encode,
    receive,
    refusals,
    send,
    write_all,
)
from stepward.verifiers.worker_main import address_space_bytes

_TEXT_CHARS = 300
_EXAMINER_BYTES = 80 << 20
_TEST_MODULES = (
    "cmath",
    "collections",
    "copy",
    "itertools",
    "math",
    "random",
    "re",
    "string",
    "sys",
)  # tests forget


def seal(tests: str, key: bytes) -> list[str]:
    """Tests that only the examiner opens: the worker, whose memory the program's process inherits, never does.

    Returns:
        The key and the text, hexadecimal: UTF-8 (lone surrogates kept) XOR a stream of SHAKE-256 of the key.
    """
    text = tests.encode("utf-8", "surrogatepass")
    return [key.hex(), _stream(text, key).hex()]


def unseal(sealed: Sequence[str]) -> str:
    """The tests behind ``seal``."""
    key, text = (bytes.fromhex(part) for part in sealed)
    return _stream(text, key).decode("utf-8", "surrogatepass")


def _stream(text: bytes, key: bytes) -> bytes:
    stream = hashlib.shake_256(key).digest(len(text))
    return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")


class CandidateError(Exception):
    """The program raised an exception that is not a built-in one."""


class CandidateGone(Exception):
    """The program's process ended, or what it sent cannot be read."""


def answer_calls(fd: int, setup: str, program: str) -> int:
    """The candidate: run the program, then answer calls of its functions until the examiner hangs up."""
    random.seed(0)
    fresh_streams()
    module = fresh_module("candidate", program)
    space = module.__dict__
    try:
        if setup:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), space)
        exec(compile(program, PROGRAM, "exec", dont_inherit=True), space)
    except BaseException as error:
        _report(fd, "load_error", error)
        return 1
    names = [name for name, value in list(space.items()) if callable(value)]
    send(fd, {"names": names})
    while True:
        try:
            request = receive(fd)
        except EOFError:
            return 0
        try:
            send(fd, _answer(space, request))
        except Untransferable as error:
            send(fd, {"untransferable": str(error)})
        except BaseException as error:
            _report(fd, "raised", error)


def _answer(space: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    args = decode(request["args"])
    kwargs = {k: decode(v) for k, v in request["kwargs"].items()}
    value = space[request["name"]](*args, **kwargs)
    reply: dict[str, Any] = {}
    try:
        reply["value"] = encode(value)
    except RecursionError as error:
        raise Untransferable("a value nested too deeply, or in itself") from error
    with contextlib.suppress(Untransferable, RecursionError):
        after = encode(args)
        if after != request["args"]:
            reply["args"] = after
    return reply


def _report(fd: int, kind: str, error: BaseException) -> None:
    names = [cls.__name__ for cls in type(error).__mro__ if cls.__module__ == "builtins"]
    send(
        fd,
        {kind: program_traceback(error)[-2000:], "type": names[0], "memory": isinstance(error, MemoryError)},
    )


class _Examination:
    """What the examiner knows while the tests run: how many calls there were and how the last failed."""

    def __init__(self, fd: int) -> None:
        self.fd, self.calls = fd, 0
        self.fault: BaseException | None = None
        self.raised: BaseException | None = None

    def proxy(self, name: str) -> Callable[..., Any]:
        """A function that calls the program's function of that name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._call(name, args, kwargs)
            except (Untransferable, CandidateGone) as fault:
                self.fault = fault
                raise

        call.__name__ = call.__qualname__ = name
        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        request = {
            "name": name,
            "args": [encode(a) for a in args],
            "kwargs": {k: encode(v) for k, v in kwargs.items()},
        }
        send_or_gone(self.fd, request)
        reply = receive_or_gone(self.fd)
        if "raised" in reply:
            if reply.get("memory"):
                raise CandidateGone("memory")
            self.raised = _exception(str(reply.get("type")), str(reply["raised"]))
            raise self.raised
        if "untransferable" in reply:
            raise Untransferable(f"{name} gave {reply['untransferable']}")
        try:
            value = decode(reply["value"])
            changed = [decode(a) for a in reply.get("args", ())]
        except Exception as error:
            raise CandidateGone(f"its reply cannot be read ({type(error).__name__})") from error
        for old, new in zip(args, changed, strict=False):
            _overwrite(old, new)
        return value


def _exception(name: str, text: str) -> Exception:
    """The built-in exception of that name, as far as it can be made of a text alone."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        with contextlib.suppress(TypeError):  # UnicodeDecodeError and the like want more arguments
            return known(text)
    return CandidateError(text)


def send_or_gone(fd: int, message: Mapping[str, Any]) -> None:
    """``send``; raises CandidateGone where nobody listens."""
    try:
        send(fd, message)
    except OSError as error:
        raise CandidateGone("its process ended") from error


def receive_or_gone(fd: int) -> dict[str, Any]:
    """``receive``; raises CandidateGone where the message is none."""
    try:
        message = receive(fd)
    except (EOFError, OSError) as error:
        raise CandidateGone("its process ended") from error
    except (ValueError, RecursionError) as error:
        raise CandidateGone("its reply is no message") from error
    if not isinstance(message, dict):
        raise CandidateGone("its reply is no message")
    return cast(dict[str, Any], message)


def _overwrite(old: Any, new: Any) -> None:
    """Show the tests what the program did to a mutable argument."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        cleared: Any = cast(Any, old)
        cleared.clear()
        cleared.update(new)
    elif isinstance(old, collections.deque):
        queue: Any = cast(Any, old)
        queue.clear()
        queue.extend(new)


def run_tests(fd: int, setup: str, tests: str, entry_point: str) -> dict[str, Any]:
    """The examiner: run the tests with proxies in place of the program's functions.

    Returns:
        ``result``: passed, failed, load_error, untransferable, gone, or test_error (the tests themselves);
        ``detail`` in words; ``calls``: how often a function of the program was called.
    """
    examination = _Examination(fd)

    def verdict(result: str, detail: str) -> dict[str, Any]:
        return {"result": result, "detail": detail, "calls": examination.calls}

    try:
        ready = receive_or_gone(fd)
    except CandidateGone as gone:
        return verdict("gone", str(gone))
    if "load_error" in ready:
        return verdict("gone" if ready.get("memory") else "load_error", str(ready["load_error"]))
    names: set[str] = {str(name) for name in ready.get("names", ())}
    if entry_point and entry_point not in names:
        return verdict("load_error", f"the program defines no function {entry_point}")
    space = types.ModuleType("examination").__dict__
    space.update({name: importlib.import_module(name) for name in _TEST_MODULES})
    try:
        if setup:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), space)
        # The problem's own helpers stay: a program that redefines one must not reach the tests through it.
        kept = {*dir(builtins), *space} - {entry_point}
        for name in names - kept:
            space[name] = examination.proxy(name)
        exec(compile(tests, PROGRAM, "exec", dont_inherit=True), space)
        check = space.get("check")
        if entry_point and isinstance(check, types.FunctionType):
            if "check" in names:  # what the tests call check is the program's, not the function around them
                space["check"] = examination.proxy("check")
            check(examination.proxy(entry_point))
    except BaseException as error:
        return _judge_failure(examination, error, tests, verdict)
    caught = examination.fault or (refusals[0] if refusals else None)
    if caught is not None:  # the tests caught it
        return _judge_failure(examination, caught, tests, verdict)
    if examination.calls == 0:
        return verdict("test_error", "the tests never called the program")
    return verdict("passed", f"{examination.calls} calls")


def _judge_failure(
    examination: _Examination, error: BaseException, tests: str, verdict: Callable[[str, str], dict[str, Any]]
) -> dict[str, Any]:
    fault = examination.fault or (refusals[0] if refusals else error)
    if isinstance(fault, CandidateGone):
        return verdict("gone", str(fault))
    if isinstance(fault, Untransferable):
        return verdict("untransferable", str(fault))
    of_tests = isinstance(error, SyntaxError | ImportError | NameError) and error is not examination.raised
    if examination.calls == 0 or of_tests:
        return verdict("test_error", f"{type(error).__name__}: {str(error)[:_TEXT_CHARS]}")
    return verdict("failed", f"{_line_of(error, tests)}: {type(error).__name__}: {str(error)[-_TEXT_CHARS:]}")


def _line_of(error: BaseException, tests: str) -> str:
    """The line of the tests at which an exception arose."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == PROGRAM:
            line = trace.tb_lineno
        trace = trace.tb_next
    lines = tests.splitlines()
    return lines[line - 1].strip()[:_TEXT_CHARS] if 0 < line <= len(lines) else "the tests"


def examine(job: dict[str, Any]) -> dict[str, Any]:
    """Run tests against a program.

    Args:
        job: As ``sandbox_job.execute``, and ``setup`` (source that both processes run first, such as imports
            and helper functions), ``sealed`` (the tests, see ``seal``), ``entry_point`` (the one function that
            the tests may call; empty = any that the program defines).

    Returns:
        As ``run_tests``, and ``wall_s``, ``cpu_s``, ``waited_s``, ``peak_bytes``; ``result`` may also be
        ``timeout`` or ``killed``.
    """
    null = os.open("/dev/null", os.O_RDWR) if os.path.exists("/dev/null") else os.memfd_create("null")
    report = os.memfd_create("report")
    ours, theirs = socket.socketpair()
    began = sandbox_job.time.monotonic()
    pids: list[int] = []
    ended: list[sandbox_job.Ended] = []

    def examiner() -> int:
        fresh_streams()
        found = run_tests(3, job["setup"], unseal(job["sealed"]), job["entry_point"])
        body = json.dumps(found).encode("ascii")
        write_all(4, body)
        return 0

    def candidate() -> int:
        setup, program = job["setup"], job["program"]
        job.clear()  # the worker's frames are still there to be walked
        return answer_calls(3, setup, program)

    deadline = began + job["timeout_s"]
    # Only the tests and the messages: both processes together stay near the memory of one.
    room = min(job["memory_bytes"], address_space_bytes() + _EXAMINER_BYTES)
    try:
        pids.append(sandbox_job.start(job, [null, null, null, theirs.fileno()], candidate))
        theirs.close()
        pids.append(
            sandbox_job.start(
                {**job, "memory_bytes": room}, [null, null, null, ours.fileno(), report], examiner
            )
        )
        ours.close()
        ended.append(sandbox_job.wait(pids[1], began, deadline))
        # Once the examiner is done the candidate has nothing to say: it is killed at once.
        ended.append(sandbox_job.wait(pids[0], began, sandbox_job.time.monotonic() + 0.01))
        found = _read_report(report)
    finally:
        for fd in (null, report):
            os.close(fd)
    exam, program = ended
    if exam.timed_out or exam.status == -sandbox_job.signal.SIGXCPU:
        found = {"result": "timeout", "detail": f"not done after {job['timeout_s']:g} s", "calls": 0}
    elif found is None:
        _, cause = sandbox_job.outcome(exam, job)
        found = {"result": "test_error", "detail": f"the tests' process ended: {cause}", "calls": 0}
    elif found["result"] == "gone":
        status, cause = sandbox_job.outcome(program, job)
        found = {**found, "result": "killed", "detail": f"the program's process ended: {cause or status}"}
    return {
        **found,
        "wall_s": exam.wall_s,
        "cpu_s": exam.cpu_s + program.cpu_s,
        "waited_s": exam.waited_s + program.waited_s,
        "peak_bytes": exam.peak_bytes + program.peak_bytes,
    }


def _read_report(fd: int) -> dict[str, Any] | None:
    try:
        return json.loads(os.pread(fd, 1 << 20, 0))
    except ValueError:
        return None
