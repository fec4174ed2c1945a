"""One file a task: inputs encoded and outputs decoded, as pure functions on numpy arrays."""
