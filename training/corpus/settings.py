"""Settings of `bert-prepare`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from bert.errors import ConfigError
from bert.settings import CommandSettings, SettingsPart
from bert.tokenizer import Tokenizer

VocabularyFamily = Literal["bert", "distilbert", "electra", "roberta", "modernbert", "albert", "deberta-v2"]
_PUBLISHED_SIZES: dict[VocabularyFamily, int] = {
    "roberta": 50_265,
    "modernbert": 50_368,
    "deberta-v2": 128_001,
}
_BYTE_LEVEL = ("roberta", "modernbert")
"""Families whose vocabulary is byte-level BPE."""


class TextSource(SettingsPart):
    """Source of texts: a file, a folder of files, a pattern such as `wiki-*.jsonl.xz`, or a data set of the hub."""

    path: str
    """File, folder or pattern, or such a URL (s3://bucket/wiki-*.jsonl.xz); with format hub the name of a data set."""
    format: Literal["auto", "jsonl", "parquet", "text", "hub"] = "auto"
    """Format of the files; auto goes by the ending, under .gz, .xz, .bz2 or .zst."""
    column: str = "text"
    """Field that holds the text (jsonl, parquet, hub)."""
    hub_split: str = "train"
    """Split of a hub data set."""
    hub_config: str | None = None
    """Part of a hub data set that has several, such as 20231101.en of wikimedia/wikipedia."""
    hub_revision: str | None = None
    """Commit, tag or branch of a hub data set; the data of a commit cannot change under a run."""


class PrepareSettings(CommandSettings):
    """Turn raw text into shards of tokens for pretraining."""

    model_config = SettingsConfigDict(env_prefix="BERT_PREPARE_", cli_prog_name="bert-prepare")

    sources: list[str | TextSource] = Field(
        min_length=1,
        description="texts to read: files, folders, patterns, or {path, format, column, ...}; may be given several times",
    )
    output_dir: Path = Field(description="folder for the shards; the same command goes on with what is there")
    tokenizer: Path | None = Field(
        None,
        description="file tokenizer.json or vocab.txt, or a checkpoint's folder; by default a vocabulary is trained",
    )
    model_type: VocabularyFamily = Field(
        "bert",
        description="family that the trained vocabulary is for: roberta and modernbert have byte-level BPE, "
        "albert and deberta-v2 (version 3) Unigram, the others WordPiece",
    )
    vocab_size: int | None = Field(
        None,
        ge=256,
        le=2**31 - 1,
        description="pieces of the vocabulary that is trained; by default the published number: 30,000, "
        "roberta 50,265, modernbert 50,368, deberta-v2 128,001",
    )
    uncased: bool | None = Field(
        None,
        description="ignore case and accents in the trained vocabulary; by default true with WordPiece and albert, false "
        "with deberta-v2; byte-level BPE always keeps both",
    )
    vocab_share: float = Field(
        1.0, gt=0, le=1, description="share of the documents that the vocabulary is trained on"
    )
    vocab_only: bool = Field(False, description="stop once the vocabulary is trained")
    language: str = Field("en", description="language of the texts for finding sentences, such as en or zh")
    line_breaks: Literal["paragraph", "space", "sentence"] = Field(
        "paragraph",
        description="meaning of a single line break: the end of a paragraph, a space (text broken at a column), "
        "or the end of a sentence (one sentence a line, and no others are looked for)",
    )
    word_segmenter: Literal["auto", "none", "jieba"] = Field(
        "auto",
        description="finder of Chinese words, for masking whole words; auto is jieba for zh where each character is a piece",
    )
    held_out: float = Field(0.01, ge=0, lt=1, description="share of documents kept away from training")
    seed: int = Field(42, ge=0, lt=2**63, description="seed of the draw of held-out documents")
    shard_mb: float = Field(16.0, gt=0, description="text of a shard, in millions of bytes")
    max_documents: int = Field(0, ge=0, description="read no more documents than this; 0 reads all")
    processes: int = Field(0, ge=0, description="worker processes; 0 is one for each usable core")
    part: str | None = Field(
        None,
        pattern=r"^[1-9]\d*/[1-9]\d*$",
        description="make one part of the shards on this machine: 2/4 is the second of four",
    )
    merge: bool = Field(False, description="make the corpus of the shards of all parts, and nothing again")
    on_error: Literal["stop", "skip"] = Field(
        "stop",
        description="action on a document that cannot be read: stop there, or skip, count and report it",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> "PrepareSettings":
        if self.tokenizer is not None and self.vocab_only:
            raise ValueError(
                f"vocab_only trains a vocabulary, and tokenizer ({self.tokenizer}) is one already"
            )
        if self.uncased and self.is_byte_level:
            raise ValueError(f"uncased means nothing to the byte-level BPE of {self.model_type}")
        if bool(self.part) + self.merge + self.vocab_only > 1:
            raise ValueError("part, merge and vocab_only are steps of their own: give one of them")
        if self.share[0] >= self.share[1]:
            raise ValueError(f"part ({self.part}) must be at most {self.share[1]}/{self.share[1]}")
        return self

    @property
    def share(self) -> tuple[int, int]:
        """Index of the part and number of parts: every n-th block is made; (0, 1) without `part`."""
        number, parts = map(int, (self.part or "1/1").split("/"))
        return number - 1, parts

    @property
    def is_byte_level(self) -> bool:
        """True where a byte-level BPE would be trained."""
        return self.model_type in _BYTE_LEVEL

    @property
    def pieces(self) -> int:
        """Size of the vocabulary that is trained."""
        return self.vocab_size or _PUBLISHED_SIZES.get(self.model_type, 30_000)

    @property
    def lowercases(self) -> bool:
        """True where a trained vocabulary takes no notice of case and accents."""
        cased = self.is_byte_level or self.model_type == "deberta-v2"
        return not cased if self.uncased is None else self.uncased

    def segmenter(self, tokenizer: Tokenizer) -> Literal["jieba"] | None:
        """Return the word segmenter, None for none. Raises ConfigError for one that a tokenizer has no use for."""
        if self.word_segmenter == "jieba" and not tokenizer.splits_chinese:
            raise ConfigError("word_segmenter 'jieba' needs a tokenizer that takes Chinese apart")
        wanted = self.word_segmenter == "jieba" or (self.word_segmenter == "auto" and self.is_chinese)
        return "jieba" if wanted and tokenizer.splits_chinese else None

    @property
    def is_chinese(self) -> bool:
        """True for a language in Chinese characters, without spaces."""
        return self.language.split("-")[0] == "zh"
