"""An observer that keeps what it is told."""

from beam_jobs.plan.plan import Plan
from beam_jobs.runners.base import ShardObserver, SubmittedJob
from tfpipe.system.progress import Progress


class Recorder(ShardObserver):
    """Keeps everything in lists, in order."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.progresses: list[Progress] = []
        self.notes: list[str] = []
        self.plans: list[Plan] = []
        self.submissions: list[SubmittedJob] = []

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def plan(self, plan: Plan) -> None:
        self.plans.append(plan)

    def submitted(self, job: SubmittedJob) -> None:
        self.submissions.append(job)
