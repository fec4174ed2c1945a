"""Data of a loaded model, and of a bundle that was skipped."""

from dataclasses import dataclass, field

from bert.bundle import Bundle
from bert.errors import BundleError
from bert.manifest import PROVIDER_OF_LAYOUT, SHA256
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from service.engine.engine_protocol import Engine, PackingEngine


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A bundle with its tokenizer, without an engine."""

    bundle: Bundle
    tokenizer_json: bytes
    """Content of `tokenizer.json`, sent to the processes that tokenise."""
    tokenizer: Tokenizer
    why_fallback: str = ""
    """Reason for serving the float32 graph instead of the 8-bit one; empty if it is not."""

    @staticmethod
    def of(bundle: Bundle, tokenizer_json: bytes, why_fallback: str = "") -> "Model":
        """Return a bundle with its tokenizer; raises BundleError if they do not belong together."""
        tokenizer, known = Tokenizer.parse(tokenizer_json, bundle.tokenizer_path), bundle.manifest.vocab_size
        if (highest := tokenizer.highest_id()) >= known:
            raise BundleError(
                f"{bundle.tokenizer_path} has ids up to {highest}, and the model has {known} pieces: they do not "
                "belong together; export the checkpoint again"
            )
        tokenizer = tokenizer.with_letter_shapes(bundle.manifest.task.letter_shapes)
        return Model(bundle, tokenizer_json, tokenizer, why_fallback)

    @property
    def name(self) -> str:
        """Name that requests use."""
        return self.bundle.manifest.name

    @property
    def spec(self) -> TaskSpec:
        """Task, labels and limits."""
        return self.bundle.manifest.task

    @property
    def task(self) -> str:
        """Name of its task."""
        return self.spec.task

    @property
    def embedding_size(self) -> int | None:
        """Numbers of a vector; None for a model of another task."""
        spec = self.spec
        return spec.vector_size(self.bundle.manifest.hidden_size) if spec.task == "similarity" else None

    @property
    def version(self) -> str:
        """Hash of the manifest, which contains its files' hashes."""
        return str(self.bundle.manifest.to_dict()[SHA256])

    @property
    def provider(self) -> str:
        """Execution provider of its graph."""
        return PROVIDER_OF_LAYOUT[self.bundle.manifest.layout]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedModel(Model):
    """A model with the engine that runs it."""

    engine: PackingEngine = field(kw_only=True)
    multi_slot_engine: Engine | None = field(default=None, kw_only=True)
    """The same graph with the threads of several slots, if enabled."""

    def without_engine(self) -> Model:
        """Return the model without its engines."""
        return Model(self.bundle, self.tokenizer_json, self.tokenizer, self.why_fallback)


@dataclass(frozen=True, slots=True)
class SkippedBundle:
    """A bundle that is not served, and why."""

    name: str
    """Name in the manifest, or the folder's if the manifest cannot be read."""
    task: str
    """Task in the manifest; empty if that cannot be read."""
    reason: str
