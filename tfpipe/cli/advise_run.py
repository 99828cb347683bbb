"""The measurements of `tfpipe advise`: a sample is written in every form, and all of them are read in turns."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from beam_jobs.config import ShardConfig
from beam_jobs.prices import PriceConfig
from tfpipe.cli.shared.inputs import quiet_start
from tfpipe.cli.shared.progress import ShardDisplay
from tfpipe.cli.shared.status import status_line
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_bytes, human_count
from tfpipe.tuning.advise_config import AdviseConfig, Crop

if TYPE_CHECKING:
    from beam_jobs.estimate import Estimate, Parallelism
    from beam_jobs.plan.plan import Plan
    from beam_jobs.sample import Sample
    from tfpipe.format.manifest import Manifest
    from tfpipe.tuning.form_advice import FormFigures
    from tfpipe.tuning.stored_forms import Candidate, Speed

_SHARDS = 16  # of the sample: eight small ones and eight that are four times as large


@dataclass(frozen=True)
class Measured:
    """The result of `tfpipe advise`.

    Attributes:
        images: The number of images in the input.
        source_bytes: The bytes of all its images.
        sampled: The number of images in the sample.
        images_per_second: The images per second that the training needs.
        image_size: The side of the images that the model gets, in pixels.
        forms: The figures of each candidate.
    """

    images: int
    source_bytes: int
    sampled: int
    images_per_second: float
    image_size: int
    forms: "Sequence[FormFigures]"


@dataclass(frozen=True)
class FormReading:
    """The facts that were measured of a candidate.

    Attributes:
        candidate: The form and its pipeline.
        speed: The speed of the pipeline.
        estimate: The estimate of the job that stores all images in this form.
        record_bytes: The mean bytes of a record.
        cached_bytes: The mean bytes of an image in the pipeline's cache; 0 without one.
    """

    candidate: "Candidate"
    speed: "Speed"
    estimate: "Estimate"
    record_bytes: float
    cached_bytes: float


def measure(
    config: ShardConfig,
    advise_config: AdviseConfig,
    pipeline: PipelineConfig,
    beam_args: Sequence[str],
    prices: PriceConfig,
) -> Measured:
    """Writes a sample in every form into a temporary folder, and runs the pipelines over them.

    Args:
        config: The options of the job, with the form for images that stay as they are.
        advise_config: The demand, and the size of the sample.
        pipeline: The options of every pipeline, but for its batch size.
        beam_args: The arguments for Beam.
        prices: The prices of cores and storage.

    Raises:
        DataError: The input cannot be used, the folder cannot be written, or a pipeline does not run.
    """
    from beam_jobs import process_pool

    process_pool.start_early()
    from beam_jobs.estimate import infer_parallelism
    from beam_jobs.make_plan import plan_shards
    from beam_jobs.sample import take_sample
    from tfpipe.storage.file_io import explain_os_errors

    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder, explain_os_errors(f"write to {folder}"):
        config = replace(config, output=f"{folder}/out")
        started = time.monotonic()
        with ShardDisplay() as display:
            plan = plan_shards(config, beam_args, display)
        if not plan.listing.has_images:
            raise ConfigError(f"Forms of images are compared, and {config.input} holds none.")
        planned_s = time.monotonic() - started
        count = min(advise_config.count_sample(plan.num_bytes / plan.num_images), plan.num_images)
        _check_room(plan, count, pipeline, folder)
        with status_line("Drawing the sample") as status:
            small = max(count * 2 // (5 * _SHARDS), 1)
            sample = take_sample(plan, config.seed, count, (small, 4 * small), folder)
            job = _SampleJob(config, plan, sample, planned_s, infer_parallelism(config, beam_args))
            readings = job.read_forms(pipeline, advise_config.crop, status)
    rate = advise_config.images_per_second
    forms = [make_figures(reading, rate, prices) for reading in readings]
    return Measured(plan.num_images, plan.num_bytes, count, rate, pipeline.size[0], forms)


def _check_room(plan: "Plan", count: int, pipeline: PipelineConfig, folder: str) -> None:
    """Checks that the sample fits on the disk: twice as originals, once as pixels, and the smaller forms."""
    height, width = pipeline.resolve_decoded_size()
    needed = round(2.5 * plan.num_bytes / plan.num_images * count + 1.5 * height * width * 3 * count)
    free = host_limits.free_disk_bytes(folder)
    if needed > free:
        raise DataError(
            f"{human_count(count, 'image')} in every form take about {human_bytes(needed)}, and {human_bytes(free)} "
            f"are free in {tempfile.gettempdir()}. Set TMPDIR to a folder with more room, or sample fewer with "
            "`num_images`."
        )


class _SampleJob(NamedTuple):
    """The job that stores a sample in several forms.

    Attributes:
        config: The options of the job, whose output lies in a temporary folder.
        plan: The plan of the whole job.
        sample: The sample.
        planned_s: The seconds that listing and planning took.
        parallelism: The processes that the whole job would have.
    """

    config: ShardConfig
    plan: "Plan"
    sample: "Sample"
    planned_s: float
    parallelism: "Parallelism"

    def read_forms(self, pipeline: PipelineConfig, crop: Crop, observer: Observer) -> list[FormReading]:
        """Writes the sample in each form, and measures the pipelines in turns."""
        from beam_jobs.sample import SPLIT
        from tfpipe.engine.cache import estimate_cache_bytes
        from tfpipe.engine.plan import plan_batches
        from tfpipe.engine.source import get_source
        from tfpipe.native import library

        with quiet_start():
            from tfpipe.tuning.stored_forms import choose_batch_size, list_candidates, measure_forms
        candidates = list_candidates(self.config.form, pipeline, crop, has_native_library=library.is_available())
        names = {candidate.form: candidate.name for candidate in candidates}
        written = {}
        for number, (form, name) in enumerate(names.items()):
            images = human_count(self.sample.plan.num_images, "image")
            observer.phase(f"Writing {images}, form {number + 1} of {len(names)}: {name}")
            written[form] = self._write(form, f"{self.config.output}-{number}")
        manifests = {form: manifest for form, (manifest, _) in written.items()}
        records = min(manifest.splits[SPLIT].records for manifest in manifests.values())
        pipeline = replace(pipeline, batch_size=choose_batch_size(records))
        speeds = measure_forms(candidates, manifests, SPLIT, pipeline, observer)
        readings = []
        for candidate, speed in zip(candidates, speeds, strict=True):
            (manifest, estimate), cache_bytes = written[candidate.form], 0
            if candidate.caches_decoded:
                plan = plan_batches(get_source(manifest, SPLIT), replace(pipeline, **candidate.changes))
                cache_bytes = estimate_cache_bytes(plan) or 0
            split = manifest.splits[SPLIT]
            mean_bytes, mean_cached = split.bytes / split.records, cache_bytes / split.records
            readings.append(FormReading(candidate, speed, estimate, mean_bytes, mean_cached))
        return readings

    def _write(self, form: ImageForm, output: str) -> "tuple[Manifest, Estimate]":
        """Writes the sample in a form, and returns its dataset and the estimate for all images."""
        from beam_jobs.estimate import estimate_from_sample
        from beam_jobs.sample import write_sample
        from tfpipe.dataset.load import load_manifest

        config, processes = replace(self.config, form=form), self.parallelism.processes
        written = write_sample(config, self.sample, output, processes, keep=True)
        estimate = estimate_from_sample(self.plan, self.sample, written, self.planned_s, self.parallelism)
        return load_manifest(output), estimate


def make_figures(reading: FormReading, images_per_second: float, prices: PriceConfig) -> "FormFigures":
    """Scales what was measured to all images, and to the rate that the training needs.

    Args:
        reading: The facts that were measured of a candidate.
        images_per_second: The images that the training consumes per second.
        prices: The prices of cores and storage.
    """
    from tfpipe.engine.cache import MAX_CACHE_SHARE
    from tfpipe.tuning.form_advice import FormFigures

    estimate = reading.estimate
    cores = images_per_second / reading.speed.images_per_cpu_second.ratio
    storage = prices.estimate_storage_cost((estimate.output_bytes.value, estimate.output_bytes.value))
    memory_bytes = reading.cached_bytes * estimate.images
    return FormFigures(
        candidate=reading.candidate,
        speed=reading.speed,
        cores=cores,
        stored_bytes=estimate.output_bytes.value,
        read_bytes_per_second=0.0 if memory_bytes else images_per_second * reading.record_bytes,
        memory_bytes=memory_bytes,
        fits_memory=memory_bytes <= MAX_CACHE_SHARE * host_limits.available_memory_bytes(),
        write_s=estimate.wall_s.value,
        storage_price=None if storage is None else storage[0],
        cores_price=prices.estimate_cores_cost(cores),
    )
