"""Where the public data lies that benchmarks read."""

import os
from pathlib import Path


def data_folder() -> Path:
    """STEPWARD_DATA, else ../shared/data beside the checkout."""
    named = os.environ.get("STEPWARD_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
