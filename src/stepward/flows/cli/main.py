"""The ``stepward`` command: a fault that Stepward raises on purpose is one message and exit code 2."""

import sys

from stepward.flows.cli import (
    data,
    engines,
    evaluate,
    label,
    products,
    quickstart,
    schedule,
    search,
    serve,
    show,
    train,
    view,
)
from stepward.flows.cli.app import app
from stepward.prm.errors import StepwardError

COMMANDS = (label, engines, train, evaluate, search, serve, show, view, data, products, quickstart, schedule)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except StepwardError as fault:
        print(f"stepward: {fault}", file=sys.stderr)
        sys.exit(2)
