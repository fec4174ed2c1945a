"""Who may ask: named API keys, and how much each may ask for."""
