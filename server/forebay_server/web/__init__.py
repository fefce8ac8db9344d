"""What people and monitoring see of a daemon over HTTP: metrics, health, and the status page. Read only.

`metrics` and `status` turn a node into values, `history` keeps what charts need, `server` serves them; `address` says
where. Nothing in the daemon depends on any of it.
"""
