"""Entry point of the engine process and the frontends. Each imports its own role only, which saves time and memory."""

from collections.abc import Sequence

from service import logs, metrics
from service.workers.heartbeat import heartbeat
from service.workers.start import ENGINE, StartMessage


def main(arguments: Sequence[str]) -> int:
    """Run the engine process or a frontend; return the exit code."""
    with open(0, "rb", closefd=False) as stdin:
        start = StartMessage.read(stdin)
    logs.configure(start.settings.log_level, start.settings.log_format)
    metrics.share(start.name, start.runtime_dir)
    beat = heartbeat(start.heartbeat)
    if arguments[-1] == ENGINE:
        from service.workers.engine_process import run_engine

        return run_engine(start, beat)
    from service.workers.frontend import run_frontend

    return run_frontend(start, beat)
