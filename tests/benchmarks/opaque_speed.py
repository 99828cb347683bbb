"""Measures `tfpipe reshard --opaque` on drawn records like DeepVariant's: `python -m tests.benchmarks opaque_speed`.

Each record has a raw image of 100 x 221 x 6 bytes that packs about 20 times, and the other features. It prints the
rate, the processor time, the largest memory of all processes together, and what 30 million records would take on 16
such cores. One file is drawn, and stands there under several names.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tfpipe.format.example import encode_example
from tfpipe.format.tfrecord import record_footer, record_header

SHAPE = (100, 221, 6)
DISTINCT = 256  # images; gzip's window of 32 KB does not reach from one to its next copy
MANY, CORES = 30_000_000, 16


def draw_image(seed: int) -> bytes:
    """Draws a pileup-like image: reads that are nearly equal, with noise, above empty rows."""
    random = np.random.default_rng(seed)
    image = np.zeros(SHAPE, np.uint8)
    image[: random.integers(20, 60)] = random.integers(0, 4, (1, *SHAPE[1:]), np.uint8) * 60
    noise = random.random(SHAPE) < 0.01
    image[noise] = random.integers(0, 255, int(noise.sum()))
    return image.tobytes()


def write_file(path: Path, records: int) -> int:
    """Writes one file as a single gzip stream, and returns the bytes of its records."""
    images = [draw_image(seed) for seed in range(DISTINCT)]
    num_bytes = 0
    with gzip.open(path, "wb", compresslevel=6) as out:
        for number in range(records):
            features = {
                "image/encoded": [images[number % DISTINCT]],
                "image/shape": list(SHAPE),
                "image/format": [b"raw"],
                "variant/encoded": [number.to_bytes(90, "little")],
                "alt_allele_indices/encoded": [b"\n\x01\x00"],
                "variant_type": [1],
                "locus": [b"chr1:%d-%d" % (number, number + 1)],
                "sequencing_type": [1],
                "label": [number % 3],
            }
            payload = encode_example(features)
            out.write(record_header(len(payload)) + payload + record_footer(payload))
            num_bytes += len(payload) + 16
    return num_bytes


def read_use(session: int, ticks: dict[str, int]) -> tuple[int, int]:
    """Returns the resident and the proportional memory of all processes of a session, and notes their clock ticks."""
    resident = proportional = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks[stat.parent.name] = int(fields[11]) + int(fields[12])
                lines = (stat.parent / "smaps_rollup").read_text().splitlines()
                sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines[1:]}
                resident, proportional = resident + sizes["Rss"], proportional + sizes["Pss"]
        except (OSError, IndexError):  # it has ended
            continue
    return resident, proportional


def main() -> None:
    """Draws the files, runs the command and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=37_500)  # 5 GB
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where to write; a temporary one by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        paths = [folder / f"examples.tfrecord-{k:05d}-of-{args.files:05d}.gz" for k in range(args.files)]
        records = args.records // args.files * args.files
        unpacked = write_file(paths[0], records // args.files) * args.files
        for path in paths[1:]:
            os.link(paths[0], path)
        packed = sum(path.stat().st_size for path in folder.iterdir())
        command = [sys.executable, "-m", "tfpipe", "reshard", "--opaque", f"{folder}/examples*", f"{folder}/out"]
        command += ["--compression", "gzip", "--num-shards", "16", "--workers", str(args.workers), "--json"]
        began, most, ticks = time.monotonic(), (0, 0), dict[str, int]()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            while process.poll() is None:
                most = tuple(map(max, most, read_use(process.pid, ticks)))
                time.sleep(0.2)
            assert process.stdout is not None
            result = json.loads(process.stdout.read())
        seconds = time.monotonic() - began
        busy_s = sum(ticks.values()) / os.sysconf("SC_CLK_TCK")
        assert result["records"] == records
        print(f"{unpacked / 1e9:.2f} GB in {packed / 1e6:.0f} MB, written as {result['bytes'] / 1e6:.0f} MB")
        print(f"{seconds:.0f} s: {records / seconds:,.0f} records/s, {unpacked / seconds / 1e6:.0f} MB/s unpacked")
        print(f"{busy_s:.0f} s of processors: {busy_s / records * 1e3:.2f} ms a record")
        print(
            f"memory of all processes: {most[0] / 1e6:.0f} MB resident, {most[1] / 1e6:.0f} MB without what they share"
        )
        print(f"{MANY:,} records on {CORES} cores, by processor time: {MANY / records * busy_s / CORES / 60:.0f} min")
        print(f"manifest: {result['unindexed'] or 'yes'}")


if __name__ == "__main__":
    main()
