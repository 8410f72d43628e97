"""The command line's root, to which each module of this folder adds its commands.

Nothing heavy is imported before a command runs: ``stepward --help`` stays under half a CPU second.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

app = typer.Typer(
    name="stepward",
    help="Make the data for process reward models, train them and prove them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Make the data for process reward models, train them and prove them."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends the command with a sentence instead of a traceback, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("stepward: stopped; what is finished is kept, go on with --resume", file=sys.stderr)
        sys.exit(130)
