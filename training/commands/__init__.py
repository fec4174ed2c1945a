"""The commands: each reads its settings, and only then imports what does the work, which takes seconds."""
