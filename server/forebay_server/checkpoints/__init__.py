"""Checkpoints in the daemon: what it keeps for the trainers of its node until it is at its destination.

`destinations` says where that is.
"""
