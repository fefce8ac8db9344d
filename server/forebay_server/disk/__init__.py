"""The files of one cache directory: how they lie there, which count, whose they are, and what is known of them. It
blocks, and decides nothing of what is kept."""
