"""What the facts of the way to a source mean: credentials, service, requests, and whether bytes come fast enough.

Pure.
"""

from collections.abc import Sequence

from forebay.console import size
from forebay.doctor.findings import Finding, failed, ok, problem, rate, warning
from forebay_core.diagnosis import CredentialFacts, EndpointFacts, MeasurementFacts, ProbeFacts

#: S3 refuses requests that are off by 15 minutes.
_CLOCK_WRONG_SECONDS, _CLOCK_OFF_SECONDS = 300.0, 60.0
#: Of a thousand objects; a million takes half an hour at this pace.
_SLOW_PAGE_SECONDS = 2.0
#: Objects below this come as fast as requests do, not as bytes do.
_SMALL_OBJECT = 1 << 20
_SLOW_LATENCY_SECONDS = 0.5
#: Errors of a first request that leave it open whether the credentials are any good.
_NOT_LET_IN = frozenset({"AccessDenied", "SourceUnreachable"})


def credential_findings(credentials: CredentialFacts, probes: Sequence[ProbeFacts]) -> list[Finding]:
    """Where the daemon's credentials come from, or why there are none. `probes` are the requests made with them."""
    if credentials.error:
        return [failed("credentials", credentials.message)]
    found = credentials.origin
    if credentials.expires_in_seconds:
        found += f", renewed before they expire in {credentials.expires_in_seconds / 60:.0f} min"
    if credentials.requester_pays:
        found += ", which pay for the requests"
    region = ok("region", f"{credentials.region} at {credentials.endpoint}")
    if credentials.anonymous or not any(probe.error in _NOT_LET_IN for probe in probes[:1]):
        return [ok("credentials", found), region]
    return [warning("credentials", f"{found}; no request with them has succeeded", f"see {probes[0].action}"), region]


def endpoint_findings(endpoint: EndpointFacts, *, region: str, is_reached: bool) -> list[Finding]:
    """The service itself: there, with the same clock, and of the region. `is_reached`: the daemon can list there."""
    if endpoint.message:
        found = f"{endpoint.endpoint} gives no answer to a plain request: {endpoint.message}"
        if is_reached:
            return [warning("service", found, "check the proxies: the daemon's own requests do get through")]
        return [problem("service", found, "check AWS_ENDPOINT_URL, the network and the proxies")]
    findings = [ok("service", f"{endpoint.endpoint} answers in {_milliseconds(endpoint.seconds)}")]
    findings += _clock(endpoint) if endpoint.has_date else []
    if endpoint.bucket_region and region and endpoint.bucket_region != region:
        found = f"the bucket is in {endpoint.bucket_region}, requests go to {region}"
        findings.append(problem("region", found, f"set AWS_REGION={endpoint.bucket_region} for the daemon"))
    return findings


def _clock(endpoint: EndpointFacts) -> list[Finding]:
    off = endpoint.clock_ahead_seconds
    found = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the service's"
    if abs(off) < _CLOCK_OFF_SECONDS:
        return [ok("clock", "as the service's")]
    judged = problem if abs(off) >= _CLOCK_WRONG_SECONDS else warning
    return [judged("clock", found, "set this machine's clock (NTP): requests are refused when it is off by 15 min")]


def probe_findings(probe: ProbeFacts) -> list[Finding]:
    """One request of the kind that reading makes."""
    if probe.error:
        return [failed(probe.action, probe.message)]
    took = _milliseconds(probe.seconds)
    if probe.action != "list":
        return [ok(probe.action, f"{probe.url} in {took}")]
    found = f"{probe.objects:,}{' and more' if probe.more else ''} objects, {size(probe.bytes)}, in {took}"
    if probe.objects >= 1000 and probe.seconds * 1000 / probe.objects > _SLOW_PAGE_SECONDS:
        minutes = probe.seconds / probe.objects * 1e6 / 60
        advice = f"a million would take {minutes:.0f} min, once for each opening: fewer, larger objects"
        return [warning("list", found, advice)]
    return [ok("list", found)]


def rate_findings(
    measurements: Sequence[MeasurementFacts], probes: Sequence[ProbeFacts], *, needed_bytes_per_second: float = 0.0
) -> list[Finding]:
    """How fast bytes come, and what limits that. `needed_bytes_per_second`: what training reads; 0: not said."""
    findings = [failed(f"measured: {m.what}", m.message) for m in measurements if m.error]
    good = [m for m in measurements if not m.error]
    findings += [ok(f"measured: {m.what}", _measured(m)) for m in good]
    remote = next((m for m in good if m.what == "remote"), None)
    writes = [m for m in good if m.what == "write"]
    if remote is None:
        return findings
    ways = {"the remote": remote.bytes_per_second}
    if writes:
        ways["writing to the cache"] = sum(m.bytes_per_second for m in writes)
    limit = min(ways, key=ways.__getitem__)
    return [*findings, _keeps_up(limit, ways[limit], needed_bytes_per_second), *_small_objects(remote, probes)]


def _measured(measurement: MeasurementFacts) -> str:
    found = f"{rate(measurement.bytes_per_second)} ({size(measurement.bytes)} in {measurement.seconds:.1f} s"
    if measurement.what == "remote":
        found += f", {measurement.requests_at_once} requests at once, {_milliseconds(measurement.latency_seconds)} each"
    return f"{found})"


def _keeps_up(limit: str, limit_rate: float, needed: float) -> Finding:
    found = f"what is not in the cache comes at {rate(limit_rate)} at most: {limit} is the limit"
    if not needed:
        return ok("throughput", f"{found}; compare it with what training reads (--rate)")
    if needed <= limit_rate:
        return ok("throughput", f"{found}, and training reads {rate(needed)}")
    advice = "training waits in its first epoch, later only for what the cache does not hold: "
    advice += "a service nearer by, more bandwidth" if limit == "the remote" else "a faster disk, or several"
    return warning("throughput", f"{found}, and training reads {rate(needed)}", advice)


def _small_objects(remote: MeasurementFacts, probes: Sequence[ProbeFacts]) -> list[Finding]:
    listed = next((probe for probe in probes if probe.action == "list" and probe.objects), None)
    if listed is None or not remote.latency_seconds:
        return []
    mean = listed.bytes / listed.objects
    per_second = remote.requests_at_once / remote.latency_seconds
    if mean >= _SMALL_OBJECT or remote.latency_seconds < _SLOW_LATENCY_SECONDS / 10:
        return []
    found = f"objects of {size(int(mean))} come at {per_second:,.0f} a second, {rate(per_second * mean)}"
    return [warning("small objects", f"{found}: the latency is the limit", "pack them into larger objects")]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{seconds * 1000:.1f} ms"
