"""One file for each stage of the pipeline, named as the stage, with all that it does; `build.py` puts them in order.

A function of a file's head builds a `Stage` from the read plan; the operations that the stage uses stand below it.
Elements on the way: numbers of epochs, then of runs or files; `(payload, record, seed)` from `read` on; dictionaries
of features from `parse` on, with the image once it is decoded; batches from `batch` on.
"""
