"""`tfpipe profile --hosts`: which host of a training is late, at which stage, and what the others lose."""

from tfpipe.cli.profile_run import Output, ProfileArgs
from tfpipe.profiler.hosts.compare import compare_hosts
from tfpipe.profiler.hosts.read import read_hosts
from tfpipe.profiler.report.hosts_text_json import find_largest_idle, to_json, to_text


def run_hosts(args: ProfileArgs) -> Output:
    """Reads the files of all hosts, and compares them. The idle share is the largest of a host's accelerators."""
    report = compare_hosts(*read_hosts(args.hosts))

    def render() -> str:
        from tfpipe.profiler.report.html import render_hosts

        return render_hosts(report)

    return Output(to_text(report), to_json(report), render, find_largest_idle(report))
