"""Gives datasets to entry points, each in a forked process, and says what came of it: one JSON line each.

python -m tests.hostile.measure ENTRY FOLDER... [ENTRY FOLDER...]...
"""

import contextlib
import io
import json
import os
import resource
import sys
from collections.abc import Callable

import tfpipe
from tfpipe.cli.main import main
from tfpipe.engine import source
from tfpipe.engine.record_reader import RecordReader
from tfpipe.export.run import ExportConfig, export
from tfpipe.format.file_names import MANIFEST
from tfpipe.integrity.verify import VerifyConfig, verify


def _open(folder: str) -> str:
    with tfpipe.data_source(folder, "train") as records:
        return str([records[0].image.shape, records[-1].name])


def _source(folder: str) -> str:
    found = source.Source.from_manifest(tfpipe.load_manifest(folder), "train")
    found.check()
    with RecordReader(folder, tfpipe.load_manifest(folder), "train") as reader:
        return str(reader.list_sizes(found.bases[:-1]))


def _verify(folder: str) -> str:
    damaged = verify(folder, VerifyConfig(workers=0)).damaged
    if damaged:
        raise tfpipe.FormatError(f"{damaged[0].detail}.")
    return "intact"


def _command(*args: str) -> Callable[[str], str]:
    def run(folder: str) -> str:
        sys.argv = ["tfpipe", args[0], folder, *args[1:]]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                main()
        except SystemExit as stop:
            if stop.code:
                assert "Traceback" not in said.getvalue()
                raise tfpipe.DataError(said.getvalue()) from None
        return "read"

    return run


ENTRIES: dict[str, Callable[[str], str]] = {
    "load": lambda folder: str(tfpipe.load_manifest(folder).splits.keys()),
    "open": _open,
    "source": _source,
    "foreign": lambda folder: str(source.tfrecord_files(f"{folder}/train-00000*").schema),
    "inspect": _command("inspect"),
    "record": _command("inspect", "--record", "train:0", "--json"),
    "verify": _verify,
    "export": lambda folder: str(export(ExportConfig(folder, f"{folder}-export", "webdataset", workers=0))),
}


def measure(entry: Callable[[str], str], folder: str) -> dict[str, object]:
    """Runs in a fork: memory is what it takes beyond what there was at its start."""
    before = _status_kb("VmRSS")
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    begin = cpu.ru_utime + cpu.ru_stime
    try:
        said, kind = entry(folder), "read"
    except tfpipe.TfpipeError as error:
        said, kind = str(error), "refused"
    except BaseException as error:
        said, kind = f"{type(error).__name__}: {error}", "failed"
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    seconds = cpu.ru_utime + cpu.ru_stime - begin
    return {"kind": kind, "said": said[:2000], "cpu_s": seconds, "bytes": (_status_kb("VmHWM") - before) * 1024}


def _status_kb(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def _all(entry: Callable[[str], str], folders: list[str]) -> None:
    with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        entry(os.path.dirname(folders[0]) + "/good")  # loads what is loaded late
    for folder in folders:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                found = measure(entry, folder)
            print(json.dumps(found), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    assert MANIFEST
    words = sys.argv[1:]
    begins = [k for k, word in enumerate(words) if word in ENTRIES]
    for begin, end in zip(begins, [*begins[1:], len(words)], strict=True):
        _all(ENTRIES[words[begin]], words[begin + 1 : end])
