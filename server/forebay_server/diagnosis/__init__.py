"""What the daemon finds out of itself and of the way to a source, for `forebay doctor`. Facts, never verdicts."""
