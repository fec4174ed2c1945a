"""The bound of the queue follows from the measurements of a start."""

from service.scheduling.fair_queue import Throughput
from service.workers.scheduled_models import MAX_QUEUE_TOKENS, MIN_QUEUE_TOKENS, queue_bound


def test_the_queue_holds_what_the_fastest_model_does_in_a_requests_time() -> None:
    throughput = [Throughput(0.001, 1e-4, 64, slots) for slots in (4, 1)]
    assert queue_bound(throughput, 30_000) == round(30 * throughput[0].tokens_per_s)


def test_the_queue_is_neither_too_small_for_a_document_nor_too_large_for_the_memory() -> None:
    throughput = [Throughput(0.0, 1e-4, 64)]
    assert queue_bound(throughput, 10) == MIN_QUEUE_TOKENS
    assert queue_bound(throughput, 1_000_000) == MAX_QUEUE_TOKENS
