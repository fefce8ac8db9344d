"""From the order to batches: planning and leasing (`lookahead`), reading (`reader`), handing over (`delivery`).

The trainer's process plans and leases; whoever reads, threads or worker processes, is stateless and is told in each
`Chunk` what to read and where. So neither their number nor their timing can change what a step contains.
"""
