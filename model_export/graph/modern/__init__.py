"""ModernBERT's body: its layers for all kinds of device, and its attention in rows and in one flat row."""
