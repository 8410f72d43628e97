"""Public sets with annotated steps, one reader each, to the common record.

Their conventions differ: 0-based or 1-based, null or "N/A" for none, printed step numbers, the text of a line.
Each is translated here, and a row whose first wrong step cannot be placed is left out with its reason, never
guessed. Sets that judge solutions as wholes give ``JudgedSolution``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepward.prm.evaluation.errors import BenchmarkFileError, StepCountError
from stepward.prm.evaluation.items import Item, JudgedSolution, check_unique, read_jsonl

Row = Mapping[str, Any]


class UnplacedError(Exception):
    """The first wrong step of a row cannot be placed among its steps. Kept inside this file."""


@dataclass(frozen=True, slots=True)
class StepSet:
    """A read set.

    Attributes:
        name: The set.
        items: Solutions with a known first error.
        judged: Solutions judged as wholes.
        left_out: Id and reason of each row that could not be used.
    """

    name: str
    items: tuple[Item, ...] = ()
    judged: tuple[JudgedSolution, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def read_bigbench_mistake(path: str | Path) -> StepSet:
    """BIG-Bench-Mistake: ``mistake_index`` is 0-based, null = none. Tyen et al., arXiv 2311.08516."""
    return _read(path, "bigbench_mistake", _bigbench_mistake)


def read_mr_gsm8k(path: str | Path) -> StepSet:
    """MR-GSM8K: ``model_output_solution_first_error_step`` is 1-based. Zeng et al., arXiv 2312.17080."""
    return _read(path, "mr_gsm8k", _mr_gsm8k)


def read_mrben(path: str | Path) -> StepSet:
    """Mr-Ben: the printed number of the step as a string, or "N/A". Zeng et al., arXiv 2406.13975.

    The number is the one printed in the text ("Step 3: ..."), not a list index: lists hold blank lines and
    lines that continue a step. Lines are therefore joined to the numbered step above them. Where the number is
    printed more than once (a model that starts again for each choice) the row is left out.
    """
    return _read(path, "mrben", _mrben)


def read_mrben_coding(path: str | Path) -> StepSet:
    """Mr-Ben's coding part: the first wrong line is given as its text. Each line that is not blank is a step."""
    return _read(path, "mrben_coding", _mrben_coding)


def read_parc(path: str | Path) -> StepSet:
    """PARC/PERL: 1-based ``step_number`` objects with ``has_error``. Mukherjee et al., arXiv 2502.02362."""
    return _read(path, "parc", _parc)


def read_verify_cot(path: str | Path) -> StepSet:
    """Natural programs judged as wholes: ``flag`` 1 = sound. Ling et al., arXiv 2306.03872.

    ``correct`` is about the final answer only: a right answer with flag 0 stands on unsound reasoning.
    """
    return _read(path, "verify_cot", _verify_cot)


def read_autorace(path: str | Path) -> StepSet:
    """AutoRace: chains judged as wholes by ``human_label``. Hao et al., arXiv 2404.05221."""
    return _read(path, "autorace", _autorace)


def _read(path: str | Path, name: str, parse: Callable[[Row, str, str], Item | JudgedSolution]) -> StepSet:
    path = Path(path)
    items: list[Item] = []
    judged: list[JudgedSolution] = []
    left_out: list[tuple[str, str]] = []
    for line, row in read_jsonl(path):
        row_id = f"{path.stem}-{line}"
        try:
            found = parse(row, row_id, path.name)
        except UnplacedError as reason:
            left_out.append((row_id, str(reason)))
            continue
        except KeyError as field:
            raise BenchmarkFileError(path.name, line, f"no field {field} as {name} has it") from None
        except (StepCountError, TypeError, ValueError) as fault:
            raise BenchmarkFileError(path.name, line, str(fault)) from None
        if isinstance(found, Item):
            items.append(found)
        else:
            judged.append(found)
    check_unique([item.id for item in items] + [solution.id for solution in judged])
    return StepSet(name, tuple(items), tuple(judged), tuple(left_out))


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError(f"steps are {value!r:.80}; a list of texts is needed")
    return tuple(str(x) for x in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _bigbench_mistake(row: Row, row_id: str, source: str) -> Item:
    index = row["mistake_index"]
    if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
        raise ValueError(f"mistake_index is {index!r}; a 0-based index or null is needed")
    return Item(
        row_id,
        str(row["input"]),
        _texts(row["steps"]),
        index,
        subset=row_id.rsplit("-", 1)[0],
        final_answer_correct=bool(row["answer"] == row["target"]),
        source=source,
    )


def _mr_gsm8k(row: Row, row_id: str, source: str) -> Item:
    number = row["model_output_solution_first_error_step"]
    right = row["model_output_solution_correctness"] != "wrong"
    if not right and (not isinstance(number, int) or isinstance(number, bool)):
        raise ValueError(f"first error step is {number!r}; a 1-based number is needed")
    return Item(
        row_id,
        str(row["question"]),
        _texts(row["model_output_steps"]),
        None if right else int(number) - 1,
        subset="mr_gsm8k",
        final_answer_correct=row["model_output_answer_correctness"] != "wrong",
        source=source,
    )


_NUMBERED = re.compile(r"\W*step\s*(\d+)\b(?!\.\w)", re.IGNORECASE)
_CLOSING = re.compile(r"\W*(final step|solution)\b", re.IGNORECASE)


def numbered_steps(lines: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Lines joined to the numbered step above them, and each step's printed number (None where none)."""
    texts: list[list[str]] = []
    numbers: list[int | None] = []
    has_numbers = any(_NUMBERED.match(line) for line in lines)
    for line in lines:
        if not line.strip():
            continue
        header = _NUMBERED.match(line)
        if header or _CLOSING.match(line) or not texts or not has_numbers:
            texts.append([line])
            numbers.append(int(header[1]) if header else None if has_numbers else len(texts))
        else:
            texts[-1].append(line)
    return tuple("\n".join(part) for part in texts), tuple(numbers)


def _mrben(row: Row, row_id: str, source: str) -> Item:
    steps, numbers = numbered_steps(_texts(row["Model_Solution_Steps"]))
    mark = str(row["Model_Solution_First_Error_Step"]).strip()
    first_error: int | None = None
    if mark != "N/A":
        if not mark.isdigit():
            raise UnplacedError(f"first error step is {mark!r}")
        found = [i for i, number in enumerate(numbers) if number == int(mark)]
        if len(found) != 1:
            raise UnplacedError(f"step {mark} is printed {len(found)} times")
        first_error = found[0]
    return _mrben_item(row, row_id, source, steps, first_error)


def _mrben_coding(row: Row, row_id: str, source: str) -> Item:
    lines = tuple(line for line in str(row["Model_Solution_Steps"]).split("\n") if line.strip())
    mark = str(row["Model_Solution_First_Error_Step"])
    first_error: int | None = None
    if mark.strip() != "N/A":
        if not mark.strip():
            raise UnplacedError("first error line is blank")
        found = [i for i, line in enumerate(lines) if line.strip() == mark.strip()]
        if len(found) != 1:
            raise UnplacedError(f"the first error line occurs {len(found)} times")
        first_error = found[0]
    return _mrben_item(row, row_id, source, lines, first_error)


def _mrben_item(row: Row, row_id: str, source: str, steps: tuple[str, ...], first_error: int | None) -> Item:
    if (row["Model_Solution_Correctness"] == "correct") != (first_error is None):
        raise UnplacedError(f"called {row['Model_Solution_Correctness']!r} with first error {first_error}")
    options = row.get("Options")
    problem = f"{row['Question']}\n{options}" if options else str(row["Question"])
    subset = f"mrben_{row['Subject']}"
    return Item(row_id, problem, steps, first_error, subset, str(row["Sampled_Model"]), source=source)


def _parc(row: Row, row_id: str, source: str) -> Item:
    marks = row["error_annotation"]["error_annotations"]["step_level"]
    steps = _texts(row["steps"])
    if [mark["step_number"] for mark in marks] != list(range(1, len(steps) + 1)):
        raise UnplacedError("annotations do not number the steps 1, 2, ...")
    first_error = next((int(mark["step_number"]) - 1 for mark in marks if mark["has_error"]), None)
    subset = f"parc_{row['dataset']}_{row['part']}"
    return Item(row_id, str(row["question"]), steps, first_error, subset, source=source)


def _verify_cot(row: Row, row_id: str, source: str) -> JudgedSolution:
    if row["flag"] not in (0, 1):
        raise ValueError(f"flag is {row['flag']!r}; 1 = sound, 0 = unsound")
    blocks = [block.strip() for block in re.split(r"(?m)^(?=#\d+\.)", str(row["answer"]))]
    # Numbered statements without premises restate the question; what cites premises is reasoning.
    steps = tuple(block for block in blocks if re.match(r"#\d+\.\s*\(by", block))
    if not steps:
        raise UnplacedError("no numbered statement cites its premises")
    return JudgedSolution(row_id, str(row["question"]), steps, bool(row["flag"]), source)


def _autorace(row: Row, row_id: str, source: str) -> JudgedSolution:
    if not isinstance(row["human_label"], bool):
        raise ValueError(f"human_label is {row['human_label']!r}; true or false is needed")
    parts = re.split(r"(?m)^Step \d+ - ", str(row["reasoning_chain"]))
    steps = tuple(part.strip() for part in parts if part.strip())
    return JudgedSolution(row_id, str(row["question"]), steps, row["human_label"], source)
