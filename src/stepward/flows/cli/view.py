"""``stepward view``: browse labelled solutions and evaluated items in a local page."""

from pathlib import Path
from typing import Annotated

import typer

from stepward.flows.cli.app import app


@app.command()
def view(
    folder: Annotated[Path, typer.Argument(help="Dataset or results folder, or a folder that holds such")],
    port: Annotated[int, typer.Option(help="Port on the loopback; 0 takes a free one", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser")] = True,
) -> None:
    """Serve a local page (loopback only) until interrupted."""
    import webbrowser

    from stepward.flows.viewer.server import serve

    def ready(url: str) -> None:
        typer.echo(f"{url}  (stop with Ctrl-C)")
        if browser:
            webbrowser.open(url)

    try:
        serve(folder, port=port, ready=ready)
    except KeyboardInterrupt:
        typer.echo("stopped")
