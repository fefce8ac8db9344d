"""The node's cache: pieces as files, their index, and the room they take. It does not know that it is served over
gRPC."""
