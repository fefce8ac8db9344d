"""How a daemon is told its `ServerConfig`: flags over `FOREBAY_*` variables over a TOML file over the defaults.

`table.OPTIONS` has one line for each setting; flags, variables, keys of the file, help and checks follow from it.
"""
