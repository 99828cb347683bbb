"""The facts about records are read without a thread of Arrow, which may abort the process as it ends."""

import subprocess
import sys

_COUNT_THREADS = """
import os
import pyarrow.parquet
from tfpipe.fields import Values
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.record_facts import RecordFacts, _read_table

facts = RecordFacts.of_new_shard(RecordForm({"age": Values("int64")}).schema, ())
for age in range(100):
    facts.add({"age": age})
data = facts.encode("0" * 64)
before = len(os.listdir("/proc/self/task"))
assert facts.find_fault(data, "0" * 64, 100) == ""
assert _read_table(data, ["age"])["age"].to_pylist() == list(range(100))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_thread_of_arrow_reads_facts() -> None:
    run = subprocess.run([sys.executable, "-c", _COUNT_THREADS], capture_output=True, text=True, check=True)
    assert run.stdout == "0\n"
