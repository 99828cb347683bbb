"""One file for each stage of the pipeline, with the stage's name and all its code; `build.py` orders the stages.

The functions at the top of a file build a `Stage` from the plan; its operations stand below them. Elements on the
way: numbers of epochs, then of runs or files; `((place, payload), (record, seed))` from `read` on; dictionaries of
features from `parse` on, with the image once it is decoded; batches from `batch` on.
"""
