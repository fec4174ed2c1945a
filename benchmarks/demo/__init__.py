"""The demo models on 100 ordinary cases each, with the answers that a person would give."""
