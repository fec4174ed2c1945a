"""DeBERTa's body: attention whose scores depend on the distance of query and key."""
