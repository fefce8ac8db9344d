"""`forebay order`: which samples a step hands to each rank, and how well an order mixes them; no data is read.

`command` has the options and talks to the daemon; `format_options` and `chosen` make a format and an order of them,
`contents` finds what a step holds, `tables` shows it. Nothing here needs torch.
"""
