"""The test suite; it mirrors the packages, and `support` holds what several of its parts stand on."""
