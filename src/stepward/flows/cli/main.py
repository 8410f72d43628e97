"""The ``stepward`` command. Each command says what it needs, calls one plain function and prints the result.

Nothing heavy is imported before a command runs: ``stepward --help`` stays under half a CPU second.
"""

import sys

import typer

from stepward.prm.errors import StepwardError

app = typer.Typer(
    name="stepward",
    help="Make the data for process reward models, train them and prove them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a fault that Stepward raises on purpose is one message and exit code 2."""
    import stepward.flows.cli.evaluate
    import stepward.flows.cli.label
    import stepward.flows.cli.quickstart
    import stepward.flows.cli.show
    import stepward.flows.cli.train  # noqa: F401  (each module adds its commands to ``app``)

    try:
        app()
    except StepwardError as fault:
        print(f"stepward: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stepward: stopped; what is finished is kept, run again with --resume", file=sys.stderr)
        sys.exit(130)


@app.callback()
def _root() -> None:
    """Make the data for process reward models, train them and prove them."""
