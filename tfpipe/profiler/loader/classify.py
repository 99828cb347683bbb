"""Tells what a thread does by its stack: the innermost frame that is known decides. Pure.

train.py load ─▶ PIL/Image.py convert ─▶ PIL/ImageFile.py load      decoding, at "train.py:31 load"
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import NamedTuple

from tfpipe.profiler.loader.types import Activity


class Frame(NamedTuple):
    """A frame of a stack: its file, its function, and the number and the text of its line."""

    file: str
    function: str
    line: int
    text: str


class Doing(NamedTuple):
    """The activity of a thread, and the user's line that made it do so; empty if there is none."""

    activity: Activity
    place: str


_OWN = os.path.dirname(__file__) + os.sep
_LIBRARIES = (
    str(Path(__file__).parents[2]) + os.sep,  # tfpipe, also from a checkout
    *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_OUTSIDE = ("site-packages", "dist-packages", "<frozen", "/grain/_src/")
_PROBE, _TAKES = _OWN + "probe.py", _OWN + "measure.py"
"""The clock of collecting garbage, which counts as what it interrupts; and the loop that takes batches, in which only
the memory of the last one is freed."""
_CLOCK = re.compile(r"\b(read_clock|note_record)$")

_WAITS = re.compile(
    r"(/threading|/queue|/selectors|/multiprocessing/(connection|synchronize|popen_\w+|queues|pool)"
    r"|/concurrent/futures/\w+|/subprocess)\.py$"
)
_PIPES = re.compile(r"/multiprocessing/(connection|reductions?|resource_sharer|queues)\.py$")
_LISTENS = re.compile(r"\b_?accept\(")
_MOVES = re.compile(r"\b(loads|dumps|dump|load|_?send(_bytes)?|_?recv(_bytes)?|write|_write|read)\(")
_BLOCKS = re.compile(r"\b(sleep|acquire|wait|join|result)\(|^\s*with [\w.]*lock\w*:", re.IGNORECASE)
_READS = re.compile(r"\b(open|read|readinto|read_bytes|readline|recv|recv_into|pread|get_object|fromfile|memmap)\(")
_DECODES = re.compile(r"\b(imdecode|imread|decode_(jpeg|png|image|webp|gif)|read_image|Image\.open|decode)\(")

_FILES: tuple[tuple[Activity, re.Pattern[str]], ...] = (
    (
        "handing over",
        re.compile(
            r"/(multiprocessing/heap|shared_memory|shared_memory_array|pin_memory|spawn|ring_queue|variable_size_queue)\.py$"
        ),
    ),
    ("collating", re.compile(r"/torch/utils/data/_utils/collate\.py$|/transformations/batch\.py$")),
    (
        "decoding",
        re.compile(r"/PIL/(ImageFile|\w+ImagePlugin)\.py$|/torchvision/io/|/(cv2|imageio|simplejpeg|turbojpeg)\b"),
    ),
    (
        "reading",
        re.compile(
            r"/(zipfile|tarfile|gzip|pathlib|socket|ssl|mmap)(/\w+)?\.py$"
            r"|/(fsspec|s3fs|gcsfs|h5py|lmdb|urllib|urllib3|requests|http|botocore|boto3|pyarrow|array_record)/"
        ),
    ),
)
_LOADERS = re.compile(r"/torch/utils/data/|/grain/|/multiprocessing/|/keras/src/trainers/data_adapters/")


def read_frame(file: str, function: str, line: int) -> Frame:
    """Returns a frame with the text of its line, where its file can be read."""
    return Frame(file, function, line, linecache.getline(file, line).strip())


def is_clock(stack: Sequence[Frame]) -> bool:
    """Returns whether a thread reads the clock of a record.

    Python hands its lock on there, so it is where those are often seen that never give it away in between.
    """
    return bool(stack) and stack[0].file == _PROBE and _CLOCK.search(stack[0].function) is not None


def classify(stack: Sequence[Frame], collate: str = "", state: str = "") -> Doing:
    """Says what a thread does.

    Args:
        stack: Its frames, the innermost one first. Those outside of this profiler's own do not count: a process that
            was forked has those of its parent.
        collate: The name of the user's function that makes a batch of records; empty if it is not theirs.
        state: The letter of its state: S and D wait; empty if nobody knows.
    """
    doing = _classify(stack, collate)
    pipes = [number for number, frame in enumerate(stack) if _PIPES.search(frame.file)]
    if state == "S" and pipes and (pipes[0] == 0 or not doing.place):  # the other end has nothing, or takes nothing
        return Doing("idle", "")
    if state == "D" or (state == "S" and doing.activity == "reading"):
        return Doing("storage", doing.place)
    return doing


def _classify(stack: Sequence[Frame], collate: str) -> Doing:
    stack = list(dropwhile(lambda frame: frame.file == _PROBE, stack))
    own = next((number for number, frame in enumerate(stack) if frame.file.startswith(_OWN)), len(stack))
    if own == 0:
        return Doing("handing over" if stack and stack[0].file == _TAKES else "other", "")
    stack = stack[:own]
    library = list(takewhile(lambda frame: not is_users(frame.file), stack))
    user = stack[len(library)] if len(library) < len(stack) else None
    place = "" if user is None else f"{os.path.basename(user.file)}:{user.line} {user.function.rpartition('.')[2]}"
    leaf = stack[0]
    if _LISTENS.search(leaf.text) or (_WAITS.search(leaf.file) and not _MOVES.search(leaf.text)):
        return Doing("idle" if user is None else "waiting", place)
    if leaf is user and _BLOCKS.search(leaf.text):
        return Doing("waiting", place)
    if any(_PIPES.search(frame.file) for frame in library):  # also where it reads a socket for it
        return Doing("handing over", place)
    if not _LOADERS.search(leaf.file) and _READS.search(leaf.text) and "Image.open" not in leaf.text:
        return Doing("reading", place)
    if leaf is user and _DECODES.search(leaf.text):
        return Doing("decoding", place)
    for number, frame in enumerate(stack):
        if collate and frame.function.rpartition(".")[2] == collate and is_users(frame.file):
            return Doing("collating", place)
        for activity, files in _FILES if number < len(library) else ():
            if files.search(frame.file):
                return Doing(activity, place)
        if frame.file.endswith("/PIL/Image.py") and frame.function in ("open", "preinit", "_open_core"):
            return Doing("decoding", place)
    return Doing("other" if user is None else "functions", place)


def is_users(file: str) -> bool:
    """Returns whether a file belongs to the user, not to Python, a library or this profiler."""
    return not file.startswith(("<", *_LIBRARIES)) and not any(part in file for part in _OUTSIDE)
