"""The client's side of the node's daemon: where it is, how it is started, asked, and ridden through.

`address` decides where it is, `client` asks it and rides through its restarts (`waiting` says for how long, `channel`
carries the calls), `session` keeps one reader's needs and leases over them, `checkpoint_root` asks about checkpoints,
`disks` finds its files as this process sees them, `embedded` and `embedded_place` start the user's own one. It knows
nothing of what is read, and of no torch.
"""
