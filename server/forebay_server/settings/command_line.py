"""`forebay serve`'s command line, with what the environment and the configuration file add to it.

Flags win over variables, these over the file, this over the defaults. The file is the one of `--config` or
`FOREBAY_CONFIG`, else /etc/forebay/forebay.toml where there is one: a daemon that a trainer starts for its user leaves
that to the machine's own daemon, and reads none that it was not told of.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from forebay_core.errors import ConfigurationError
from forebay_server.config import ServerConfig
from forebay_server.settings import file
from forebay_server.settings.readers import SWITCH
from forebay_server.settings.table import OPTIONS, Option

DEFAULT_FILE = Path("/etc/forebay/forebay.toml")
_CONFIG_VARIABLE = "FOREBAY_CONFIG"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line: the configuration, the file that it is partly from, and how to report."""

    config: ServerConfig
    file: Path | None
    json: bool


def parse(
    arguments: Sequence[str], environment: Mapping[str, str], *, default_file: Path = DEFAULT_FILE
) -> CommandLine:
    """Reads the configuration. Raises `ConfigurationError`, also for unknown flags."""
    given = vars(_parser().parse_args(arguments))
    fields: dict[str, object] = {}
    for option in OPTIONS:
        fields |= _from_environment(option, environment)
        fields |= _from_flags(option, given[option.key])
    path = _file(given["config"] or environment.get(_CONFIG_VARIABLE), fields.get("embedded"), default_file)
    of_file = {} if path is None else file.read(path, OPTIONS)
    return CommandLine(_checked(fields, of_file, path), path, given["json"])


def _file(named: str | None, embedded: object, default: Path) -> Path | None:
    if named:
        return Path(named).expanduser().absolute()
    return default if not embedded and os.path.exists(default) else None  # noqa: PTH110 - False where it is hidden


def _checked(fields: dict[str, object], of_file: dict[str, object], path: Path | None) -> ServerConfig:
    try:
        return ServerConfig(**{**of_file, **fields})  # type: ignore[arg-type]
    except ConfigurationError as error:
        if not of_file:
            raise
        ServerConfig(**fields)  # type: ignore[arg-type]  # raises where the file is not what is wrong
        raise ConfigurationError(f"{path}: {error}") from None


def _from_environment(option: Option, environment: Mapping[str, str]) -> dict[str, object]:
    text = environment.get(option.variable)
    if not text:
        return {}
    if option.split is None:
        return {option.field: option.reader.from_text(text, option.variable)}
    return {option.field: tuple(option.reader.from_text(part, option.variable) for part in option.split(text))}


def _from_flags(option: Option, given: str | list[str] | None) -> dict[str, object]:
    if given is None:
        return {}
    if isinstance(given, str):
        return {option.field: option.reader.from_text(given, option.flag)}
    return {option.field: tuple(option.reader.from_text(text, option.flag) for text in given)}


class _Parser(argparse.ArgumentParser):
    """A parser to which a wrong call is an error of one line, like any other."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="forebay serve",
        description="The forebay node daemon. Each option may also be given as a variable (FOREBAY_CACHE_DIR for"
        " --cache-dir) or in the configuration file (cache_dir = …).",
    )
    for option in OPTIONS:
        text = option.help.replace("%", "%%")
        if option.reader is SWITCH:
            parser.add_argument(option.flag, dest=option.key, action="store_const", const="1", help=text)
        elif option.split:
            text += "; may be repeated"
            parser.add_argument(option.flag, dest=option.key, action="append", metavar=option.metavar, help=text)
        else:
            parser.add_argument(option.flag, dest=option.key, metavar=option.metavar, help=text)
    parser.add_argument("--config", metavar="FILE", help=f"TOML file of settings (default: {DEFAULT_FILE})")
    parser.add_argument("--json", action="store_true", help="print one JSON line when serving")
    return parser
