"""Saves and restores of a job's state, ours beside torch's own ways, on real gloo ranks.

Reading order: `job` (the state), `saves` (the ways), `program` (what each rank runs), `launching` (who starts it).
"""
