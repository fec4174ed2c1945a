"""transformers.Trainer on the same examples, as its documentation and its example scripts use it.

Short rows are padded to the longest of their batch (`DataCollatorWithPadding`); the sampler is the random one, or with
`by_length` the one that groups rows of like length.
"""

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.train.tasks import (
    BATCH_SIZE,
    LEARNING_RATE,
    MAX_TOKENS,
    QA_STRIDE,
    Mark,
    finetune_settings,
    model_of,
    read_source,
)
from bert.checkpoint.base_models import resolve_base
from bert.data.examples import QaExample, TextExample
from training.corpus.shards import Corpus

Rows = list[dict[str, Any]]


def train(options: Namespace, folder: Path, by_length: bool) -> list[Mark]:
    """Train on the task for `options.steps` steps."""
    transformers.set_seed(42)
    name = options.tasks[0]
    if name == "mlm":
        return _run(options, folder, *_masked(options), by_length)
    settings = finetune_settings(options)
    base = options.made_up / "model" if options.made_up else resolve_base(settings.base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    examples = read_source(options, settings).examples
    if name == "sst2":
        kind = transformers.AutoModelForSequenceClassification
        fresh = transformers.AutoConfig.from_pretrained(base, num_labels=2)
        model = kind.from_config(fresh) if options.made_up else kind.from_pretrained(base, num_labels=2)
        rows = text_rows(tokenizer, examples)
    else:
        model = transformers.AutoModelForQuestionAnswering.from_pretrained(base)
        rows = window_rows(tokenizer, examples, MAX_TOKENS["qa"], QA_STRIDE)
    return _run(options, folder, model, rows, transformers.DataCollatorWithPadding(tokenizer), by_length)


def text_rows(tokenizer: Any, examples: Sequence[TextExample]) -> Rows:
    """Encode texts and their labels, 0 for negative and 1 for positive."""
    encoded = tokenizer([each.text for each in examples], truncation=True, max_length=MAX_TOKENS["sst2"])
    labels = [int(each.label == "positive") for each in examples]
    return [{"input_ids": ids, "labels": n} for ids, n in zip(encoded["input_ids"], labels, strict=True)]


def window_rows(tokenizer: Any, examples: Sequence[QaExample], max_tokens: int, stride: int) -> Rows:
    """Encode windows and the first and last token of the answer, as the example script `run_qa.py` does.

    Both are 0, [CLS], where a window does not hold the whole answer.
    """
    encoded = tokenizer(
        [each.question for each in examples],
        [each.context for each in examples],
        truncation="only_second",
        max_length=max_tokens,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    rows = []
    for number, of_example in enumerate(encoded["overflow_to_sample_mapping"]):
        span = _span(encoded["offset_mapping"][number], encoded.sequence_ids(number), examples[of_example])
        row = {name: encoded[name][number] for name in ("input_ids", "token_type_ids", "attention_mask")}
        rows.append({**row, "start_positions": span[0], "end_positions": span[1]})
    return rows


def _span(offsets: list[tuple[int, int]], sequences: list[int | None], example: QaExample) -> tuple[int, int]:
    if not example.answers:
        return 0, 0
    text, start = example.answers[0]
    end = start + len(text)
    first = sequences.index(1)
    last = len(sequences) - 1 - sequences[::-1].index(1)
    if offsets[first][0] > start or offsets[last][1] < end:
        return 0, 0
    while first < len(offsets) and sequences[first] == 1 and offsets[first][0] <= start:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    return first - 1, last + 1


def _masked(options: Namespace) -> tuple[Any, Rows, Any]:
    """Return a fresh model, rows of joined texts cut to length, and the collator that masks 15% of them."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(options.corpus / "tokenizer.json"),
        mask_token="[MASK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )
    ids: list[int] = []
    for shard in Corpus.open(options.corpus).shards("train"):
        for number in range(shard.documents):
            ids += shard.document(number).tokens.tolist()
    cls, sep, room = tokenizer.cls_token_id, tokenizer.sep_token_id, MAX_TOKENS["mlm"] - 2
    rows = [{"input_ids": [cls, *ids[i : i + room], sep]} for i in range(0, len(ids) - room, room)]
    model = transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=len(tokenizer), **model_of(options))
    )
    return model, rows, transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


def _run(
    options: Namespace, folder: Path, model: Any, rows: Rows, collator: Any, by_length: bool
) -> list[Mark]:
    marks: list[Mark] = []

    class Marking(transformers.Trainer):  # type: ignore[misc]
        """Notes the clock, the real tokens and the loss after each backward pass."""

        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens = int(mask.sum()) if mask is not None else inputs["input_ids"].numel()
            loss = super().training_step(model, inputs, *rest)
            before = marks[-1].tokens if marks else 0
            marks.append(Mark(time.perf_counter(), before + tokens, float(loss)))
            return loss

    name = options.tasks[0]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=options.batch or BATCH_SIZE[name],
        learning_rate=LEARNING_RATE[name],
        max_steps=options.steps,
        train_sampling_strategy="group_by_length" if by_length else "random",
        bf16=options.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
    )
    Marking(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()
    return marks
