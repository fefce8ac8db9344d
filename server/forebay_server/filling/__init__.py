"""Bringing pieces from their remote places: into the cache, or past it where it has no room."""
