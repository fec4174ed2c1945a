"""Which instructions the processor has, as Linux tells, and how many threads are of use."""

import os

import pytest

from bert.processor import allowed_threads, instructions, instructions_in, processor_name
from service.cli import main

ZEN_3 = "processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu sse2 avx avx2 sha_ni\n"
SAPPHIRE_RAPIDS = "flags\t\t: avx avx2 avx_vnni avx512f avx512bw avx512_vnni amx_tile amx_int8\n"
GRAVITON = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd40\n"


def test_the_fastest_for_eight_bits_comes_first() -> None:
    assert instructions_in(ZEN_3) == "avx2"
    assert instructions_in(SAPPHIRE_RAPIDS) == "amx_int8 avx512_vnni avx_vnni avx512 avx2"
    assert instructions_in(GRAVITON) == "i8mm dotprod neon"


def test_what_tells_nothing_has_none() -> None:
    assert instructions_in("") == "" and instructions_in("flags : fpu sse2") == ""


def test_version_names_the_instructions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bert-train-serve" in shown and instructions() in shown and processor_name() in shown


@pytest.mark.parametrize(("stated", "threads"), [("3", 3), ("0", None), ("4,2", None), ("", None)])
def test_threads_are_those_of_the_environment_or_the_cores(
    stated: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert allowed_threads() == (threads or len(os.sched_getaffinity(0)))
