"""The steps that make a plan:

```
list input -> [hash images -> choose copies] -> count images -> cut parts
```

The sum of what the tasks of a step return decides what the next step needs to know. All run in this process.
"""

from beam_jobs.config import ShardConfig
from beam_jobs.plan.copy_steps import choose_copies, hash_run, save_left_out
from beam_jobs.plan.count_step import count_run, cut
from beam_jobs.plan.cut_step import cut_part, finish_plan
from beam_jobs.plan.list_step import Planning, list_input, resolve
from beam_jobs.plan.step import Step, do_nothing


def list_plan_steps(config: ShardConfig) -> list[Step[Planning]]:
    """Returns the steps that make a plan, in their order."""
    copies = [
        Step("Hash images", _count_runs, hash_run, do_nothing),
        Step("Choose copies", _count_buckets, choose_copies, save_left_out),
    ]
    return [
        Step("List input", _count_input, list_input, resolve),
        *(copies if config.drop_duplicates else ()),
        Step("Count images", _count_runs, count_run, cut),
        Step("Cut parts", _count_parts, cut_part, finish_plan),
    ]


def _count_input(planning: Planning) -> int:
    return 1


def _count_runs(planning: Planning) -> int:
    return len(planning.scratch.load("listed").runs)


def _count_buckets(planning: Planning) -> int:
    count: int = planning.scratch.load("listed").num_buckets
    return count


def _count_parts(planning: Planning) -> int:
    return len(planning.scratch.load("counted").parts)
