"""Which file system a path lies on, and whether it is one of the network.

Read from the kernel's mount table: the mount with the longest matching directory counts, the later one where several
are mounted on one directory. Pure but for reading the table and resolving links; called at start and when a dataset is
opened.
"""

import os
import re
from pathlib import Path

#: Types whose files are served by another machine.
NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "panfs", "pvfs2", "wekafs"),
    )
)
#: FUSE may be served by anything; these two lie on a local disk.
_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})
_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_type(path: Path, table: str | None = None) -> str:
    """The type of the file system that holds `path`, as /proc/self/mountinfo names it; empty if it cannot be told.

    The path need not be there yet. `table`: the text of /proc/self/mountinfo, read where it is not given.
    """
    if table is None:
        table = _mount_table()
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) > 4 and types:
            mount = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4])
            if _contains(mount, real) and len(mount) >= len(best):
                best, kind = mount, types[0]
    return kind


def is_network(kind: str) -> bool:
    """True for a network file system; a FUSE file system counts as one, unless it is known to be local."""
    return kind in NETWORK_TYPES or (kind.startswith(("fuse", "smb")) and kind not in _LOCAL_FUSE)


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""


def _contains(mount: str, path: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount + "/")
