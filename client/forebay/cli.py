"""The program `forebay`: its commands, and one way for all of them to fail.

Exit status: 0, 2 for a wrong call or configuration, 1 for a failure, 130 when interrupted. An error is one line on
standard error, with `--json` also one object `{"error", "message"}` on standard output; `FOREBAY_DEBUG=1` shows the
traceback. The daemon is another program (`python -m forebay_server`) that `serve` becomes; nothing of it is imported.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer

from forebay_core.errors import ConfigurationError

EXIT_FAILURE = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(add_completion=False, no_args_is_help=False, pretty_exceptions_enable=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: runs the command and ends the process with its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(given))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns the exit status; nothing is raised but with `FOREBAY_DEBUG=1`."""
    try:
        status = typer.main.get_command(app).main(list(arguments), prog_name="forebay", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:
        if os.environ.get("FOREBAY_DEBUG") == "1":
            raise
        return _fail(error, as_json="--json" in arguments)
    return status if isinstance(status, int) else 0


def _fail(error: Exception, *, as_json: bool) -> int:
    usage = getattr(error, "exit_code", None)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(text.split()) or type(error).__name__
    if usage == EXIT_WRONG_CALL:
        message = f"{message.rstrip('.')}; see forebay --help"
    print(f"forebay: {message}", file=sys.stderr, flush=True)
    if as_json:
        from forebay.console import print_json

        print_json({"error": type(error).__name__, "message": message})
    return EXIT_WRONG_CALL if usage == EXIT_WRONG_CALL or isinstance(error, ConfigurationError) else EXIT_FAILURE


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"forebay {version('forebay')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def forebay(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keeps GPUs fed and restarts exact."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Run this node's daemon in the foreground; `forebay serve --help` lists its options."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "forebay_server", *context.args])  # noqa: S606


@app.command()
def status(
    address: Annotated[
        str | None, typer.Option(help="The daemon's socket; else as a trainer finds it.", metavar="unix:PATH")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the daemon holds and does: disks, sessions, counters."""
    from forebay.console import print_json, print_status, status_json
    from forebay.daemon_client import DaemonClient

    client = DaemonClient(address, reconnect_seconds=0.0, start=False)
    snapshot = client.status()
    place = f"unix:{client.address.socket}"
    if as_json:
        print_json(status_json(snapshot, place))
    else:
        print_status(snapshot, place)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def demo(context: typer.Context) -> Any:
    """Train on real text, kill the trainer, resume with other ranks, and show that nothing was lost or repeated."""
    from forebay.demo.command import demo as command

    return _hand_over(command, context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def order(context: typer.Context) -> Any:
    """Show which samples, shards and rows any batch holds, or how well an order mixes; `forebay order --help`."""
    from forebay.order_command.command import order as command

    return _hand_over(command, context)


def _hand_over(command: Callable[..., Any], context: typer.Context) -> Any:
    """Runs a command of which the options are read only when it is asked for."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(command)
    name = f"forebay {context.info_name}"
    return typer.main.get_command(program).main(context.args, prog_name=name, standalone_mode=False)


if __name__ == "__main__":
    main()
