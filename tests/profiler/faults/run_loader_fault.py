"""Runs one fault of a loader, and prints one JSON object: the wall, the first fix, and the gain that it promised.

python -m tests.profiler.faults.run_loader_fault NAME FOLDER
"""

import importlib
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.profiler.faults.loader_cases import FAULTS
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.loader.measure import LoaderSource, Trainer, measure_loader, run_trial
from tfpipe.profiler.report.text_json import to_text
from tfpipe.profiler.trials import compare

SECONDS, TRIAL_S = 3.0, 1.5


def diagnose_fault(name: str, folder: Path) -> dict[str, Any]:
    """Returns what the profiler says of a fault, and the gain of its first fix."""
    fault = FAULTS[name]
    importlib.import_module(fault.needs)
    trainer, source = Trainer(fault.step_s), LoaderSource(lambda: fault.make(folder), name)
    with tempfile.TemporaryDirectory() as probes:
        report = make_report(measure_loader(source.make(), trainer, SECONDS, Path(probes)))
    wall, fixes, rate = report.bottleneck, report.fixes, report.profile.images_per_second
    if os.environ.get("SHOW"):
        print(to_text(report), file=sys.stderr)
    first = fixes[0].name if fixes else ""
    result = {
        "fault": name,
        "wall": wall.stage,
        "where": wall.where,
        "proof": wall.reason,
        "fix": first,
        "right_wall": wall.stage in fault.walls and fault.where in wall.where,
        "right_fix": first.startswith(fault.fix) if fault.fix else not first,
        "before": rate,
    }
    if fixes and result["right_fix"]:
        cure = fault.cure
        cured = source if cure is None else LoaderSource(lambda: cure(folder), name)
        before = partial(run_trial, source, trainer, TRIAL_S, {})
        after = partial(run_trial, cured, trainer, TRIAL_S, {} if cure else fixes[0].changes)
        gain, _ = compare(lambda changes: after() if changes else before(), {}, {"fix": True})
        result |= {"predicted": fixes[0].predicted_images_per_second / rate, "measured": gain.median}
    return result


if __name__ == "__main__":
    print(json.dumps(diagnose_fault(sys.argv[1], Path(sys.argv[2]))))
