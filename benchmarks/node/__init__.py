"""The parts of `bench_daemon`, a question each: `fills`, `acquires`, `ahead` (fetched before it is needed), `restarts`;
and the programs that it runs as processes of their own, `copy_program` and `acquire_program`."""
