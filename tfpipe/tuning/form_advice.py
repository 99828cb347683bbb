"""Says which stored form is best, from measured figures. Pure: numbers in, a choice out.

A form that reduces the images before they are cropped changes what the model sees. So there are two answers: the best
of the forms that keep the crops of the originals, and the best of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfpipe.tuning.stored_forms import Candidate, Speed

SAME = 0.02
"""The share by which two figures may differ and still count as the same: two measurements of one form do."""


@dataclass(frozen=True)
class FormFigures:
    """All figures of a candidate, for the whole input and for the rate that the training needs.

    Attributes:
        candidate: The form and its pipeline.
        speed: The measured speed of the pipeline.
        cores: The cores that the pipeline takes at that rate, of the kind of this host.
        stored_bytes: The bytes of all shards.
        read_bytes_per_second: The bytes that the pipeline reads per second at that rate; 0 from a full cache.
        memory_bytes: The memory that its cache takes on each host; 0 without one.
        fits_memory: Whether the cache fits into the memory of this host.
        write_s: The seconds of the job that writes the shards, by the clock.
        storage_price: The price of storing the shards for a month; None without a price.
        cores_price: The price of the cores for a month; None without a price.
    """

    candidate: Candidate
    speed: Speed
    cores: float
    stored_bytes: float
    read_bytes_per_second: float
    memory_bytes: float
    fits_memory: bool
    write_s: float
    storage_price: float | None
    cores_price: float | None

    @property
    def price(self) -> float | None:
        """The price of a month, storage and cores together; None if one of both is unknown."""
        if self.storage_price is None or self.cores_price is None:
            return None
        return self.storage_price + self.cores_price


@dataclass(frozen=True)
class Advice:
    """The best forms.

    Attributes:
        keeping_crops: The best of the forms that keep the crops of the originals; None if none was measured.
        of_all: The best of all forms.
        by_price: Whether the price decides. Otherwise the number of cores does.
        fastest_to_slowest: The images per CPU-second of the fastest form divided by those of the slowest.
    """

    keeping_crops: FormFigures | None
    of_all: FormFigures
    by_price: bool
    fastest_to_slowest: float


def choose_forms(forms: Sequence[FormFigures]) -> Advice:
    """Chooses the best forms: those with the lowest price, or with the fewest cores if a price is unknown.

    Of forms whose figures are the same within `SAME`, the one with the fewest bytes is best. A form whose cache does
    not fit is never chosen.

    Args:
        forms: The figures of the candidates, of which at least one needs no cache.
    """
    by_price = all(form.price is not None for form in forms)
    usable = [form for form in forms if form.fits_memory]
    keeping = [form for form in usable if form.candidate.keeps_crops]
    speeds = [form.speed.images_per_cpu_second.ratio for form in forms]
    return Advice(
        keeping_crops=_choose(keeping, by_price) if keeping else None,
        of_all=_choose(usable, by_price),
        by_price=by_price,
        fastest_to_slowest=max(speeds) / min(speeds),
    )


def _choose(forms: Sequence[FormFigures], by_price: bool) -> FormFigures:
    def get_cost(form: FormFigures) -> float:
        return (form.price if by_price else form.cores) or 0.0

    limit = min(map(get_cost, forms)) * (1 + SAME)
    return min((form for form in forms if get_cost(form) <= limit), key=lambda form: form.stored_bytes)
