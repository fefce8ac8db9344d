"""`forebay doctor [SOURCE]`: gathers, judges, prints. Exit status 0, or 1 where a check is a problem.

It starts no daemon. Without one it checks what can be checked from here and says how to start one.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated

import typer
from rich.table import Table

from forebay.command_options import AddressOption, JsonOption
from forebay.console import make_console, print_json
from forebay.daemon.client import DaemonClient
from forebay.daemon.source_urls import absolute
from forebay.doctor import local_verdicts as local
from forebay.doctor import remote_verdicts as remote
from forebay.doctor.asking import ask, look_at_root
from forebay.doctor.checkpoint_verdicts import root_findings
from forebay.doctor.facts import look_at_mount, look_at_place, look_at_socket
from forebay.doctor.findings import Finding, Verdict, failed, problem, summary
from forebay_core.capacity import Capacity
from forebay_core.diagnosis import (
    CredentialFacts,
    DaemonFacts,
    DiskFacts,
    EndpointFacts,
    MeasurementFacts,
    ProbeFacts,
)
from forebay_core.errors import ConfigurationError, ForebayError, one_line
from forebay_core.locations import Source
from forebay_core.machine import look

#: Of each measurement, at the most.
MEASURE_BYTES = 512 << 20
_STYLES = {Verdict.OK: "", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


def doctor(
    source: Annotated[
        list[str] | None, typer.Argument(help="A dataset that the daemon should be able to read.")
    ] = None,
    *,
    checkpoints: Annotated[
        str | None, typer.Option(help="A root for checkpoints that the daemon should be able to write.", metavar="ROOT")
    ] = None,
    address: AddressOption = None,
    rate: Annotated[
        str | None, typer.Option(help="Bytes that training reads in a second, such as 800MiB.", metavar="SIZE")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long each measurement may take; 0: none.", metavar="S", min=0, max=30)
    ] = 3.0,
    as_json: JsonOption = False,
) -> int:
    """Check socket, disks, limits, memory, credentials and the way to a dataset, and measure remote and disk."""
    needed = float(_needed(rate))
    urls = Source(tuple(source)).urls if source else ()
    root = "" if checkpoints is None else absolute(checkpoints)
    client = DaemonClient(address, reconnect_seconds=0.0, start=False)
    findings = list(_findings(client, urls, root, os.environ, needed=needed, seconds=seconds))
    place = f"unix:{client.address.socket}"
    if as_json:
        print_json({"address": place, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        _print(findings, place)
    return 1 if any(finding.verdict is Verdict.PROBLEM for finding in findings) else 0


def _needed(rate: str | None) -> int:
    if not rate:
        return 0
    with suppress(ConfigurationError):
        if needed := Capacity.parse(rate).bytes:
            return needed
    raise ConfigurationError(f"--rate {rate!r} is no number of bytes; give one such as 800MiB")


@dataclass
class _Heard:
    """What the daemon said."""

    daemon: DaemonFacts | None = None
    disks: list[DiskFacts] = field(default_factory=list)
    credentials: CredentialFacts | None = None
    endpoint: EndpointFacts | None = None
    probes: list[ProbeFacts] = field(default_factory=list)
    measurements: list[MeasurementFacts] = field(default_factory=list)
    failure: ForebayError | None = None


def _findings(
    client: DaemonClient,
    urls: tuple[str, ...],
    root: str,
    environment: Mapping[str, str],
    *,
    needed: float,
    seconds: float,
) -> Iterator[Finding]:
    socket = look_at_socket(client.address)
    yield from local.socket_findings(socket)
    yield from local.machine_findings(look(environment), "trainer")
    if socket.connect_error:
        yield from local.place_findings(look_at_place(environment))
        for check in [*(["source"] if urls else []), *(["checkpoints"] if root else [])]:
            yield problem(check, "the daemon has the credentials, and none answers", "start one, then ask again")
        return
    heard = _listen(client, urls, seconds)
    if heard.failure is not None:
        yield failed("daemon", one_line(heard.failure))
    if heard.daemon is not None:
        yield from local.version_findings(version("forebay"), heard.daemon)
        yield from local.machine_findings(heard.daemon.machine, "daemon")
    for disk in heard.disks:
        yield from local.disk_findings(disk, look_at_mount(disk, environment))
    yield from _of_source(heard)
    yield from remote.rate_findings(heard.measurements, heard.probes, needed_bytes_per_second=needed)
    if root:
        yield from _of_root(client, root)


def _of_root(client: DaemonClient, root: str) -> Iterator[Finding]:
    try:
        facts = look_at_root(client, root)
    except ForebayError as error:
        yield failed("checkpoints", one_line(error))
    else:
        yield from root_findings(facts)


def _of_source(heard: _Heard) -> Iterator[Finding]:
    credentials = heard.credentials or CredentialFacts()
    if heard.credentials is not None:
        yield from remote.credential_findings(credentials, heard.probes)
    if heard.endpoint is not None:
        is_reached = any(not probe.error for probe in heard.probes)
        yield from remote.endpoint_findings(heard.endpoint, region=credentials.region, is_reached=is_reached)
        proxies = heard.daemon.machine.proxies if heard.daemon else {}
        yield from local.proxy_findings(proxies, heard.endpoint.endpoint, credentials.origin)
    for probe in heard.probes:
        yield from remote.probe_findings(probe)


def _listen(client: DaemonClient, urls: tuple[str, ...], seconds: float) -> _Heard:
    heard = _Heard()
    try:
        for fact in ask(client.address.socket, urls, measure_seconds=seconds, measure_bytes=MEASURE_BYTES):
            match fact:
                case DaemonFacts():
                    heard.daemon = fact
                case DiskFacts():
                    heard.disks.append(fact)
                case CredentialFacts():
                    heard.credentials = fact
                case EndpointFacts():
                    heard.endpoint = fact
                case ProbeFacts():
                    heard.probes.append(fact)
                case MeasurementFacts():
                    heard.measurements.append(fact)
    except ForebayError as error:
        heard.failure = error
    return heard


def _print(findings: list[Finding], place: str) -> None:
    console = make_console(sys.stdout)
    table = Table(title=f"forebay doctor, {place}", title_justify="left")
    for name in ("check", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(
            finding.check, finding.verdict.value, finding.found, finding.advice, style=_STYLES[finding.verdict]
        )
    console.print(table)
    console.print(summary(findings))
