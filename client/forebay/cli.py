"""The program `forebay`: its commands, and one way for all of them to fail.

Exit status: 0, 2 for a wrong call or configuration, 1 for a failure, 130 when interrupted. An error is one line on
standard error, with `--json` also one object `{"error", "message"}` on standard output; `FOREBAY_DEBUG=1` shows the
traceback. The daemon is another program (`python -m forebay_server`) that `serve` becomes; nothing of it is imported.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer

from forebay.command_options import AddressOption, JsonOption
from forebay_core.errors import ConfigurationError
from forebay_core.printing import printable

EXIT_FAILURE = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

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
    message = printable(" ".join(text.split())) or type(error).__name__
    if usage == EXIT_WRONG_CALL:
        context = getattr(error, "ctx", None)
        message = f"{message.rstrip('.')}; see {context.command_path if context else 'forebay'} --help"
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
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the daemon holds and does: disks, sessions, counters."""
    from forebay.console import print_json, print_status, status_json
    from forebay.daemon.client import DaemonClient

    client = DaemonClient(address, reconnect_seconds=0.0, start=False)
    snapshot = client.status()
    place = f"unix:{client.address.socket}"
    if as_json:
        print_json(status_json(snapshot, place))
    else:
        print_status(snapshot, place)


@app.command()
def health(
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the daemon whether it serves, for probes: the exit status is 0 where it does, 1 where not."""
    from forebay.daemon.client import DaemonClient

    client = DaemonClient(address, reconnect_seconds=0.0, start=False)
    client.check_health()
    place = f"unix:{client.address.socket}"
    if as_json:
        from forebay.console import print_json

        print_json({"address": place, "serving": True})
    else:
        print(f"serving on {place}")


@app.command()
def stop(
    address: AddressOption = None,
    wait_seconds: Annotated[float, typer.Option(help="How long it may take.", min=0)] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """End the daemon, such as one that a loader started: fills in flight finish, what is cached stays."""
    from forebay.console import print_json
    from forebay.daemon.address import resolve
    from forebay.daemon.stopping import stop as end

    socket = resolve(address, os.environ).socket
    process_id = end(socket, wait_seconds=wait_seconds)
    if as_json:
        print_json({"address": f"unix:{socket}", "process_id": process_id})
    else:
        print(f"the daemon at unix:{socket} (process {process_id}) has ended")


#: Commands that live in modules of their own, loaded when they are asked for: where, and what they do.
_COMMANDS = {
    "sessions": ("forebay.operators.sessions", "Show who reads through the daemon, and who waits."),
    "top": ("forebay.operators.top", "Watch the daemon: disks, throughput, what is fetched for whom, who waits."),
    "ls": ("forebay.operators.contents", "Show what is in the cache."),
    "warm": ("forebay.operators.warm", "Bring a dataset into the cache, or say how much of it is there."),
    "pin": ("forebay.operators.pins", "Keep what is cached of some URLs, and what will be; or show what is kept."),
    "unpin": ("forebay.operators.pins", "Let what was pinned be evicted again."),
    "evict": ("forebay.operators.evict", "Remove pieces from the cache."),
    "disk": ("forebay.operators.disk", "Drain one of the daemon's disks, or admit it again."),
    "verify": ("forebay.verify_command", "Read all cached pieces in full and compare them with their checksums."),
    "doctor": (
        "forebay.doctor.command",
        "Check this node and the way to a dataset, measure both, and say what to do.",
    ),
    "order": (
        "forebay.order_command.command",
        "Show which samples, shards and rows any batch holds, or how well an order mixes.",
    ),
    "checkpoints": (
        "forebay.checkpoints_command.command",
        "List, show, verify and clean up checkpoints, and export the model of one.",
    ),
    "run": (
        "forebay.run_command.command",
        "Run a job on this node, and start it anew after a failure, as long as it gets on.",
    ),
    "demo": (
        "forebay.demo.command",
        "Train on real text, kill the trainer, resume with other ranks, and show that nothing was lost or repeated.",
    ),
}


def _register(name: str, module: str, summary: str) -> None:
    @app.command(name, help=summary, context_settings=_PASS_THROUGH, add_help_option=False)
    def command(context: typer.Context) -> Any:
        found = import_module(module)
        return _hand_over(found.app if hasattr(found, "app") else getattr(found, name), context)


def _hand_over(command: Callable[..., Any] | typer.Typer, context: typer.Context) -> Any:
    """Runs a command, or one of several below a name, of which the options are read only when it is asked for."""
    if isinstance(command, typer.Typer):
        program = command
    else:
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        program.command()(command)
    name = f"forebay {context.info_name}"
    return typer.main.get_command(program).main(context.args, prog_name=name, standalone_mode=False)


for _name, _place in _COMMANDS.items():
    _register(_name, *_place)

if __name__ == "__main__":
    main()
