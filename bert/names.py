"""Names of models: those of the Hugging Face hub, told apart from folders, and those in paths of the service.

The rule for every setting that takes a folder or a model of the hub: a folder that exists is a folder. Any other text of
the form `org/name` or `name`, each with an optional `@revision`, names a model of the hub. What has another form
(`./name`, `/path`, `a/b/c`) is a path.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from bert.errors import ConfigError

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?P<repo>(?:{_PART}/)?{_PART})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/+-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubName:
    """A model of the hub, at a revision."""

    repo: str
    """`org/name`, or the `name` of an old model without an owner."""
    revision: str = ""
    """Commit, tag or branch; "" is the main branch."""

    @staticmethod
    def parse(text: str) -> "HubName | None":
        """Return the name that a text is; None for an existing folder, and for what can only be a path."""
        found = _NAME.fullmatch(text)
        if found is None or Path(text).is_dir():
            return None
        return HubName(found["repo"], found["revision"] or "")

    @property
    def last_part(self) -> str:
        """Name without the owner."""
        return self.repo.rpartition("/")[2]

    @property
    def is_pinned(self) -> bool:
        """The revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> "HubName":
        """Return the model at another revision."""
        return HubName(self.repo, revision)

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


def name_of(model_id: str) -> str:
    """Return the name in the id that the service's scheduler has for a version of a model: NAME@HASH."""
    return model_id.rpartition("@")[0] or model_id


ROUTE_WORDS = frozenset(
    (
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
    )
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
