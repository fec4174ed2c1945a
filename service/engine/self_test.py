"""Check that a bundle's graph gives on this machine the outputs that it gave where it was exported."""

from collections.abc import Callable

from bert.bundle import Bundle
from bert.errors import BundleError, BundleIntegrityError, EngineError
from bert.processor import instructions
from bert.self_test import SELF_TEST, SelfTest, encode
from bert.tasks.registry import TASKS
from bert.tokenizer import Tokenizer
from service.engine.engine_protocol import Engine
from service.logs import LOGGER

OpenEngine = Callable[[Bundle], Engine]


def open_tested(bundle: Bundle, tokenizer: Tokenizer, open_engine: OpenEngine) -> tuple[Bundle, Engine, str]:
    """Open a bundle's graph, or its float32 one if the first fails or its outputs differ.

    Returns the bundle as it is served, its engine, and the reason for the float32 graph, empty if it is not used. Raises
    BundleError or EngineError if no graph passes.
    """
    try:
        return bundle, _tested(bundle, tokenizer, open_engine), ""
    except BundleIntegrityError:
        raise  # damaged, whatever the processor
    except (BundleError, EngineError) as error:
        if bundle.fallback is None:
            raise
        reason = str(error)
    LOGGER.error("%s; its float32 graph is served instead", reason)
    return bundle.fallback, _tested(bundle.fallback, tokenizer, open_engine), reason


def _tested(bundle: Bundle, tokenizer: Tokenizer, open_engine: OpenEngine) -> Engine:
    engine = open_engine(bundle)
    check(bundle, tokenizer, engine)
    return engine


def check(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> None:
    """Run a graph on the bundle's own texts, one by one and together.

    Raises BundleError if the outputs are not those of the export, EngineError if the graph fails. Only log a bundle
    without a self-test, which bert-export did not make.
    """
    if SELF_TEST not in bundle.manifest.files:
        LOGGER.warning(
            "%s has no %s, so its answers are not checked; export it again", bundle.folder, SELF_TEST
        )
        return
    expected = SelfTest.parse(bundle.read(SELF_TEST))
    encodings, task = encode(expected.texts, tokenizer, bundle.manifest.task), bundle.manifest.task.task
    alone = [engine.run([encoding]).texts[0] for encoding in encodings]
    errors = [
        expected.relative_error(bundle.graph, TASKS[task].self_test_scores(outputs))
        for outputs in (alone, engine.run(encodings).texts)
    ]
    allowed = expected.tolerances[bundle.graph]
    if not all(error <= allowed for error in errors):  # nan is not
        raise BundleError(
            f"{bundle.model_path} ({bundle.manifest.precision}) answers otherwise on this processor ({instructions()}) than "
            f"where it was exported ({expected.instructions}): a relative error of {max(errors):.2g} on its own "
            f"{len(expected.texts)} texts, and {allowed:.2g} is allowed; export it on this machine, or with --precision fp32"
        )
