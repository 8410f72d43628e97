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
import json
import os
import random
import socket
import struct
import types
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from stepward.verifiers import sandbox_job
from stepward.verifiers.sandbox_job import PROGRAM, fresh_module, fresh_streams, program_traceback

_LENGTH = struct.Struct("<I")
_MESSAGE_BYTES = 8 << 20
_ITEMS = 10_000  # of an iterator
_SAFE_INT = 1 << 53
_TEXT_CHARS = 300


class Untransferable(Exception):
    """A value that cannot cross between the two processes."""


class CandidateError(Exception):
    """The program raised an exception that is not a built-in one."""


class CandidateGone(Exception):
    """The program's process ended, or what it sent cannot be read."""


def encode(value: Any) -> Any:
    """A value as tagged JSON data.

    Raises:
        Untransferable: It is not built from None, numbers, texts, bytes, containers and iterators of these.
    """
    if value is None or isinstance(value, bool):
        return value
    kind = type(value)
    if kind is str:
        return value
    if kind is int:
        return value if -_SAFE_INT < value < _SAFE_INT else {"i": hex(value)}
    if kind is float:
        return {"f": value.hex()}
    if kind is list:
        return [encode(v) for v in value]
    for base, tag, parts in _SHAPES:
        if isinstance(value, base):
            return {tag: parts(value)}
    if hasattr(kind, "__next__"):
        items: list[Any] = []
        for item in value:
            if len(items) == _ITEMS:
                raise Untransferable(f"an iterator with more than {_ITEMS} items")
            items.append(encode(item))
        return {"it": items}
    raise Untransferable(f"a value of type {kind.__name__}")


def _pairs(value: Mapping[Any, Any]) -> list[Any]:
    return [[encode(k), encode(v)] for k, v in dict.items(value)]  # type: ignore[arg-type]


def _items(base: type) -> Callable[[Any], list[Any]]:
    return lambda value: [encode(v) for v in base.__iter__(value)]


_SHAPES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    # Subclasses cross as their base: methods that a program overrides do not.
    (str, "u", lambda v: str.__str__(v)),
    (int, "i", lambda v: hex(int.__index__(v))),
    (float, "f", lambda v: float.hex(v)),
    (tuple, "t", _items(tuple)),
    (list, "l", _items(list)),
    (dict, "d", _pairs),
    (frozenset, "z", _items(frozenset)),
    (set, "s", _items(set)),
    (complex, "c", lambda v: [float.hex(v.real), float.hex(v.imag)]),
    (bytes, "b", lambda v: bytes.hex(v)),
    (bytearray, "ba", lambda v: bytearray.hex(v)),
    (range, "r", lambda v: [hex(v.start), hex(v.stop), hex(v.step)]),
    (collections.deque, "dq", _items(collections.deque)),
    (Fraction, "q", lambda v: [hex(v.numerator), hex(v.denominator)]),
    (Decimal, "m", lambda v: Decimal.__str__(v)),
    ((type({}.keys()), type({}.values()), type({}.items())), "it", lambda v: [encode(i) for i in v]),
)


def decode(data: Any) -> Any:
    """The value of tagged JSON data. Raises ValueError, TypeError, KeyError and the like for other data."""
    if isinstance(data, list):
        return [decode(v) for v in data]
    if not isinstance(data, dict):
        return data
    ((tag, body),) = data.items()
    return _DECODERS[tag](body)


def _all(body: Iterable[Any]) -> list[Any]:
    return [decode(v) for v in body]


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "u": str,
    "i": lambda b: int(b, 16),
    "f": float.fromhex,
    "t": lambda b: tuple(_all(b)),
    "l": _all,
    "d": lambda b: {decode(k): decode(v) for k, v in b},
    "z": lambda b: frozenset(_all(b)),
    "s": lambda b: set(_all(b)),
    "c": lambda b: complex(float.fromhex(b[0]), float.fromhex(b[1])),
    "b": bytes.fromhex,
    "ba": bytearray.fromhex,
    "r": lambda b: range(int(b[0], 16), int(b[1], 16), int(b[2], 16)),
    "dq": lambda b: collections.deque(_all(b)),
    "q": lambda b: Fraction(int(b[0], 16), int(b[1], 16)),
    "m": Decimal,
    "it": lambda b: iter(_all(b)),
}


def send(fd: int, message: Mapping[str, Any]) -> None:
    """Write one message. Raises Untransferable where it is too long."""
    body = json.dumps(message).encode("ascii")
    if len(body) > _MESSAGE_BYTES:
        raise Untransferable(f"a value of {len(body)} bytes")
    _write_all(fd, _LENGTH.pack(len(body)) + body)


def receive(fd: int) -> Any:
    """Read one message. Raises EOFError and ValueError."""
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size))
    if length > _MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_read_exactly(fd, length))


def _write_all(fd: int, data: bytes) -> None:  # send(2) and recv(2) are not among the permitted calls
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other process is gone")
        parts += part
    return bytes(parts)


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
    names = [n for n, v in list(space.items()) if isinstance(n, str) and callable(v)]
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
            known = getattr(builtins, str(reply.get("type")), None)
            text = str(reply["raised"])
            if reply.get("memory"):
                raise CandidateGone("memory")
            if isinstance(known, type) and issubclass(known, Exception):
                try:
                    raised = known(text)
                except TypeError:  # UnicodeDecodeError and the like want more arguments
                    raised = CandidateError(text)
                raise raised
            raise CandidateError(text)
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
    return message


def _overwrite(old: Any, new: Any) -> None:
    """Show the tests what the program did to a mutable argument."""
    if isinstance(old, list | bytearray) and isinstance(new, list | bytearray):
        old[:] = new  # type: ignore[assignment]
    elif isinstance(old, dict | set) and type(new) is type(old):
        old.clear()
        old.update(new)
    elif isinstance(old, collections.deque) and isinstance(new, collections.deque):
        old.clear()
        old.extend(new)


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
    names = {n for n in ready.get("names", ()) if isinstance(n, str)}
    if entry_point and entry_point not in names:
        return verdict("load_error", f"the program defines no function {entry_point}")
    module = types.ModuleType("examination")
    space = module.__dict__
    try:
        if setup:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), space)
        if entry_point:
            space[entry_point] = examination.proxy(entry_point)
        else:
            for name in names - set(dir(builtins)) - set(space):
                space[name] = examination.proxy(name)
        exec(compile(tests, PROGRAM, "exec", dont_inherit=True), space)
        if entry_point and callable(space.get("check")):
            space["check"](space[entry_point])
    except BaseException as error:
        return _judge_failure(examination, error, tests, verdict)
    if examination.fault is not None:  # the tests caught it
        return _judge_failure(examination, examination.fault, tests, verdict)
    if examination.calls == 0:
        return verdict("test_error", "the tests never called the program")
    return verdict("passed", f"{examination.calls} calls")


def _judge_failure(
    examination: _Examination, error: BaseException, tests: str, verdict: Callable[[str, str], dict[str, Any]]
) -> dict[str, Any]:
    fault = examination.fault or error
    if isinstance(fault, CandidateGone):
        return verdict("gone", str(fault))
    if isinstance(fault, Untransferable):
        return verdict("untransferable", str(fault))
    if examination.calls == 0 or isinstance(error, SyntaxError | ImportError | NameError):
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
            and helper functions), ``tests``, ``entry_point`` (the one function that the tests may call; empty
            = any that the program defines).

    Returns:
        As ``run_tests``, and ``wall_s``, ``cpu_s``, ``waited_s``; ``result`` may also be timeout or killed.
    """
    null = os.open("/dev/null", os.O_RDWR) if os.path.exists("/dev/null") else os.memfd_create("null")
    report = os.memfd_create("report")
    ours, theirs = socket.socketpair()
    began = sandbox_job.time.monotonic()
    pids: list[int] = []
    ended: list[sandbox_job.Ended] = []

    def examiner() -> int:
        fresh_streams()
        found = run_tests(3, job["setup"], job["tests"], job["entry_point"])
        body = json.dumps(found).encode("ascii")
        _write_all(4, body)
        return 0

    def candidate() -> int:
        return answer_calls(3, job["setup"], job["program"])

    deadline = began + job["timeout_s"]
    try:
        pids.append(sandbox_job.start(job, [null, null, null, theirs.fileno()], candidate))
        theirs.close()
        pids.append(sandbox_job.start(job, [null, null, null, ours.fileno(), report], examiner))
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
    }


def _read_report(fd: int) -> dict[str, Any] | None:
    try:
        return json.loads(os.pread(fd, 1 << 20, 0))
    except ValueError:
        return None
