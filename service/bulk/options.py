"""Options of each task. Apart from the tasks, so that --help needs no engine."""

from collections.abc import Mapping

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "classification": ("top_k", "threshold", "temperature", "windows", "truncate"),
    "ner": ("min_score", "labels", "aggregation", "left_out"),
    "qa": ("top_k", "max_answer_tokens", "no_answer_threshold"),
    "embed": ("truncate", "dimensions", "prompt_name"),
    "similarity": ("truncate", "dimensions", "prompt_name"),
    "multiple_choice": ("top_k", "truncate"),
    "fill_mask": ("top_k",),
}
"""Options of each task, by the names of the endpoints' fields."""
