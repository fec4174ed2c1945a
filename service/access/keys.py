"""Named API keys: what each may do, and the file that lists them."""

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import SecretStr, ValidationError, field_validator, model_validator

from bert.errors import ConfigError
from bert.files import read_regular
from bert.settings import error_lines
from service.access.grants import Rules
from service.logs import LOGGER
from service.settings import ServeSettings, check_key

DEFAULT = "default"
"""Name of the key in the setting `api_key`."""
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
MAX_KEYS = 1000
"""Most keys of a file: each request's key is compared with all of them, and each has series of its own in metrics."""
MAX_BYTES = 1 << 20
"""Longest file of keys; YAML of 4 MB takes half a minute to read, and a request waits for it."""
SHA256 = re.compile(r"[0-9a-f]{64}")


class KeyEntry(Rules):
    """An entry of the file: a key, and what it may do."""

    key: SecretStr | None = None
    key_sha256: SecretStr | None = None
    """SHA-256 of the key in lower-case hex. It cannot be turned back into a key that is long and random."""

    @field_validator("key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is None else check_key(value)

    @field_validator("key_sha256")
    @classmethod
    def _check_hash(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not SHA256.fullmatch(value.get_secret_value()):
            raise ValueError("must be 64 digits of lower-case hex: printf %s KEY | sha256sum")
        return value

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("needs either key or key_sha256")
        return self


@dataclass(frozen=True, slots=True)
class Key:
    """A named key."""

    name: str
    digest: bytes
    """SHA-256 of the key."""
    rules: Rules

    @classmethod
    def of(cls, name: str, entry: KeyEntry) -> Self:
        """Hash the key of an entry that has it in plain text."""
        if entry.key_sha256 is not None:
            return cls(name, bytes.fromhex(entry.key_sha256.get_secret_value()), entry)
        assert entry.key is not None
        return cls(name, digest_of(entry.key.get_secret_value()), entry)


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).digest()


def keys_of(settings: ServeSettings) -> list[Key]:
    """Return the keys of the settings and of their file. Raises ConfigError for a wrong file, without its keys."""
    own = [] if settings.api_key is None else [Key.of(DEFAULT, KeyEntry(key=settings.api_key))]
    if (file := settings.api_keys_file) is None:
        return own
    content, keys = _read(file), dict[bytes, Key]()
    try:
        for name, entry in content.items():
            key = Key.of(*_entry(name, entry))
            if key.digest in keys:
                raise ValueError(f"{keys[key.digest].name} and {name} have the same key")
            keys[key.digest] = key
        if not 1 <= len(keys) <= MAX_KEYS:
            raise ValueError(f"has {len(keys)} keys; it may have 1 to {MAX_KEYS}")
        if own and (DEFAULT in content or own[0].digest in keys):
            raise ValueError(f"has {DEFAULT}, or its key, which is that of the setting api_key")
    except ValueError as error:
        raise ConfigError(f"api_keys_file {file}: {error}") from None
    return [*own, *keys.values()]


def warn_of_unknown(keys: Iterable[Key], names: Collection[str]) -> None:
    """Log the models of keys that are none of these; one may come later."""
    for key in keys:
        for model in set(key.rules.models or ()).difference(names):
            what = "the key %s may use the model %s, which this service does not have now: is its name right?"
            LOGGER.warning(what, key.name, model)


def has_admin(settings: ServeSettings) -> bool:
    """Tell whether a key may change models."""
    try:
        return settings.admin_api_key is not None or any(key.rules.admin for key in keys_of(settings))
    except ConfigError:  # since the start
        return False


def _entry(name: object, entry: object) -> tuple[str, KeyEntry]:
    """Return a checked entry; raises ValueError without its values, which may be keys in the wrong place."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("a name may hold letters, digits and ._@- of ASCII only, at most 64")
    if not isinstance(entry, dict):
        raise ValueError(f"{name} must be a group, as in {name}: {{key: ...}}")
    try:
        return name, KeyEntry.model_validate(entry)
    except ValidationError as error:
        raise ValueError("; ".join(f"{name}: {line}" for line in error_lines(error, KeyEntry))) from None


class _Loader(yaml.SafeLoader):
    """Reads YAML; refuses a name that a group has twice, where the first entry would be gone without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set[str]()
        for name, _ in node.value:
            if str(name.value) in names:
                raise yaml.composer.ComposerError(None, None, "a name that is there twice", name.start_mark)
            names.add(str(name.value))
        return node


def _read(file: Path) -> dict[Any, Any]:
    """Read the file's content; errors of YAML show the line's number and not the line, which may hold a key."""
    try:
        content = yaml.load(read_regular(file, MAX_BYTES).decode(), _Loader)
    except OSError as error:
        raise ConfigError(f"api_keys_file {file}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"api_keys_file {file}: {line}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # bytes, dates that are none, thousands of brackets
        raise ConfigError(f"api_keys_file {file} is not YAML or JSON in UTF-8") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"api_keys_file {file} must hold names of keys, each with its rules: NAME: {{key: ...}}"
        )
    return content
