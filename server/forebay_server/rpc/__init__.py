"""The daemon over gRPC: messages and statuses translated to calls and back, and bounds on what one client may ask."""
