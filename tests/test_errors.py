"""What is said of errors."""

from tfpipe.errors import first_line


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  It failed.\n\nStack trace:\n ...")) == "It failed"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(KeyError("image")) == "KeyError: 'image'"
    graph = "{{function_node __wrapped__Iterator}} Unknown image file format. [[{{node Decode}}]] [Op:IteratorGetNext]"
    assert first_line(ValueError(graph)) == "Unknown image file format"
    ours = "{{function_node f}} Error in Map: assertion failed: [Record 0 is damaged. Copy it.]\n\t [[{{node Assert}}]]"
    assert first_line(ValueError(ours)) == "Record 0 is damaged"
    step = (
        "{{function_node f}} Error in user-defined function passed to ParallelMapDatasetV2:41 transformation with "
        "iterator: Iterator::Root::Prefetch::ParallelMapV2: jpeg::Uncompress failed.\n\t [[{{node Decode}}]]"
    )
    assert first_line(ValueError(step)) == "jpeg::Uncompress failed"
    code = (
        'in user code:\n\n    File "stages.py", line 3, in change  *\n        x\n\n    ValueError: It does not fit.\n'
    )
    assert first_line(ValueError(code)) == "ValueError: It does not fit"
