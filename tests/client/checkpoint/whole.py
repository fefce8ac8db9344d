"""A save of one process, as the checkpointer makes it."""

from pathlib import Path

from forebay.checkpoint.manifests import ALONE, write_manifest
from forebay.checkpoint.metadata import write_metadata
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.staging import Staged
from forebay_core.checkpoints.documents import FileRecord


def write_whole(saving: Saving, staged: Staged, directory: Path) -> tuple[FileRecord, ...]:
    """The files that it has written, the manifest last."""
    if saving.knows(staged):
        written = saving.write_again(staged, directory)
        files = (*written.files, write_metadata(directory, written.layout.metadata))
    else:
        files = saving.write(staged, directory).files
    write_manifest(directory, ALONE, 0, 1, files=files)
    return files
