"""Sources of problems, and of solutions that the user brings.

``read_problems("gsm8k_test.jsonl")`` streams ``Problem`` records from JSON Lines, JSON, Parquet, a ``datasets``
folder, a Hub id or the built-in generator. Ids are stable: the row's own, else a hash of source and statement.
A problem without a gold answer is kept and marked (``answers == ()``), never counted as wrong.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from stepward.prm.errors import ProblemFileError
from stepward.prm.records import Place, Row, read_records, split_options, stem_of
from stepward.prm.types import Check, CheckKind, Message, Problem, problem_id

STATEMENTS = ("problem", "question", "statement", "prompt", "input", "Question")
ANSWERS = ("answers", "final_answer", "answer", "ground_truth_answer", "target", "gold", "Answer")
IDS = ("problem_id", "id", "unique_id", "task_id", "ID")
TEXTS = ("solution", "response", "completion", "output", "model_output", "text")
STEPS = ("steps", "model_output_steps", "completions")
GENERATORS = ("generator", "model", "policy")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Names of a row's fields, where the usual ones are not right. None = look for the usual ones.

    Attributes:
        statement: Field of the statement (``STATEMENTS`` are looked for, in order).
        answer: Field of the gold answer or answers (``ANSWERS``, then the boxed end of ``solution``).
        id: Field of the id (``IDS``, then a hash).
    """

    statement: str | None = None
    answer: str | None = None
    id: str | None = None


def read_problems(
    source: str | Path | Sequence[str | Path],
    *,
    fields: FieldMap | None = None,
    name: str | None = None,
    licence: str = "",
    duplicates: Literal["error", "skip"] = "error",
) -> Iterator[Problem]:
    """Stream the problems of one or several sources.

    Understood as they are: GSM8K (``question``, ``answer`` with ``####``), MATH (``problem``, ``answer`` or a
    boxed ``solution``), SVAMP, plain ``{problem | question | statement, answer | answers}``, conversations
    (``messages``), multiple choice (``choices`` or ``options``), code with unit tests (``test``).

    Args:
        source: File, folder, Hub id (see ``records.read_records``), ``generator:N`` or
            ``generator:N?split=label&level=default&seed=0``; or several of them.
        fields: Names of the fields.
        name: ``Problem.source``; else the row's ``source``, else the stem of the file or the Hub id.
        licence: ``Problem.licence`` where the row states none.
        duplicates: What to do with a second problem of the same id: an error, or leave it out.

    Raises:
        ProblemFileError: A line that cannot be read, a missing or empty statement, an answer that is no text
            or number, or an id that occurs twice.
    """
    seen: dict[str, str] = {}
    sources = [source] if isinstance(source, str | Path) else source
    for part in sources:
        for place, problem in _read_one(str(part), fields or FieldMap(), name, licence):
            here = f"{place.path}:{place.number}"
            if problem.id in seen:
                if duplicates == "skip":
                    continue
                raise place.fault(
                    f"the problem id {problem.id!r} occurs twice (first at {seen[problem.id]}); give each problem "
                    "its own id, or read with duplicates='skip'"
                )
            seen[problem.id] = here
            yield problem


def _read_one(
    source: str, fields: FieldMap, name: str | None, licence: str
) -> Iterator[tuple[Place, Problem]]:
    if source.startswith("generator:"):
        for number, problem in enumerate(_generated(source), 1):
            yield Place(source, number, is_line=False), problem
        return
    stem = name or stem_of(source)
    for place, row in read_records(source):
        stated = row.get("source")
        origin = name or (stated if isinstance(stated, str) and stated else stem)
        yield place, problem_of(row, place, fields=fields, source=origin, licence=licence)


def _generated(source: str) -> Iterator[Problem]:
    from stepward.prm.word_problems.problems import Split, generate

    text, options = split_options(source)
    try:
        number = int(text.removeprefix("generator:"))
        split = Split(options.get("split", Split.LABEL.value))
        seed = int(options.get("seed", "0"))
        problems = generate(split, seed, level=options.get("level", "default"))
        yield from islice(problems, number)
    except ValueError as fault:
        raise ProblemFileError(
            source, None, f"{fault}; write generator:N, or generator:N?split=label&level=default&seed=0"
        ) from fault


def problem_of(
    row: Row, place: Place, *, fields: FieldMap | None = None, source: str = "", licence: str = ""
) -> Problem:
    """The problem of a row; arguments and errors as in ``read_problems``."""
    fields = fields or FieldMap()
    statement = _statement(row, place, fields)
    choices = _choices(row)
    if choices is not None and isinstance(statement, str):
        statement = f"{statement}\n{_listed(choices)}"
    text = statement if isinstance(statement, str) else "\n\n".join(m.content for m in statement)
    own_licence = row.get("licence", row.get("license"))
    return Problem(
        id=_id(row, place, fields) or problem_id(source, text),
        statement=statement,
        answers=_gold(row, place, fields, choices),
        check=_check(row, place, choices),
        source=source,
        licence=own_licence if isinstance(own_licence, str) else licence,
    )


def _first(row: Row, names: Sequence[str]) -> str | None:
    return next((n for n in names if row.get(n) is not None), None)


def _statement(row: Row, place: Place, fields: FieldMap) -> str | tuple[Message, ...]:
    names = [fields.statement] if fields.statement else ["messages", *STATEMENTS]
    name = _first(row, names)
    value: object = row.get(name) if name else None
    if isinstance(value, list) and value:
        return _turns(cast(list[Any], value), place)
    if not isinstance(value, str):
        raise place.fault(
            f"no statement: a text is wanted under {', '.join(names)}, the row has {', '.join(map(str, row))}"
        )
    if isinstance(row.get("Body"), str) and name == "Question":
        value = f"{row['Body'].strip().removesuffix('.')}. {value}"
    if not value.strip():
        raise place.fault(f"the statement ({name}) is empty")
    return value


def _turns(turns: Sequence[Any], place: Place) -> tuple[Message, ...]:
    messages: list[Message] = []
    for turn in turns:
        row = cast(Row, turn) if isinstance(turn, dict) else {}
        content, role = row.get("content"), row.get("role")
        if not isinstance(content, str) or not isinstance(role, str):
            raise place.fault(f"messages: each turn is {{role, content}} with texts; found {turn!r}")
        messages.append(Message(role, content))
    if not any(m.content.strip() for m in messages):
        raise place.fault("the statement (messages) is empty")
    return tuple(messages)


def _id(row: Row, place: Place, fields: FieldMap) -> str | None:
    name = _first(row, [fields.id] if fields.id else IDS)
    if name is None:
        if fields.id:
            raise place.fault(f"no id: the field {fields.id!r} is missing or null")
        return None
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise place.fault(f"the id ({name}) is {value!r}; a text or a whole number is wanted")
    return str(value)


def _gold(row: Row, place: Place, fields: FieldMap, choices: Sequence[str] | None) -> tuple[str, ...]:
    name = _first(row, [fields.answer] if fields.answer else ANSWERS)
    if name is None:
        solution = row.get("solution") if fields.answer is None else None
        boxed = _end_of(solution) if isinstance(solution, str) else None
        tests = row.get("canonical_solution") if isinstance(row.get("test"), str) else None
        return (boxed,) if boxed else (tests,) if isinstance(tests, str) and tests else ()
    value: object = row[name]
    values = cast(list[object], value) if isinstance(value, list | tuple) else [value]
    if choices is not None:
        values = [_LETTERS[v] if isinstance(v, int) and 0 <= v < len(choices) else v for v in values]
    answers = (_answer_text(v, name, place) for v in values if v is not None)
    return tuple(a for a in answers if a)


def _answer_text(value: object, name: str, place: Place) -> str:
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise place.fault(f"the answer ({name}) is {value}; null is wanted where there is no gold answer")
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if not isinstance(value, str):
        raise place.fault(f"the answer ({name}) is a {type(value).__name__}; a text or a number is wanted")
    return (_end_of(value) if "####" in value or "\n" in value else None) or value.strip()


def _end_of(worked: str) -> str | None:
    """The gold answer at the end of a worked one: after the last ``####``, else in the last box."""
    if "####" in worked:
        return worked.rpartition("####")[2].strip() or None
    return last_boxed(worked)


def last_boxed(text: str) -> str | None:
    r"""Contents of the last ``\boxed{...}`` or ``\fbox{...}``, braces balanced; None where there is none.

    ``\boxed 5`` without braces is taken up to the next ``$`` or end of line.
    """
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].removeprefix("\\boxed").removeprefix("\\fbox").lstrip(" ")
    if not rest.startswith("{"):
        return rest.split("\n")[0].split("$")[0].strip() or None
    depth = 0
    for at, char in enumerate(rest):
        escaped = at > 0 and rest[at - 1] == "\\"
        depth += (char == "{" and not escaped) - (char == "}" and not escaped)
        if depth == 0:
            return rest[1:at].strip() or None
    return None


def _choices(row: Row) -> list[str] | None:
    value: object = next((row[n] for n in ("choices", "options", "Options") if row.get(n)), None)
    if isinstance(value, Mapping):
        value = cast(Mapping[str, object], value).get("text")
    if isinstance(value, str):
        return value.strip().splitlines()
    return [str(v) for v in cast(list[object], value)] if isinstance(value, list) else None


def _listed(choices: Sequence[str]) -> str:
    """Choices as lines ``(A) ...``; those that carry their letter already are left as they are."""
    return "\n".join(
        c if c.lstrip(" (")[:1] == letter and c.lstrip(" (")[1:2] in {")", ":", "."} else f"({letter}) {c}"
        for letter, c in zip(_LETTERS, choices, strict=False)
    )


def _check(row: Row, place: Place, choices: Sequence[str] | None) -> Check:
    stated: object = row.get("check")
    try:
        if isinstance(stated, Mapping):
            check = cast(Mapping[str, Any], stated)
            return Check(CheckKind(check.get("kind", "math")), check.get("tolerance"), check.get("payload"))
        if isinstance(stated, str):
            return Check(CheckKind(stated))
    except ValueError as fault:
        raise place.fault(f"check: {fault}; known are {', '.join(CheckKind)}") from fault
    if choices is not None:
        return Check(CheckKind.CHOICE, payload=json.dumps(list(choices), ensure_ascii=False))
    if isinstance(row.get("test"), str):
        entry = row.get("entry_point")
        call = f"\ncheck({entry})\n" if isinstance(entry, str) else ""
        return Check(CheckKind.UNIT_TESTS, payload=row["test"] + call)
    return Check()


@dataclass(frozen=True, slots=True)
class BroughtSolution:
    """A solution that the user brings.

    Attributes:
        place: Where it stands, for messages.
        problem_id: The problem's id where the row states one.
        problem: The problem's text where the row states it.
        steps: Its steps where the row lists them; else empty.
        text: Its text where the row has no list of steps.
        generator: Who wrote it, where the row says so.
    """

    place: Place
    problem_id: str | None
    problem: str | None
    steps: tuple[str, ...]
    text: str | None
    generator: str = "unknown"


def read_solutions(source: str | Path) -> Iterator[BroughtSolution]:
    """Stream solutions, written by any generator: a problem id or text, and a text or a list of steps.

    Args:
        source: As in ``records.read_records``. A row with a list of solutions (``solutions``, ``samples``,
            ``responses``) gives one each.

    Raises:
        ProblemFileError: A row without problem or without solution, or with an empty one.
    """
    for place, row in read_records(source):
        several = _first(row, ("solutions", "samples", "responses"))
        parts: list[Any] = row[several] if several and isinstance(row[several], list) else [row]
        for part in parts:
            own = (
                {**row, **cast(Row, part)}
                if isinstance(part, dict)
                else {**row, "solution": part, "steps": None}
            )
            yield _brought(own, place)


def _brought(row: Row, place: Place) -> BroughtSolution:
    name, text_name, steps_name = _first(row, STATEMENTS), _first(row, TEXTS), _first(row, STEPS)
    statement = row[name] if name is not None and isinstance(row[name], str) else None
    key = _id(row, place, FieldMap())
    if statement is None and key is None:
        raise place.fault(
            "a solution needs its problem: problem_id, or the problem's text under problem or question"
        )
    steps: list[Any] = row[steps_name] if steps_name is not None and isinstance(row[steps_name], list) else []
    if not all(isinstance(s, str) for s in steps):
        raise place.fault(f"{steps_name}: each step is a text")
    text = row[text_name] if text_name is not None and not steps else None
    if not any(s.strip() for s in steps) and not (isinstance(text, str) and text.strip()):
        raise place.fault(
            f"no solution: a text under {', '.join(TEXTS)}, or a list of texts under steps, is wanted"
        )
    author = _first(row, GENERATORS)
    return BroughtSolution(
        place, key, statement, tuple(steps), text, str(row[author]) if author else "unknown"
    )
