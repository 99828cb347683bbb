"""Trains small_cnn in TensorFlow, PyTorch and JAX with several seeds, and compares the last epochs.

    python tests/benchmarks/framework_accuracy.py [IMAGES] [--epochs 10] [--seeds 5]

IMAGES is a folder of class folders; the default is sample_data. Each framework draws other weights from a seed, but
reads the same records with the same crops. So the means must agree within the spread over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_TRAIN = """
import contextlib, json, sys
import tfpipe
from tfpipe.training.config import TrainConfig, default_pipeline

framework, dataset, folder, epochs, seeds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
manifest = tfpipe.load_manifest(dataset)

@contextlib.contextmanager
def open_devices():
    if framework == "tensorflow":
        yield tfpipe.resolve_strategy()
    else:
        with join_processes() as place:
            yield place

if framework == "tensorflow":
    from tfpipe.training.tensorflow.train import train
elif framework == "torch":
    from tfpipe.training.torch.processes import join_processes
    from tfpipe.training.torch.train import train
else:
    from tfpipe.training.jax.processes import join_processes
    from tfpipe.training.jax.train import train
lasts = []
with open_devices() as devices:
    for seed in range(seeds):
        pipeline = tfpipe.PipelineConfig(batch_size=4, seed=seed, **default_pipeline("small_cnn"))
        workers = {} if framework == "tensorflow" else {"num_workers": 0 if framework == "torch" else 1}
        output = f"{folder}/{framework}-{seed}"
        config = TrainConfig(pipeline=pipeline, output=output, framework=framework, epochs=epochs, **workers)
        lasts.append(train(manifest, config, devices).last)
print(json.dumps(lasts))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="?", default=str(ROOT / "sample_data"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfpipe", "shard", arguments.images, f"{folder}/data"]
        subprocess.run(command, check=True, capture_output=True)
        for framework in ("tensorflow", "torch", "jax"):
            given = (framework, f"{folder}/data", folder, str(arguments.epochs), str(arguments.seeds))
            result = subprocess.run([sys.executable, "-c", _TRAIN, *given], check=True, capture_output=True, text=True)
            lasts = json.loads(result.stdout.splitlines()[-1])
            print(f"{framework:10}  {describe(lasts, 'accuracy')}  {describe(lasts, 'loss')}", flush=True)


def describe(lasts: list[dict[str, float]], name: str) -> str:
    """Returns the mean and the standard deviation over seeds."""
    values = [last[name] for last in lasts]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{name} {statistics.mean(values):.3f} ± {spread:.3f} ({', '.join(f'{value:.2f}' for value in values)})"


if __name__ == "__main__":
    main()
