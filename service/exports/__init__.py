"""Models by name: exported by a child process before the service starts, and kept for the next start."""
