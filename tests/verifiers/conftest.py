"""One sandbox for all tests of programs in a module."""

from collections.abc import Iterator

import pytest

from stepward.verifiers.python_code import PythonCode
from stepward.verifiers.sandbox import JobLimits, Sandbox, SandboxUnavailable


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(num_workers=2, limits=JobLimits(timeout_s=20.0)) as made:
        try:
            _ = made.mode
        except SandboxUnavailable as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture(scope="module")
def verifier(box: Sandbox) -> PythonCode:
    return PythonCode(box, timeout_s=20.0)
