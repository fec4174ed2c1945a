"""Named entities from frozen features: the states are those of transformers, and nothing of the encoder is trained."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers.models.bert import modeling_bert

from bert.checkpoint.base_models import MINILM, resolve_base
from bert.config import BertConfig
from bert.errors import ConfigError
from bert.nn.checkpoint import load_into, read_weights, save_checkpoint
from bert.nn.heads import BertForSimilarity, BertHead
from bert.tasks.spec import TaskSpec
from bert.tokenizer import Tokenizer
from training.finetune import finetune
from training.finetuning import model as models
from training.settings import FeatureSettings, FinetuneSettings
from training.tasks.features import BiLstmTagger

Make = Callable[..., FinetuneSettings]
SMALL = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=5,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=20,
)
Pick = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
READ: dict[str, Pick] = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[4],
    "last": lambda states: states[5],
    "last_four": lambda states: torch.cat([states[2], states[3], states[4], states[5]], -1),
    "weighted_last_four": lambda states: (
        2 * (0.5 * states[2] + 0.25 * states[3] + 0.125 * (states[4] + states[5]))
    ),
    "weighted": lambda states: 2 * (states[1] + states[2] + states[3] + states[4] + states[5]) / 5,
}


def tagger(layers: str, config: BertConfig = SMALL) -> BiLstmTagger:
    torch.manual_seed(1)
    return BiLstmTagger(config, 3, FeatureSettings(layers=layers, lstm_size=8)).eval()


@pytest.mark.parametrize("layers", READ)
@torch.no_grad()
def test_the_lstm_reads_the_states_that_transformers_gives(layers: str) -> None:
    model = tagger(layers)
    theirs = modeling_bert.BertModel(
        modeling_bert.BertConfig(**SMALL.to_dict()), add_pooling_layer=False
    ).eval()
    theirs.load_state_dict(model.bert.state_dict())
    if model.mix is not None:
        model.mix.scale.fill_(2.0)
    if layers == "weighted_last_four":
        assert model.mix is not None
        model.mix.weights.copy_(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())
    ids = torch.randint(0, 30, (2, 11))
    read = READ[layers](theirs(ids, output_hidden_states=True).hidden_states)
    expected = model.classifier(model.lstm(read)[0])
    torch.testing.assert_close(model(ids), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padding_changes_no_label() -> None:
    model = tagger("last_four")
    ids = torch.randint(0, 30, (1, 7))
    padded = torch.cat([torch.nn.functional.pad(ids, (0, 4)), torch.randint(0, 30, (1, 11))])
    mask = torch.tensor([[True] * 7 + [False] * 4, [True] * 11])
    torch.testing.assert_close(model(padded, None, mask)[:1, :7], model(ids), atol=1e-5, rtol=0)


def test_a_model_with_too_few_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 4 layers; the model has 2"):
        tagger("last_four", BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a base of four layers, with dropout."""
    folder = tmp_path_factory.mktemp("four-layers")
    tokenizer = Tokenizer.load(resolve_base(MINILM))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    save_checkpoint(BertForSimilarity(config), folder, "BertModel", {})
    tokenizer.save(folder)
    return folder


def test_training_leaves_the_encoder_as_it_was(
    base: Path, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[BertHead] = []

    def build(*arguments: object) -> tuple[BertHead, torch.nn.Module]:
        built.append(real(*arguments)[0])  # type: ignore[arg-type]
        return built[-1], built[-1]

    real = models.build
    monkeypatch.setattr(models, "build", build)
    settings = settings_for(
        "ner", base=str(base), features={"lstm_size": 16}, learning_rate=2e-2, epochs=8, dropout=0.1
    )
    best = finetune(settings)
    trained, before = built[0].state_dict(), read_weights(base)
    for name, weight in before.items():
        assert torch.equal(trained[name], weight), name
    history = json.loads((settings.output_dir / "report" / "report.json").read_text())["history"]
    assert history[-1]["loss"] < history[0]["loss"] / 2
    check_saved(best, base, built[0])


def check_saved(best: Path, base: Path, trained: BertHead) -> None:
    """The folder holds the head alone, names its base, and the two together are the model that was trained."""
    assert {file.name for file in best.iterdir()} == {"head.safetensors", "features.json", "task.json"}
    assert not any(name.startswith("bert.") for name in load_file(best / "head.safetensors"))
    content = json.loads((best / "features.json").read_text())
    assert (content["layers"], content["lstm_size"], content["base"]) == ("last_four", 16, str(base))
    assert "model.safetensors" in content["base_files"]
    spec = TaskSpec.read(best)
    assert "f1" in spec.scores["ner-dev"]
    again = BiLstmTagger(BertConfig.read(base), len(spec.labels), FeatureSettings(lstm_size=16)).eval()
    load_into(again, base)
    models.restore(best, again, again)
    ids = torch.arange(1000, 1020)[None]
    with torch.no_grad():
        assert torch.equal(again(ids), trained.eval()(ids))


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [("qa", {}, "features are read for ner"), ("ner", {"lora": {}}, "give one of the two")],
)
def test_features_that_fit_nothing_are_refused(
    task: str, changes: dict[str, object], message: str, settings_for: Make
) -> None:
    with pytest.raises(ValidationError, match=message):
        settings_for(task, features={}, **changes)
