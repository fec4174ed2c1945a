"""Scores of the tasks, numpy only. Gold comes first in every call; scores are shares of 1, never percent.

They agree with the tools that the field reports: scikit-learn, scipy, seqeval and the official SQuAD scripts.
"""
