"""The rule for the names of models, which stand in paths of the service beside the words of its routes."""

from bert.errors import ConfigError

ROUTE_WORDS = frozenset(
    {
        "decode",
        "embed",
        "embed_all",
        "embed_sparse",
        "health",
        "info",
        "ping",
        "predict",
        "rerank",
        "tokenize",
    }
)
"""Words W of which /tei/W is a route of its own, so that it cannot be the address of a model.

/tei/similarity is the address of a model of that name wherever one is loaded.
"""


def check_model_name(name: str) -> None:
    """Raise ConfigError for a name that is also a word of a route."""
    if name in ROUTE_WORDS:
        words = ", ".join(sorted(ROUTE_WORDS))
        raise ConfigError(
            f"a model cannot be called {name!r}, because /tei/{name} is a route; the words that routes take are {words}"
        )
