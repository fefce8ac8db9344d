"""What a checkpoint is at its destination: names, documents, and the rules by which it comes and goes (pure).

`names` says where objects lie, `documents` what is in those that are JSON, `protocol` who may decide what. Both sides
use them: the trainer's process writes manifests, the daemon uploads and decides.
"""
