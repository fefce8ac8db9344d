"""`forebay checkpoints`: what a root and a checkpoint hold, whether it is right, what may go, and the model alone.

`command` has the options, `asking` talks to the daemon, which alone touches the destination; `chosen`, `contents` and
`tables` decide what is meant and how it is shown. `exporting` alone needs torch.
"""
