"""Unit tests decide a program; runs decide what a step says that its code prints."""

import asyncio
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.errors import InputError
from stepward.prm.types import Check, CheckKind, Problem, Reason, Verdict, VerdictKind
from stepward.verifiers.base import Verifier, make_verifier
from stepward.verifiers.programs import program_of, unit_tests_of, without_docstring
from stepward.verifiers.python_code import PythonCode
from stepward.verifiers.sandbox import Sandbox
from stepward.verifiers.sandbox_transfer import decode, encode

PLAIN = Problem(id="plain", statement="Compute.")
_HOSTILE = Path(__file__).parent / "hostile" / "texts.jsonl"


def _problem(tests: str, **fields: str) -> Problem:
    payload = json.dumps({"tests": tests, **fields}) if fields else tests
    return Problem(id="t1", statement="Write it.", check=Check(CheckKind.UNIT_TESTS, payload=payload))


def _fenced(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}\n```"


TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n"


async def _grade(verifier: PythonCode, code: str, tests: str = TESTS, entry_point: str = "square") -> Verdict:
    return await verifier.grade(_problem(tests, entry_point=entry_point), _fenced(code))


def test_it_is_a_verifier_and_registered() -> None:
    made = make_verifier("python_code", timeout_s=2.0)
    assert isinstance(made, Verifier)
    assert made.name == "python_code"
    with pytest.raises(InputError, match="mode 'docker' is unknown"):
        make_verifier("python_code", mode="docker")
    with pytest.raises(InputError, match="must be positive"):
        make_verifier("python_code", timeout_s=0.0)


async def test_a_program_that_passes_is_supported_and_the_mode_is_named(verifier: PythonCode) -> None:
    verdict = await _grade(verifier, "def square(x):\n    return x * x")
    assert (verdict.kind, verdict.reason) == (VerdictKind.SUPPORTED, Reason.NONE)
    assert verdict.evidence == f"the program passes its tests: 2 calls ({verifier.sandbox.mode})"


async def test_a_program_that_fails_is_refuted_with_the_line_of_the_test(verifier: PythonCode) -> None:
    verdict = await _grade(verifier, "def square(x):\n    return x + x")
    assert verdict.kind is VerdictKind.REFUTED
    assert "assert candidate(-3) == 9: AssertionError" in verdict.evidence


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("def square(x):\n    return x / 0", "ZeroDivisionError"),
        ("def square(x):\n    return y", "NameError: name 'y' is not defined"),
        ("def square(x) return x", "SyntaxError"),
        ("def sqare(x):\n    return x * x", "the program defines no function square"),
        ("raise ValueError('at import')\ndef square(x):\n    return x", "ValueError: at import"),
        ("import sys\ndef square(x):\n    sys.exit(0)", "SystemExit"),
        ("def square(x):\n    return None", "AssertionError"),
    ],
)
async def test_what_a_program_does_wrong_refutes_it(verifier: PythonCode, code: str, evidence: str) -> None:
    verdict = await _grade(verifier, code)
    assert verdict.kind is VerdictKind.REFUTED
    assert evidence in verdict.evidence


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\ndef square(x):\n    os._exit(0)", Reason.CRASH),
        ("import os\nos._exit(0)\ndef square(x):\n    return x * x", Reason.CRASH),
        ("def square(x):\n    return bytearray(1 << 30)", Reason.CRASH),
        ("import ctypes\ndef square(x):\n    ctypes.string_at(0)", Reason.CRASH),
        (
            "class A:\n    def __eq__(self, o):\n        return True\ndef square(x):\n    return A()",
            Reason.UNSUPPORTED,
        ),
        ("class A(int):\n    pass\ndef square(x):\n    return lambda: x", Reason.UNSUPPORTED),
    ],
)
async def test_a_fault_is_unknown_and_never_a_pass_or_a_failure(
    verifier: PythonCode, code: str, reason: Reason
) -> None:
    verdict = await _grade(verifier, code)
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNKNOWN, reason), verdict.evidence


async def test_a_time_out_is_unknown(box: Sandbox) -> None:
    verdict = await _grade(PythonCode(box, timeout_s=0.2), "def square(x):\n    while True:\n        pass")
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNKNOWN, Reason.TIMEOUT)


CHEATS = {
    "equals everything": "class A(int):\n    __eq__ = lambda s, o: True\ndef square(x):\n    return A(7)",
    "a text that equals": "class A(str):\n    __eq__ = lambda s, o: True\ndef square(x):\n    return A('7')",
    "a list that equals": "class A(list):\n    __eq__ = lambda s, o: True\ndef square(x):\n    return A([7])",
    "patches the built-ins": "import builtins\nbuiltins.AssertionError = None\ndef square(x):\n    return 7",
    "walks the stack": (
        "import sys\nmark = '(etadidnac'[::-1]\n"
        "def texts(o, depth=6):\n    if depth == 0:\n        return\n"
        "    if isinstance(o, (str, bytes)):\n        yield str(o)\n"
        "    elif isinstance(o, (dict, list, tuple)):\n"
        "        for v in list(o.values()) if isinstance(o, dict) else o:\n            yield from texts(v, depth - 1)\n"
        "def square(x):\n    f = sys._getframe()\n    while f:\n"
        "        if any(t is not mark and mark in t for t in texts(dict(f.f_locals))):\n            return x * x\n"
        "        f = f.f_back\n    return 7"
    ),
    "reads memory for the tests": (
        "import gc\nmark = '(etadidnac'[::-1]\ndef square(x):\n    for o in gc.get_objects():\n"
        "        for r in gc.get_referents(o):\n"
        "            if r is not mark and isinstance(r, (str, bytes, bytearray)) and mark in str(r):\n"
        "                return x * x\n    return 7"
    ),
    "opens the seal": (
        "import gc\ndef square(x):\n    for o in gc.get_objects():\n"
        "        if isinstance(o, dict) and 'sealed' in o or isinstance(o, list) and len(o) == 2 and "
        "all(isinstance(k, str) and len(k) >= 32 for k in o):\n            return x * x\n    return 7"
    ),
    "writes a report": (
        "import os, json\nfor fd in range(64):\n    try:\n"
        "        os.write(fd, json.dumps({'result': 'passed', 'detail': '', 'calls': 2}).encode())\n"
        "    except OSError:\n        pass\ndef square(x):\n    return 7"
    ),
    "writes replies ahead": (
        "import os, struct, json\nb = json.dumps({'value': 4}).encode()\n"
        "try:\n    os.write(3, struct.pack('<I', len(b)) + b)\nexcept OSError:\n    pass\ndef square(x):\n    return 7"
    ),
    "redefines check": "def check(c):\n    pass\ndef square(x):\n    return 7",
    "exits happily": "import atexit, os\natexit.register(os._exit, 0)\ndef square(x):\n    raise SystemExit(0)",
    "hooks exceptions": "import sys\nsys.excepthook = lambda *a: None\ndef square(x):\n    return 7",
    "hooks threads": "import signal, os\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef square(x):\n    return 7",
}


@pytest.mark.parametrize("name", CHEATS)
async def test_no_cheat_passes(verifier: PythonCode, name: str) -> None:
    verdict = await _grade(verifier, CHEATS[name])
    assert verdict.kind is not VerdictKind.SUPPORTED, verdict.evidence


async def test_one_program_sees_nothing_of_another_nor_of_its_tests(verifier: PythonCode) -> None:
    # Both look in every live object for what the other says. Many at once, so that workers have a queue.
    spy = (
        "import gc\nmark = 'TERCES'[::-1]\ndef square(x):\n    for o in gc.get_objects():\n"
        "        for r in gc.get_referents(o):\n"
        "            if r is not mark and isinstance(r, (str, bytes)) and mark in str(r):\n"
        "                return x * x\n    return 7"
    )
    told = "# SECRET\ndef square(x):\n    return x * x  # SECRET"
    codes = [told, spy] * 8
    verdicts = await asyncio.gather(*(_grade(verifier, code, TESTS + "# SECRET") for code in codes))
    assert [v.kind for v in verdicts] == [VerdictKind.SUPPORTED, VerdictKind.REFUTED] * 8


async def test_a_helper_of_the_problem_cannot_be_replaced_by_the_program(verifier: PythonCode) -> None:
    tests = "def check(candidate):\n    assert encode(candidate('ab')) == 'ab'\n"
    prompt = "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    '''Undo encode.'''\n"
    problem = _problem(tests, entry_point="decode", prompt=prompt)
    cheat = "def encode(s):\n    return 'ab'\n\ndef decode(s):\n    return ''"
    assert (await verifier.grade(problem, _fenced(cheat))).kind is VerdictKind.REFUTED
    assert (await verifier.grade(problem, "    return s[::-1]\n")).kind is VerdictKind.SUPPORTED


async def test_tests_see_what_a_program_does_to_its_arguments(verifier: PythonCode) -> None:
    tests = "x = [3, 1, 2]\nd = {'a': 1}\nassert order(x, d) is None\nassert x == [1, 2, 3] and d == {}"
    good = _fenced("def order(x, d):\n    x.sort()\n    d.clear()")
    bad = _fenced("def order(x, d):\n    x = sorted(x)")
    problem = _problem(tests)
    assert (await verifier.grade(problem, good)).kind is VerdictKind.SUPPORTED
    assert (await verifier.grade(problem, bad)).kind is VerdictKind.REFUTED


async def test_tests_may_expect_an_exception(verifier: PythonCode) -> None:
    tests = (
        "try:\n    root(-1)\nexcept ValueError as e:\n    pass\nelse:\n    assert False\nassert root(9) == 3"
    )
    problem = _problem(tests)
    good = "import math\ndef root(x):\n    return math.isqrt(x)"
    assert (await verifier.grade(problem, _fenced(good))).kind is VerdictKind.SUPPORTED
    bad = "def root(x):\n    return 3"
    assert (await verifier.grade(problem, _fenced(bad))).kind is VerdictKind.REFUTED


async def test_tests_that_are_wrong_themselves_refute_nothing(verifier: PythonCode) -> None:
    for tests in (
        "assert undefined_name == 1",
        "import no_such_module",
        "assert (",
        "assert 1 == 1",
        "assert 1 == 2",
    ):
        verdict = await verifier.grade(_problem(tests), _fenced("def f():\n    return 1"))
        assert (verdict.kind, verdict.reason) == (VerdictKind.UNKNOWN, Reason.UNSUPPORTED), tests


async def test_an_object_may_be_asked_whether_it_is_true(verifier: PythonCode) -> None:
    code = "import re\ndef f(x):\n    return re.match('a', x)"
    assert (
        await verifier.grade(_problem("assert f('a') and not f('b')"), _fenced(code))
    ).kind is VerdictKind.SUPPORTED
    asked = await verifier.grade(_problem("assert f('a').group() == 'a'"), _fenced(code))
    assert (asked.kind, asked.reason) == (VerdictKind.UNKNOWN, Reason.UNSUPPORTED)
    caught = "try:\n    f('a').group()\nexcept Exception:\n    pass\nassert f('a')"
    asked = await verifier.grade(_problem(caught), _fenced(code))
    assert (asked.kind, asked.reason) == (VerdictKind.UNKNOWN, Reason.UNSUPPORTED)


async def test_a_solution_without_code_and_a_cut_one_are_unknown(verifier: PythonCode) -> None:
    problem = _problem(TESTS, entry_point="square")
    prose = await verifier.grade(problem, "The square of x is x times x.")
    assert (prose.kind, prose.reason) == (VerdictKind.UNKNOWN, Reason.NO_CLAIM)
    cut = await verifier.grade(problem, "```python\ndef square(x):\n    return x")
    assert (cut.kind, cut.reason) == (VerdictKind.UNKNOWN, Reason.PARSE)


async def test_the_verdict_on_the_program_stands_at_its_last_step(verifier: PythonCode) -> None:
    problem = _problem(TESTS, entry_point="square")
    steps = ["Multiply x by itself.", _fenced("def square(x):\n    return x * x"), "Done."]
    first, second, third = await verifier.verify(problem, steps)
    assert (first, third) == ((), ())
    assert [v.kind for v in second] == [VerdictKind.SUPPORTED]


def test_a_problem_without_unit_tests_says_so() -> None:
    with pytest.raises(InputError, match="problem plain: check\\.kind is math"):
        unit_tests_of(PLAIN)
    empty = Problem(id="e", statement="", check=Check(CheckKind.UNIT_TESTS, payload='{"entry_point": "f"}'))
    with pytest.raises(InputError, match=r"the fields \['entry_point'\]"):
        unit_tests_of(empty)


def test_tests_are_read_from_the_forms_in_use() -> None:
    mbpp = {"test_list": ["assert f(1) == 1", "assert f(2) == 2"], "test_setup_code": "import math"}
    tests = unit_tests_of(
        Problem(id="m", statement="", check=Check(CheckKind.UNIT_TESTS, payload=json.dumps(mbpp)))
    )
    assert (tests.tests, tests.setup) == ("assert f(1) == 1\nassert f(2) == 2", "import math")
    bare = unit_tests_of(_problem("{1} == f(1)"))
    assert bare.tests == "{1} == f(1)"


def test_the_program_of_a_text() -> None:
    tests = unit_tests_of(_problem(TESTS, entry_point="square"))
    first, better = "def square(x):\n    return 1", "def square(x):\n    return x * x"
    text = f"{_fenced(first)}\nBetter:\n{_fenced(better)}\n{_fenced('print(square(2))')}"
    assert program_of(text, tests) == ("def square(x):\n    return x * x\n", True)
    assert program_of("```\ndef square(x):\n    return 0\n```", tests) == (
        "def square(x):\n    return 0\n",
        True,
    )
    assert program_of("def square(x):\n    return 0", tests) == ("def square(x):\n    return 0", True)
    assert program_of("x squared", tests) is None
    prompt = 'def square(x):\n    """Square.\n\n    >>> square(2)\n    4\n    """\n'
    completing = unit_tests_of(_problem(TESTS, entry_point="square", prompt=prompt))
    assert program_of("  return x * x", completing) == ("def square(x):\n  return x * x", True)
    assert without_docstring("def f():\n    x = '''a'''\n") == "def f():\n    x = '''a'''\n"


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(), max_size=3)
        | st.sets(st.integers() | st.text(), max_size=3)
    ),
    max_leaves=15,
)


@given(_values)
def test_plain_values_cross_between_program_and_tests_unchanged(value: object) -> None:
    crossed = decode(json.loads(json.dumps(encode(value))))
    assert crossed == value
    assert type(crossed) is type(value)


# --- hostile texts -------------------------------------------------------------------------------------------


def _texts() -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in _HOSTILE.read_text().splitlines()]
    return [(row["id"], "".join(part * count for part, count in row["parts"])) for row in rows]


async def test_hostile_texts_as_solutions_give_verdicts_and_no_faults(verifier: PythonCode) -> None:
    problem = _problem(TESTS, entry_point="square")
    good = "def square(x):\n    return x * x"
    texts = _texts()
    assert len(texts) > 100
    verdicts = await asyncio.gather(*(verifier.grade(problem, text) for _, text in texts))
    for (name, _), verdict in zip(texts, verdicts, strict=True):
        assert verdict.kind is not VerdictKind.SUPPORTED, name
    assert (await verifier.grade(problem, good)).kind is VerdictKind.SUPPORTED
    assert not Path("/tmp/stepward-marker").exists()


@pytest.mark.slow
async def test_hostile_texts_as_steps_cells_and_outputs(verifier: PythonCode) -> None:
    for name, text in _texts():
        for step in (text, _fenced(text), f"{_fenced('print(1)')}\n{_fenced(text, 'output')}"):
            (found,) = await verifier.verify(PLAIN, [step])
            assert all(v.kind is not VerdictKind.SUPPORTED for v in found) or "1" in text, name
    assert not Path("/tmp/stepward-marker").exists()


# --- HumanEval and MBPP --------------------------------------------------------------------------------------


def _benchmark(data_dir: Path) -> list[dict[str, Any]]:
    folder = data_dir / "code"
    if not folder.is_dir():
        pytest.skip("the code benchmarks are not in the data folder")
    with gzip.open(folder / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with open(folder / "mbpp_sanitized_codet.jsonl") as file:
        return rows + [json.loads(line) for line in file]


def _as_problem(row: dict[str, Any]) -> Problem:
    payload = json.dumps({key: row[key] for key in ("test", "entry_point", "prompt")})
    return Problem(
        id=row["task_id"], statement=row["prompt"], check=Check(CheckKind.UNIT_TESTS, payload=payload)
    )


_WRONG = """
def _wrong(value):
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float, complex)):
        return 2 * value + 1  # some tests compare with a relative tolerance
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (list, tuple)):
        return value + type(value)([0])
    return [value]

_right = {name}

def {name}(*args, **kwargs):
    return _wrong(_right(*args, **kwargs))
"""


@pytest.mark.slow
async def test_every_canonical_solution_passes_and_every_mutant_fails(
    verifier: PythonCode, data_dir: Path
) -> None:
    rows = _benchmark(data_dir)
    assert len(rows) == 164 + 427
    problems = [_as_problem(row) for row in rows]
    solutions = [row["canonical_solution"] for row in rows]
    mutants = [row["canonical_solution"] + _WRONG.format(name=_tested(row)) for row in rows]
    empty = ["    return None\n"] * len(rows)
    grades = {
        name: await asyncio.gather(*(verifier.grade(p, t) for p, t in zip(problems, texts, strict=True)))
        for name, texts in (("solution", solutions), ("mutant", mutants), ("empty", empty))
    }
    assert Counter(v.kind for v in grades["solution"]) == {VerdictKind.SUPPORTED: 591}
    assert Counter(v.kind for v in grades["mutant"]) == {VerdictKind.REFUTED: 591}
    # 11 problems of MBPP test another function than the one that the prompt begins: where the program does not
    # define it, the tests fail by a NameError, which may be the tests' own fault.
    missing = sum(_tested(row) != row["entry_point"].strip() for row in rows)
    found = Counter(v.kind for v in grades["empty"])
    assert found == {VerdictKind.REFUTED: 591 - missing, VerdictKind.UNKNOWN: missing}
    assert missing == 11


def _tested(row: dict[str, Any]) -> str:
    """The function that the tests call."""
    defined = set(re.findall(r"def (\w+)\(", row["prompt"] + row["canonical_solution"]))
    called = [
        name for name in re.findall(r"(\w+) ?\(", row["test"].partition("assert")[2]) if name in defined
    ]
    entry = row["entry_point"].strip()
    return called[0] if called and entry not in called and "candidate(" not in row["test"] else entry


async def test_some_canonical_solutions_pass(verifier: PythonCode, data_dir: Path) -> None:
    rows = _benchmark(data_dir)[::60]
    verdicts = await asyncio.gather(
        *(
            verifier.grade(_as_problem(r), _fenced(without_docstring(r["prompt"]) + r["canonical_solution"]))
            for r in rows
        )
    )
    assert [v.kind for v in verdicts] == [VerdictKind.SUPPORTED] * len(rows)
