"""Which file systems count as the network's."""

from pathlib import Path

import pytest

from forebay_core.filesystems import filesystem_type, is_network

TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw - nfs4 server:/x rw
31 30 0:41 / /data/local rw - xfs /dev/nvme0n1 rw
32 22 0:42 / /with\040space rw - fuse.s3fs s3fs rw
33 22 0:43 / /data/local rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/database/x", "ext4"),
        ("/data", "nfs4"),
        ("/data/x/y", "nfs4"),
        ("/data/local/x", "tmpfs"),
        ("/with space/x", "fuse.s3fs"),
    ],
)
def test_the_longest_and_latest_mount_counts(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), TABLE) == kind


def test_an_unreadable_table_says_nothing() -> None:
    assert filesystem_type(Path("/"), "") == ""
    assert not is_network("")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.sshfs", "fuse", "panfs", "smb3"])
def test_file_systems_of_other_machines_are_network(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "btrfs", "fuse.fuse-overlayfs", "fuseblk"])
def test_local_file_systems_are_not(kind: str) -> None:
    assert not is_network(kind)
