"""The commands of those who run a node's daemon: look into its cache, warm it, keep parts of it, empty it, watch it."""
