"""A polite request to stop."""

import os
import signal
import threading

import pytest

from training.engine.signals import on_stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_takes_the_usual_way(number: signal.Signals) -> None:
    asked: list[int] = []
    before = signal.getsignal(number)
    with on_stop(asked.append):
        os.kill(os.getpid(), number)
        assert asked == [number]
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


def test_another_thread_handles_no_signals() -> None:
    done: list[int] = []

    def body() -> None:
        with on_stop(lambda _: None):
            done.append(1)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [1]
