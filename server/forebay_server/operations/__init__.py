"""What operators do with a node's cache: look into it, warm it, keep parts of it, and empty it.

Over the pool, the fills and the sessions; it does not know that it is asked for over gRPC.
"""
