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
from tfpipe.profiler.loader.diagnose import find_wall, list_fixes
from tfpipe.profiler.loader.loaders import LoaderSource
from tfpipe.profiler.loader.measure import Trainer, find_files, measure_draft_s, measure_loader, run_turn
from tfpipe.profiler.loader.report import to_text
from tfpipe.profiler.loader.types import LoaderReport
from tfpipe.profiler.trials import compare

SECONDS, TURN_S = 3.0, 1.5


def diagnose_fault(name: str, folder: Path) -> dict[str, Any]:
    """Returns what the profiler says of a fault, and the gain of its first fix."""
    fault = FAULTS[name]
    importlib.import_module(fault.needs)
    trainer, source = Trainer(fault.step_s), LoaderSource(lambda: fault.make(folder), name)
    loader = source.make()
    with tempfile.TemporaryDirectory() as probes:
        profile = measure_loader(loader, trainer, SECONDS, Path(probes))
    wall = find_wall(profile)
    draft_s = measure_draft_s(find_files(profile, loader.dataset), profile.batch.image_size)
    fixes = list_fixes(profile, wall, False, draft_s)
    if os.environ.get("SHOW"):
        print(to_text(LoaderReport(profile, wall, fixes)), file=sys.stderr)
    first = fixes[0].name if fixes else ""
    result = {
        "fault": name,
        "wall": wall.kind,
        "where": wall.where,
        "proof": wall.reason,
        "fix": first,
        "right_wall": wall.kind in fault.walls and fault.where in wall.where,
        "right_fix": first.startswith(fault.fix) if fault.fix else not first,
        "before": profile.given_rate,
    }
    if fixes and result["right_fix"]:
        cure = fault.cure
        cured = source if cure is None else LoaderSource(lambda: cure(folder), name)
        before = partial(run_turn, source, trainer, TURN_S, {})
        after = partial(run_turn, cured, trainer, TURN_S, {} if cure else fixes[0].changes)
        trial = compare(lambda changes: after() if changes else before(), {}, {"fix": True})
        result |= {"predicted": fixes[0].predicted_gain, "measured": trial.gain}
    return result


if __name__ == "__main__":
    print(json.dumps(diagnose_fault(sys.argv[1], Path(sys.argv[2]))))
