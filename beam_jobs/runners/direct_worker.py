"""A worker process of Beam on this machine (`--direct_running_mode=multi_processing`) that ends with the job.

`python -m beam_jobs.runners.direct_worker PID` ends with the process PID, even when that one is killed.
"""

import contextlib
import os
import sys

from tfpipe.system.child_process import die_with_direct_parent


def main() -> None:
    """Serves the job until it is over."""
    with contextlib.suppress(KeyboardInterrupt):
        die_with_direct_parent(int(sys.argv[1]))
        from apache_beam.runners.worker import sdk_worker_main

        sdk_worker_main.main([sys.argv[0]])
    os._exit(0)  # at once, since Beam's threads may be waiting; another exit code would count as a death


if __name__ == "__main__":
    main()
