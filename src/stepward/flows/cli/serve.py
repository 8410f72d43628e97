"""``stepward serve``: a reward model over HTTP, for ``stepward score http://...`` and ``load("vllm:http://...")``."""

import os
import sys
from typing import Annotated

import typer

from stepward.flows.cli.app import app

Opt = typer.Option


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Argument(help="Reward model: folder or Hub id")],
    host: Annotated[str, Opt(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[int, Opt(help="Port to listen on", min=1, max=65535)] = 8000,
    name: Annotated[str | None, Opt(help="Served name; the folder's name or the Hub id by default")] = None,
    adapter: Annotated[
        str | None, Opt(help="Layout of a published model, where its name does not tell")
    ] = None,
    revision: Annotated[str | None, Opt(help="Commit or tag of a Hub id")] = None,
    dry_run: Annotated[bool, Opt("--dry-run", help="Print the command and start nothing")] = False,
) -> None:
    """Serve a reward model with vLLM's pooling runner. Flags that are not ours go to vLLM.

    STEPWARD_VLLM_PYTHON names an interpreter that has vLLM, where this one has none.
    """
    import shlex

    from stepward.flows.serve import find_vllm, server_command, server_environment

    command = server_command(
        find_vllm(),
        checkpoint,
        host=host,
        port=port,
        name=name,
        adapter=adapter,
        revision=revision,
        further=context.args,
    )
    if dry_run:
        print(shlex.join(command))
        return
    print(f"stepward score http://{host}:{port} SOLUTIONS.jsonl", file=sys.stderr, flush=True)
    # In our place: signals, exit code and output are the server's own.
    os.execve(command[0], command, server_environment())
