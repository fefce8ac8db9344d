"""Where checkpoints are kept for good: one contract (`base`), one implementation per kind of place (`s3`, `file`).

`registry` opens the destination of a root, `permits` says which roots may be written, `driving` runs the procedures of
the commit protocol against one.
"""
