"""Which file system a path lies on, and whether it is one of the network.

Read from the kernel's mount table: the mount with the longest matching directory counts, the later one where several
are mounted on one directory. Pure but for reading the table; called at start and when a dataset is opened.
"""

import os
from pathlib import Path

#: Types whose files are served by another machine, or by a process that may be.
NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"),
    )
)


def filesystem_type(path: Path, table: str | None = None) -> str:
    """The type of the file system that holds `path`, as /proc/self/mountinfo names it; empty if it cannot be told."""
    if table is None:
        table = _mount_table()
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) > 4 and types:
            mount = _unescape(fields[4])
            if _contains(mount, real) and len(mount) >= len(best):
                best, kind = mount, types[0]
    return kind


def is_network(kind: str) -> bool:
    """True for a network file system; a FUSE file system counts as one, except an overlay."""
    return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind not in {"fuseblk", "fuse.fuse-overlayfs"})


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""


def _contains(mount: str, path: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount + "/")


def _unescape(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
