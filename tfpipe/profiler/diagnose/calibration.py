"""The measured factors behind the diagnosis, in one place.

The laws in `bottleneck` are exact, but they know nothing of threads that wake up or of memory that is allocated. These
factors say what such things cost. Unless a factor's text says otherwise, it was fitted to the planted faults: there a
pipeline runs in turns before and after its fix (`python tests/benchmarks/planted_faults.py`).

All factors were measured in November 2026 on one machine with 2 cores. Its model and the single runs are not on record;
where a text gives a range, the range is all that was kept. Another machine may have other factors: run the benchmark
there before you trust a prediction to a few percent.
"""

SATURATED = 0.85
"""The busy share above which a station counts as the bottleneck. Few stations get busier, and work queues behind one
that does. No run is on record."""

THREADS_SLACK = 0.15
"""The amount by which the busy share of a stage's threads may stay below `SATURATED`. Their demand is computed and not
counted, and they also hand elements over. No run is on record."""

CPU_BOUND_REACHED = 0.97
"""The share of the cores' bound that a pipeline reaches when the cores limit it; 0.94 to 0.99. The rest is lost where
threads wait for each other."""

CPU_LEFT_AFTER_COMPUTING = 0.9
"""The share of an image's processor time that is left once the cores are busy all the time, where the bottleneck was a
stage that computed. Threads that wait go to sleep and wake up between two images with cold caches; here the threads
before the bottleneck had work in store. 0.87 to 1.0 with serial maps, serial decodes and Python functions: medians of
at least 8 runs with JPEGs of 500 x 375 and 2000 x 1500 pixels."""

CPU_LEFT_AFTER_WAITING = 0.83
"""This share if the bottleneck itself waited, so that every image woke all threads. The same runs gave 0.73 to 0.91
with slow storage and with a function that waits."""

ALLOCATION_PER_STAGE_TIME = 0.16
"""The processor time outside all stages that grows with the work, such as allocations, by the time of the stages. Time
beyond that is the same for every image, however large: threads that wake each other. Both together were 0.14 to 0.19 in
exact order, at 0.8 to 7 ms an image, and 0.17 to 0.35 where `order = "throughput"` hands over each record alone. This
is not `UNCOUNTED_CPU_SHARE`, which is a share of the whole process's time."""

MOST_OTHER_PER_STAGE_TIME = 0.19
"""The most processor time outside all stages, by the time of the stages, of pipelines in exact order without stages of
the user's own. What is more comes from operations that compute in threads of their own."""

UNCOUNTED_CPU_SHARE = 0.16
"""The share of the process's processor time that no operation of tf.data accounts for: threads that hand over, and
allocations. 0.16 to 0.25 in pipelines that read from memory. The low end is used."""

CPU_LEFT_WHEN_FUSED = 0.9
"""The share of the processor time from `parse` to `batch` that is left when `parse`, `decode` and `augment` are one
function. No run is on record; `tests/benchmarks/profile_overhead.py` measures what fusion saves in a whole pipeline."""

CPU_LEFT_WITH_NATIVE_DECODER = 0.18
"""The share of the processor time of making batches that is left when the native library takes the place of NumPy and
Pillow in the engine. 0.18 with images as bytes and 0.13 to 0.15 as floats: JPEGs of 500 x 375 pixels and of 341 x 256,
224 pixels, one run each on 2 cores."""

READ_CPU_LEFT_ON_DEVICE = 0.72
"""The share of the time of `read` and `shuffle` that is left when the device augments. Crops as floats, 600 kB each at
224 pixels, push what is read out of the processor's caches. 0.71 with raw images, 0.58 with JPEGs. Where a share of the
images is no longer decoded, this share of the saving counts."""

CACHE_FETCH_US = 75.0
"""The processor time of fetching one record from a cache in memory, in microseconds. No run is on record."""

RECORD_READ_US = 100.0
"""The processor time of reading a record, however small it is, in microseconds. From memory a record of 40 kB took
110 us and one of 780 kB took 480 us."""

RAW_READ_US_PER_KB = 0.5
"""The processor time of reading a further 1,000 bytes of a record, in microseconds, from the two records named at
`RECORD_READ_US`."""

CPU_LEFT_WITHOUT_INTRA_OP = 0.95
"""The share of the processor time that is left when an operation keeps to one thread; JPEGs of 256 pixels."""

SMALLER_IMAGE_BYTES = 1.5
"""The factor by which the bytes of a smaller image exceed its share of the pixels: a smaller photograph has more detail
in each pixel. An estimate; no run is on record."""
