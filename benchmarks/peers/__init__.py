"""Programs that read the samples of `bench_cached_tokens` with other loaders, each at its fastest.

They run in the environment of `requirements-peers.txt` and know nothing of forebay. `program` is what they share; the
benchmark's side is `benchmarks.contenders`.
"""
