"""The files of the AWS command line, `~/.aws/config` and `~/.aws/credentials`: what one profile says.

A profile is the section `[profile NAME]` (or `[default]`) of the first file and `[NAME]` of the second, which wins.
Only files are read here; what a profile means for reading a bucket is `credentials`' affair. Nothing that is said of a
file quotes it: its lines hold secrets. Any thread.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_core.errors import ConfigurationError

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Profile:
    """What the files say under one name: settings by their names in lower case."""

    name: str
    settings: Mapping[str, str]

    def get(self, name: str) -> str:
        """A setting; empty where there is none."""
        return self.settings.get(name, "")


def read_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that `AWS_PROFILE` names, else the default one; None where there is no default one.

    Raises `ConfigurationError` for a file that cannot be read and for a name that is in neither.
    """
    name = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or DEFAULT
    config, credentials = _place(environment, "AWS_CONFIG_FILE", "config"), _credentials_place(environment)
    sections = [_sections(config).get(_config_section(name)), _sections(credentials).get(name)]
    found = [section for section in sections if section is not None]
    if found:
        return Profile(name, {key: value for section in found for key, value in section.items()})
    if name == DEFAULT:
        return None
    places = " and ".join(str(path) for path in (config, credentials) if path) or "no file: HOME is not set"
    raise ConfigurationError(f"there is no profile {name!r} (AWS_PROFILE); looked in {places}")


def _credentials_place(environment: Mapping[str, str]) -> Path | None:
    return _place(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")


def _place(environment: Mapping[str, str], variable: str, name: str) -> Path | None:
    home = environment.get("HOME")
    given = environment.get(variable, "")
    if given.startswith("~/") and home:
        return Path(home, given[2:])
    if given:
        return Path(given)
    return Path(home, ".aws", name) if home else None


def _config_section(name: str) -> str:
    return name if name == DEFAULT else f"profile {name}"


def _sections(path: Path | None) -> dict[str, dict[str, str]]:
    """Settings by section; none where there is no file."""
    if path is None:
        return {}
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"the AWS file {path} cannot be read ({reason}); check its owner and mode") from None
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        raise ConfigurationError(f"the AWS file {path} is not of sections and lines `name = value`; mend it") from None
    return {" ".join(section.split()): _settings(parser, section) for section in parser.sections()}


def _settings(parser: configparser.RawConfigParser, section: str) -> dict[str, str]:
    return {name: value.strip() for name, value in parser.items(section)}
