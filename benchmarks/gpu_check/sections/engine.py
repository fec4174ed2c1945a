"""The engine beside PyTorch on the same random weights: texts and tokens a second, share of the matmul rate."""

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.common import least_seconds
from benchmarks.engine.padded_torch import PaddedTorch, matmul_flops
from benchmarks.engine.shapes import random_model, write_random_bundle
from benchmarks.engine.speed import LONE_TOKENS, OURS, Rate, Run, alone, measured
from benchmarks.engine.texts import MIXED, random_texts
from benchmarks.gpu_check.check import Check
from bert.config import BertConfig
from bert.encoding import Encoding
from bert.nn.heads import BertForQuestionAnswering
from service.cpu_count import usable_cores
from service.engine.onnx_engine import OnnxEngine

PADDED, COMPILED = "PyTorch SDPA, padded", "torch.compile, padded"
BATCHES = 4


def run(check: Check) -> None:
    """Measure each model beside plain PyTorch, and then PyTorch compiled, which takes a while to compile."""
    peak = matmul_flops(check.device, lambda product: least_seconds({"product": product}, 10)["product"])
    check.record.row(
        "matmul", rate=f"{peak / 1e12:.2f} TFLOP/s", of=str(_dtype(check)).removeprefix("torch.")
    )
    models: dict[str, BertForQuestionAnswering] = {}
    for name in check.pick(("base", "large"), ("tiny",)):
        with check.record.step(f"{name} beside PyTorch"), TemporaryDirectory(dir=check.folder) as folder:
            models[name] = random_model(name)
            _beside_pytorch(check, name, models[name], Path(folder), peak)
    for name, model in models.items():
        with check.record.step(f"{name}, compiled"):
            _compiled(check, name, model, peak)


def _beside_pytorch(
    check: Check, name: str, model: BertForQuestionAnswering, folder: Path, peak: float
) -> None:
    engines: dict[str, Run] = {}
    # Without onnxruntime's CUDA there are still PyTorch's numbers.
    with check.record.step(f"{name}: {OURS}"):
        engines[OURS] = _our_engine(check, model, folder / name)
    engines[PADDED] = PaddedTorch(model, check.device, half=check.on_gpu, compiled=False)
    _measure(check, name, model.bert.config, engines, peak)
    with check.record.step(f"{name}: a lone text"):
        times = alone(engines, check.pick(5, 1))
        found = {f"{engine}, ms p50, p99": each for engine, each in zip(engines, times, strict=True)}
        check.record.row("a lone text", model=name, tokens=LONE_TOKENS, **found)


def _our_engine(check: Check, model: BertForQuestionAnswering, folder: Path) -> Run:
    """Open our engine on a model that is still on the CPU, as a service alone on the machine would."""
    bundle = write_random_bundle(model, folder, "flat" if check.on_gpu else "rows")
    engine = OnnxEngine(bundle, usable_cores(), spin=not check.on_gpu, capture_graphs=check.on_gpu)
    return lambda texts: np.concatenate(engine.run(texts).texts)


def _compiled(check: Check, name: str, model: BertForQuestionAnswering, peak: float) -> None:
    """Compile layer by layer: all layers share one compilation, and a whole BERT-large would take minutes."""
    compiled = copy.deepcopy(model)
    for layer in compiled.bert.encoder.layer:
        layer.compile(dynamic=True, backend=check.pick("inductor", "eager"))
    engines: dict[str, Run] = {
        PADDED: PaddedTorch(model, check.device, half=check.on_gpu, compiled=False),
        COMPILED: PaddedTorch(compiled, check.device, half=check.on_gpu, compiled=False),
    }
    _measure(check, name, model.bert.config, engines, peak)


def _measure(check: Check, name: str, config: BertConfig, engines: dict[str, Run], peak: float) -> None:
    for lengths in check.pick(("128", "384", MIXED), ("20", MIXED)):
        with check.record.step(f"{name}, {lengths} tokens a text"):
            batch_tokens = check.pick(32_768, 200)
            texts = random_texts(lengths, BATCHES * batch_tokens)
            rates = measured(engines, config, texts, batch_tokens, check.pick(3, 1), peak)
            for engine, rate in rates.items():
                if engine == PADDED and COMPILED in rates:
                    continue  # measured again for the ratio alone
                _row(check, name, lengths, engine, rate, texts, rates[PADDED])
    if check.on_gpu:
        torch.cuda.empty_cache()


def _row(
    check: Check, model: str, lengths: str, engine: str, rate: Rate, texts: Sequence[Encoding], padded: Rate
) -> None:
    tokens = sum(map(len, texts))
    seconds = tokens / rate.tokens_per_s
    check.record.row(
        "engine",
        model=model,
        tokens=lengths,
        engine=engine,
        **{
            "texts/s": round(len(texts) / seconds, 1),
            "ms a batch": round(1000 * seconds / BATCHES, 2),
            "tokens/s": round(rate.tokens_per_s),
            "to PyTorch": round(rate.tokens_per_s / padded.tokens_per_s, 2),
            "of matmul": round(rate.share, 3),
            "apart": f"{rate.apart:.0e}",
        },
    )


def _dtype(check: Check) -> torch.dtype:
    return torch.float16 if check.on_gpu else torch.float32
