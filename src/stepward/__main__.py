"""``python -m stepward`` is the ``stepward`` command."""

from stepward.flows.cli.main import main

main()
