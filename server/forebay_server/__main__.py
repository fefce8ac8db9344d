"""`python -m forebay_server`: reads the configuration, sets up the log, and serves.

Exit status: 0 after an orderly end, 2 for a call or configuration that cannot work, 1 for any other failure. Errors are
one line on standard error, and with `--json` also one JSON object on standard output.
"""

import asyncio
import json
import logging
import os
import resource
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from typing import Any

from forebay_core.errors import ConfigurationError, ForebayError, one_line
from forebay_core.machine import usable_memory_bytes
from forebay_core.redaction import Redactor, secrets_of
from forebay_server.config import ServerConfig
from forebay_server.daemon import serve
from forebay_server.node import Node
from forebay_server.process.allocator import keep_freed
from forebay_server.process.budgets import budgets
from forebay_server.settings.command_line import parse

_EMBEDDED_LOG_BYTES = 4 << 20

_DESCRIPTORS = 1 << 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a daemon to its end and returns the exit status."""
    os.umask(0o027)
    _allow_descriptors()
    keep_freed(budgets(usable_memory_bytes()).flight_bytes, os.environ)
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        line = parse(arguments, os.environ)
        as_json = line.json
        _set_up_log(line.config, os.environ)
        asyncio.run(serve(line.config, os.environ, _announce if line.json else _stay_silent))
    except ForebayError as error:
        print(f"forebay: {one_line(error)}", file=sys.stderr)
        if as_json:
            _tell(type(error).__name__, one_line(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    except Exception as error:
        print(Redactor(secrets_of(os.environ))(traceback.format_exc()), file=sys.stderr)
        if as_json:
            _tell(type(error).__name__, one_line(error))
        return 1
    return 0


def _allow_descriptors() -> None:
    """Each client has a connection: the usual soft limit of 1,024 is soon reached on a large machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _announce(node: Node) -> None:
    line = {"socket": str(node.config.socket), "pid": node.process_id, "boot_id": node.boot_id}
    if node.http_address:
        line["http"] = node.http_address
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


class _WithoutSecrets(logging.Formatter):
    """The last line of defence: no secret leaves this process in a line of its log, be it another library's."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redacted = Redactor(secrets_of(environment))

    def format(self, record: logging.LogRecord) -> str:
        return self._redacted(super().format(record))


def _set_up_log(config: ServerConfig, environment: Mapping[str, str]) -> None:
    try:
        handler = handler_of(config)
    except OSError as error:
        raise ConfigurationError(f"the log file {config.log_file} cannot be written: {error} (--log-file)") from error
    handler.setFormatter(_WithoutSecrets(environment))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])


def handler_of(config: ServerConfig) -> logging.Handler:
    """Nobody looks after the log of an embedded daemon, so it keeps that bounded itself."""
    if config.log_file is None:
        return logging.StreamHandler()
    if not config.embedded:
        return logging.FileHandler(config.log_file)
    return RotatingFileHandler(config.log_file, maxBytes=_EMBEDDED_LOG_BYTES, backupCount=1)


if __name__ == "__main__":
    sys.exit(main())
