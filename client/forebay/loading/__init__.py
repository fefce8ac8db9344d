"""From the order to batches: planning and leasing, reading, handing over.

Read in this order: `chunk` (what passes between all of them), `lookahead` with `holdings` and `leases` (the planner),
`reader` (the contract of a reader; `stream_reader`, `indexed_reader` and `mixture_reader` are the three, over
`open_pieces`, `attempts` and `assembly`), `delivery` (the contract of who hands over: `ahead`, `threads`, `processes`;
`devices` stands before any of them), `engine` (which joins a planner and a delivery). Worker processes: `crew` (the
trainer's side) and `workers` (theirs), over `link` and `desk`; `start_methods`, `global_seeds`, `deaths`. What is said
of long waits: `waits`, `stall_watch`. Apart from all that: `carried`, for datasets that keep their own position.

The trainer's process plans and leases; whoever reads, threads or worker processes, is stateless and is told in each
`Chunk` what to read and where. So neither their number nor their timing can change what a step contains.
"""
