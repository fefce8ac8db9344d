"""`python -m forebay_server`: reads the configuration, sets up the log, and serves.

Exit status: 0 after an orderly end, 2 for a call or configuration that cannot work, 1 for any other failure. Errors are
one line on standard error, and with `--json` also one JSON object on standard output.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from forebay_core.errors import ConfigurationError, ForebayError, one_line
from forebay_server.config import ServerConfig, parse
from forebay_server.daemon import serve
from forebay_server.node import Node


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a daemon to its end and returns the exit status."""
    os.umask(0o027)
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        line = parse(arguments, os.environ)
        as_json = line.json
        _set_up_log(line.config)
        asyncio.run(serve(line.config, os.environ, _announce if line.json else _stay_silent))
    except ForebayError as error:
        print(f"forebay_server: {one_line(error)}", file=sys.stderr)
        if as_json:
            _tell(type(error).__name__, one_line(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    except SystemExit as end:
        if as_json and end.code:
            _tell(ConfigurationError.__name__, "the command line is wrong: standard error says how")
        raise
    except Exception as error:
        if as_json:
            _tell(type(error).__name__, one_line(error))
        raise
    return 0


def _announce(node: Node) -> None:
    line = {"socket": str(node.config.socket), "pid": node.process_id, "boot_id": node.boot_id}
    with suppress(BrokenPipeError):  # whoever started this daemon does not wait for it any more
        _say(line)


def _tell(name: str, message: str) -> None:
    _say({"error": name, "message": message})


def _say(line: dict[str, Any]) -> None:
    """In one write, whatever the buffering: whoever waits for it may close the pipe once it has the line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _stay_silent(_node: Node) -> None:
    """The log says that it serves."""


def _set_up_log(config: ServerConfig) -> None:
    try:
        logging.basicConfig(
            filename=config.log_file,
            level=config.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
    except OSError as error:
        raise ConfigurationError(f"the log file {config.log_file} cannot be written: {error} (--log-file)") from error


if __name__ == "__main__":
    sys.exit(main())
