"""Proof that a graph answers as its checkpoint does, and the choice of a precision."""
