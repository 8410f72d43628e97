"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public data: STEPWARD_DATA, else ../shared/data beside the checkout."""
    named = os.environ.get("STEPWARD_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"public data not found: set STEPWARD_DATA (looked in {folder})")
    return folder
