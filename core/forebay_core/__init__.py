"""What the daemon and its clients agree on: manifests, pieces and their identity, formats, eviction rules.

Nothing here talks to a network or knows of torch: formats and manifests ask for bytes and are given them, decisions
take their clock as an argument.
"""
