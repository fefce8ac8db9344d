"""The Dockerfile: as a linter reads it, and of files that there are."""

import re
import shlex

from tests.deploy.tools import DEPLOY, output, tool

FILE = DEPLOY / "docker/Dockerfile"
ROOT = DEPLOY.parent


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line.strip()]


def test_the_linter_has_nothing_to_say() -> None:
    assert output(tool("hadolint", brought_by="make install"), FILE) == ""


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = [
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    ]
    assert {"pyproject.toml", "client", "core", "protos", "server"} <= set(copied)
    kept = {line[1:] for line in FILE.with_suffix(".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == kept, "all else stays out of the image"
    assert all((ROOT / source).exists() for source in copied)


def test_it_runs_without_rights_or_secrets_on_a_base_that_is_named() -> None:
    found = instructions()
    bases = [rest.split()[0] for name, rest in found if name == "FROM"]
    assert all(re.fullmatch(r"python:\d+\.\d+-[\w-]+", base) for base in bases), bases
    users = [rest for name, rest in found if name == "USER"]
    assert users
    assert not users[-1].startswith(("0", "root"))
    settings = " ".join(rest for name, rest in found if name in ("ENV", "ARG"))
    assert not re.search(r"KEY|SECRET|TOKEN|PASSWORD", settings, re.IGNORECASE)
