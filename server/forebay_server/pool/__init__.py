"""The cache over all disks of a daemon: which disk takes a piece, and what follows when one fails."""
