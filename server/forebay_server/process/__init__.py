"""What the daemon's process takes of its machine: places that are its own, locks, its socket, memory, and who
supervises it."""
