"""Real parts for tests, benchmarks and the demo's check: an S3 server, a counting proxy, processes, small datasets.

Nothing here imports forebay, pytest or (unless `Bucket.store` or `SeaweedFS.store` is called) obstore: a process that
has used obstore must not fork, and tests do fork.
"""
