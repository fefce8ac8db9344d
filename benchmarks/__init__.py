"""One question per file: `python -m benchmarks.bench_X --json`. What they share is in `shape`."""
