"""The report on a loader: what is said where threads starve, and where other programs take the cores."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.loader.profiles import OPTIONS, make_profile, make_use
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.report.text_json import to_text
from tfpipe.profiler.types import Activity, Drive, LoaderProfile, ProcessUse

SECONDS: dict[Activity, float] = {"other": 1.4, "collating": 0.6, "no core": 8.0}
FILL: tuple[tuple[str, Activity, float], ...] = (("train.py:9 fill", "collating", 3.0),)
STARVING = ProcessUse(3, 10.0, cpu_s=4.0, pool_s=2.0, seconds=SECONDS, functions=FILL)
"""PyTorch computes for 2 s in each of two threads, and waits for a core for 8 s."""


def make_starving(use: ProcessUse = STARVING, **facts: Any) -> LoaderProfile:
    facts = {"torch_threads": 2, **facts}
    return make_profile(main=use, workers=(), options=OPTIONS | {"num_workers": 0}, **facts)


def test_threads_of_pytorch_that_starve_are_named_and_their_number_proposed() -> None:
    text = to_text(make_report(make_starving()))
    assert text.startswith(
        "Bottleneck: starving threads (torch.set_num_threads)\n\n"
        "PyTorch computes in 2 threads, and this loader gets 0.4 of 2 cores: it waits for a core in 80 % of the time.\n"
    )
    assert (
        "1. Call `torch.set_num_threads(1)` (your code)\n   10 images/s, 50 % idle predicted. 50 % of the loader's "
        "processor time is in threads of a library.\n2. num_workers=2 (an option or a line of yours)\n"
    ) in text


ONE_EACH = "Give each worker one thread, by `torch.set_num_threads(1)` or `cv2.setNumThreads(0)` in `worker_init_fn`"
WORKERS = [make_use(n, cpu_s=5.0, pool_s=3.0, seconds={"no core": 8.0, "other": 2.0}) for n in (1, 2)]


@pytest.mark.parametrize(
    ("profile", "kind", "first"),
    [
        (make_starving(torch_threads=8), "starving threads", "Call `torch.set_num_threads(1)`"),
        (make_starving(torch_threads=1), "starving threads", "Give the library one thread"),
        (make_starving(replace(STARVING, pool_s=1.2)), "too few workers", "num_workers=2"),  # collating alone
        (make_starving(free=Drive(10, 2.0)), "too few workers", "num_workers=2"),  # two cores for two threads
        (make_starving(replace(STARVING, seconds={"other": 8.0, "no core": 2.0})), "too few workers", "num_workers=2"),
        (make_profile(*WORKERS), "starving threads", ONE_EACH),
    ],
)
def test_which_threads_starve(profile: LoaderProfile, kind: str, first: str) -> None:
    report = make_report(profile)
    assert report.bottleneck.stage == kind
    assert report.fixes[0].name.startswith(first)


def test_busy_neighbors_stand_in_the_first_line() -> None:
    crowded = make_report(make_starving(others_cores=1.6))
    lines = to_text(crowded).splitlines()
    assert lines[0].startswith("Busy neighbors: other programs take 80 % of 2 cores. End them and run this again: ")
    assert lines[1].startswith("Bottleneck: starving threads")
    text = to_text(make_report(make_starving(others_cores=0.1)))
    assert "Busy" not in text
    assert "   18 images/s, 10 % idle predicted. 2 workers can make batches at once, while the step runs.\n" in text


def test_an_activity_has_one_figure_in_a_report() -> None:
    """Of 10 s the loop waits for a core for 6 s; "other" is 65 % of the rest."""
    seconds, fill = {"other": 2.6, "functions": 1.4, "no core": 6.0}, ("train.py:9 fill", "functions", 1.4)
    use = replace(STARVING, pool_s=0.0, seconds=seconds, functions=(fill,))
    text = to_text(make_report(make_starving(use)))
    assert " 26 % of the time goes to other code, and 60 % to waiting for a core.\n" in text
    assert "\nother                   26 %\n" in text
    assert "\nyour functions          14 %\n" in text
    assert "\n      14 %  train.py:9 fill\n" in text
    assert "65 %" not in text
