"""What the facts of a node mean: socket, versions, limits, memory, and disks. Pure.

The thresholds are where trainers and daemons were seen to fail or to crawl; each has its reason beside it.
"""

import errno
import os
import stat
from collections.abc import Mapping
from urllib.parse import urlsplit

from forebay.console import size
from forebay.doctor.facts import MountFacts, PlaceFacts, SocketFacts
from forebay.doctor.findings import Finding, ok, problem, warning
from forebay_core.diagnosis import DaemonFacts, DiskFacts
from forebay_core.filesystems import is_network
from forebay_core.machine import MachineFacts

_GIB = 1 << 30
#: A rank keeps a descriptor for each piece that it reads from: some 1000 with the default window.
_MANY_FILES, _FEW_FILES = 4096, 256
#: Docker's default; NCCL and torch's own loader need more, forebay does not use it.
_SMALL_SHARED = 64 << 20
_LITTLE_MEMORY, _NO_MEMORY = _GIB, 256 << 20
#: MADV_POPULATE_READ, without which a failing disk ends a trainer with SIGBUS.
_KERNEL = (5, 14)
#: Sidecar, piece and directory of the smallest usual pieces.
_BYTES_PER_INODE = 1 << 20
_METADATA_SERVICE = "169.254.169.254"


def socket_findings(socket: SocketFacts) -> list[Finding]:
    """Whether there is a way to a daemon, and only for those who should have one."""
    if socket.connect_error:
        return [_no_answer(socket)]
    found = [ok("socket", f"a daemon answers at {socket.path}")]
    if socket.mode & stat.S_IWOTH:
        found = [problem("socket", f"any user may use {socket.path}", f"chmod o-rwx {socket.path}")]
    if socket.directory_mode & stat.S_IWOTH and not socket.directory_mode & stat.S_ISVTX:
        directory = os.path.dirname(socket.path)  # noqa: PTH120 - a text, not a file to look at
        found.append(problem("socket", f"any user may put another socket into {directory}", f"chmod o-w {directory}"))
    return found


def _no_answer(socket: SocketFacts) -> Finding:
    if socket.connect_error == errno.EACCES:
        return problem(
            "socket",
            f"{socket.path} refuses this user",
            f"join the group {socket.group_id} that owns it" if socket.exists else "ask who runs the daemon for access",
        )
    if socket.exists and not socket.is_socket:
        return problem("socket", f"{socket.path} is no socket", "give the daemon another place (--socket)")
    serve = f"forebay serve --socket {socket.path} --cache-dir DIRECTORY"
    why = os.strerror(socket.connect_error).lower()
    if socket.is_embedded:
        found = f"no daemon of this user runs at {socket.path}; a trainer starts one by itself"
        return warning("socket", found, f"to check the way to the data start one: {serve}")
    return problem("socket", f"no daemon answers at {socket.path} ({why})", f"start one: {serve}")


def version_findings(client_version: str, daemon: DaemonFacts) -> list[Finding]:
    """Whether both sides are of one version."""
    if daemon.version == client_version:
        return [ok("versions", f"client and daemon are {client_version}")]
    return [
        warning(
            "versions",
            f"this client is {client_version}, the daemon (process {daemon.process_id}) {daemon.version}",
            "install the same version, and restart the daemon",
        )
    ]


def machine_findings(machine: MachineFacts, who: str) -> list[Finding]:
    """Limits, memory, processors and kernel of one process; `who` is "trainer" or "daemon"."""
    return [
        _open_files(machine, who),
        _memory(machine, who),
        _processors(machine, who),
        _kernel(machine, who),
        *(_shared_memory(machine) if who == "trainer" else []),
    ]


def _open_files(machine: MachineFacts, who: str) -> Finding:
    check, limit = f"{who}: open files", machine.open_files
    if limit == 0 or limit >= _MANY_FILES:
        return ok(check, f"{limit or 'no limit'}")
    advice = "raise it: ulimit -n 65536, LimitNOFILE= of its unit, or the container's nofile"
    judged = problem if limit < _FEW_FILES else warning
    return judged(check, f"at most {limit}: a piece that is read holds one", advice)


def _memory(machine: MachineFacts, who: str) -> Finding:
    check, free = f"{who}: memory", machine.available_memory_bytes
    found = f"{size(free)} of {size(machine.memory_bytes)} to use"
    if free >= _LITTLE_MEMORY:
        return ok(check, found)
    judged = problem if free < _NO_MEMORY else warning
    return judged(check, found, "give it more, or raise the limit of its control group (memory.max, the pod's limits)")


def _processors(machine: MachineFacts, who: str) -> Finding:
    check, found = f"{who}: processors", f"{machine.cpus:g} to use"
    if machine.cpus >= 1:
        return ok(check, found)
    return warning(check, found, "raise its share (cpu.max, the pod's limits): downloads are decoded by them")


def _kernel(machine: MachineFacts, who: str) -> Finding:
    check = f"{who}: kernel"
    if not machine.has_memfd:
        return problem(
            check,
            f"{machine.kernel} gives no memory files",
            "allow memfd_create: worker processes send batches by them",
        )
    numbers = tuple(int(part) for part in machine.kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers and numbers < _KERNEL:
        return warning(check, f"{machine.kernel} is older than 5.14: a failing disk ends a trainer", "use a newer one")
    return ok(check, machine.kernel)


def _shared_memory(machine: MachineFacts) -> list[Finding]:
    check, found = "trainer: /dev/shm and locked memory", f"{size(machine.shared_memory_bytes)} of /dev/shm"
    locked = machine.locked_memory_bytes
    found += f", {size(locked) if locked else 'no limit'} of locked memory"
    if machine.shared_memory_bytes > _SMALL_SHARED:
        return [ok(check, found)]
    return [warning(check, found, "forebay needs none, NCCL does: docker run --shm-size, or a memory volume in a pod")]


def proxy_findings(proxies: Mapping[str, str], endpoint: str, credentials: str) -> list[Finding]:
    """Whether requests of the daemon go through a proxy, the local ones among them."""
    ways = [name for name in proxies if name.upper() in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROXY_URL")]
    if not ways:
        return [ok("proxy", "none is set for the daemon")]
    spared = [
        host.strip() for name, value in proxies.items() if name.upper() == "NO_PROXY" for host in value.split(",")
    ]
    named = ", ".join(f"{name}={proxies[name]}" for name in ways)
    findings = []
    host = urlsplit(endpoint).hostname or ""
    if host and not _is_spared(host, spared):
        findings.append(warning("proxy", f"requests to {host} go through {named}", f"if not meant: NO_PROXY={host}"))
    if "machine's role" in credentials and not _is_spared(_METADATA_SERVICE, spared):
        advice = f"add {_METADATA_SERVICE} to NO_PROXY of the daemon"
        findings.append(warning("proxy", f"the machine's role is asked for through {named}", advice))
    return findings or [ok("proxy", f"{named}, not used here")]


def _is_spared(host: str, spared: list[str]) -> bool:
    return any(rule == "*" or host == rule or host.endswith(f".{rule.lstrip('.')}") for rule in spared if rule)


def disk_findings(disk: DiskFacts, mount: MountFacts) -> list[Finding]:
    """One cache directory: seen by both sides, on a local disk, with room."""
    check = f"disk {disk.path}"
    if disk.state != "normal":
        judged = problem if disk.state == "down" else warning
        advice = "look into the kernel's log and the daemon's; replace the disk, or leave it out (--cache-dir)"
        return [judged(check, f"{disk.state}: {disk.reason}", advice)]
    return [_mounted(check, disk, mount), _local(check, disk.path, mount.file_system or disk.file_system), _room(disk)]


def _mounted(check: str, disk: DiskFacts, mount: MountFacts) -> Finding:
    if mount.message:
        return problem(
            check,
            f"this process does not see it ({mount.message.partition(';')[0]})",
            "mount it here, and set FOREBAY_CACHE_DIR",
        )
    if mount.id_inode != disk.id_inode:
        found = f"{mount.path} is a copy of it and not the same directory"
        return problem(check, found, "mount the daemon's directory itself (a bind mount, a hostPath)")
    if not mount.is_readable:
        return problem(check, f"this user may not read {mount.path}", "join the group that owns it (--group)")
    if not mount.can_lock:
        return problem(check, f"files in {mount.path} cannot be locked (flock)", "use a local disk")
    return ok(check, "this process sees it" + (f" as {mount.path}" if mount.path != disk.path else ""))


def _local(check: str, path: str, kind: str) -> Finding:
    if is_network(kind):
        return problem(
            check, f"{path} is on a network file system ({kind})", "give the daemon a local disk (--cache-dir)"
        )
    if kind in ("tmpfs", "ramfs"):
        return warning(check, f"it is kept in memory ({kind})", "give a directory on a disk, unless that is meant")
    return ok(check, f"a local file system ({kind or 'unknown'})")


def _room(disk: DiskFacts) -> Finding:
    check = f"disk {disk.path}"
    reachable = disk.used_bytes + disk.free_bytes
    found = f"{size(disk.used_bytes)} of {size(disk.capacity_bytes)} used, {size(disk.free_bytes)} free on the disk"
    if disk.inodes and disk.free_inodes < max(1, (disk.capacity_bytes - disk.used_bytes) // _BYTES_PER_INODE):
        judged = problem if disk.free_inodes < 1000 else warning
        return judged(check, f"{found}, {disk.free_inodes:,} inodes left", "free inodes, or make the disk with more")
    if disk.free_bytes + disk.used_bytes < disk.capacity_bytes // 2:
        advice = "free some space, or give a capacity that is there (--capacity)"
        return warning(check, f"{found}: the cache cannot grow beyond {size(reachable)}", advice)
    return ok(check, found)


def place_findings(place: PlaceFacts) -> list[Finding]:
    """Where the cache of a daemon that does not run yet would lie."""
    check = f"disk {place.path}"
    findings = [_local(check, place.path, place.file_system)]
    found = f"{size(place.free_bytes)} of {size(place.size_bytes)} free"
    if place.free_bytes < _GIB:
        findings.append(warning(check, found, "free some space, or set FOREBAY_CACHE_DIR to another disk"))
    else:
        findings.append(ok(check, found))
    return findings
