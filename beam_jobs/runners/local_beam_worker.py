"""One of Beam's own worker processes on this machine (`--direct_running_mode=multi_processing`), made to behave.

Run as `python -m beam_jobs.runners.local_beam_worker PID`: the same as Beam's worker, but it ends with the process
that started the
job, even one that was killed, and after Ctrl-C without a word: that is for the other process to say.
"""

import contextlib
import os
import sys

from beam_jobs.process_pool import die_with


def main() -> None:
    """Serves until the job is over."""
    with contextlib.suppress(KeyboardInterrupt):
        die_with(int(sys.argv[1]))
        from apache_beam.runners.worker import sdk_worker_main

        sdk_worker_main.main([sys.argv[0]])
    os._exit(0)  # at once: Beam's threads may be waiting, and another code would count as a death


if __name__ == "__main__":
    main()
