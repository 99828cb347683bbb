"""Each row of the page about what goes in and out belongs to tests that run it."""

import ast
import re

from tests.conftest import ROOT
from tests.docs.pages import DOCS

PAGE = DOCS / "howto" / "in-and-out.md"

# The first cell of each row, and the tests: `tests/FILE.py::FUNCTION`.
TESTS = {
    "a folder of images, of class folders, or of splits with class folders": [
        "beam_jobs/inputs/test_folder.py::test_layouts_of_an_archive_and_of_a_folder",
        "beam_jobs/inputs/test_folder.py::test_class_folders",
        "beam_jobs/inputs/test_folder.py::test_split_folders",
    ],
    "[a table](tables.md): `.csv`, `.tsv`, `.jsonl` or `.parquet`, one file or many": [
        "beam_jobs/inputs/test_table.py::test_every_kind_of_column_is_read_back_by_tensorflow",
        "beam_jobs/inputs/test_table.py::test_boxes_can_be_given_by_lists",
        "beam_jobs/inputs/test_table.py::test_a_table_in_many_files_is_one_table",
        "cli/test_shard.py::test_other_separators",
    ],
    "several classes an image, in a table": ["cli/test_shard.py::test_several_labels"],
    "a target of a regression, in a table": ["cli/test_shard.py::test_the_target_of_a_regression"],
    "`.tar`, `.tar.gz` or `.zip`, also tars in a tar or in a folder": [
        "beam_jobs/inputs/test_archive.py::test_members_of_archives_are_read",
        "beam_jobs/inputs/test_archive.py::test_tar_files_in_a_tar_file_are_listed",
        "beam_jobs/inputs/test_folder.py::test_a_folder_of_tars",
    ],
    "WebDataset and img2dataset: tars of images beside captions": [
        "beam_jobs/inputs/test_pairs.py::test_a_tar_of_img2dataset_becomes_captions_and_columns",
        "test_every_kind.py::test_an_export_comes_back",
    ],
    "Parquet files of Hugging Face's `datasets`, one, a folder or a pattern": [
        "beam_jobs/inputs/test_parquet_rows.py::test_records_hold_the_bytes_the_class_and_the_text",
        "beam_jobs/inputs/test_parquet_rows.py::test_one_file_or_a_pattern_is_an_input_too",
        "beam_jobs/inputs/test_parquet_rows.py::test_masks_of_parquet_files_are_stored_with_their_images",
    ],
    "a Parquet file that `tfpipe export` wrote": [
        "beam_jobs/inputs/test_parquet_rows.py::test_an_export_to_parquet_comes_back",
        "beam_jobs/inputs/test_parquet_tensors.py::test_tensors_beside_images_come_back",
    ],
    "Parquet files without images, such as latents, also of an export": [
        "beam_jobs/inputs/test_parquet_tensors.py::test_lists_of_numbers_become_tensors",
        "test_every_kind.py::test_an_export_comes_back",
    ],
    "several images a record, in tars of WebDataset, or lists in Parquet and other tables": [
        "beam_jobs/inputs/test_several_images.py::test_a_table_may_list_the_images_of_a_record",
        "beam_jobs/inputs/test_several_images.py::test_named_images_of_a_tar_become_a_list",
        "beam_jobs/inputs/test_several_images.py::test_lists_in_a_parquet_file_become_records",
        "test_every_kind.py::test_an_export_comes_back",
    ],
    "captions in a table, one or several for an image": [
        "beam_jobs/inputs/test_table.py::test_captions_are_text",
        "beam_jobs/inputs/test_table.py::test_an_image_may_have_several_captions",
    ],
    "COCO: `instances_*.json`, `captions_*.json`": [
        "beam_jobs/inputs/annotations/test_coco.py::test_records_hold_boxes_with_the_names_of_their_classes",
        "beam_jobs/inputs/annotations/test_coco.py::test_files_can_be_named",
        "beam_jobs/inputs/annotations/test_coco.py::test_segmentations_become_masks",
    ],
    "Pascal VOC: `Annotations/*.xml`": [
        "beam_jobs/inputs/annotations/test_voc.py::test_the_layout_of_voc_gives_boxes_classes_and_splits",
        "beam_jobs/inputs/annotations/test_voc.py::test_masks_are_stored_if_all_images_have_one",
    ],
    "TFRecords of another program": [
        "integrity/foreign/test_index.py::test_counts_places_labels_and_forms_and_records_at_random"
    ],
    "TFRecords, as a dataset of tfpipe": ["beam_jobs/test_foreign.py::test_features_of_every_kind"],
    "TFRecords that are compressed": [
        "integrity/foreign/test_index_read.py::test_compressed_files_are_read_in_throughput_order"
    ],
    "TFRecords of any content, to shuffle them": ["beam_jobs/test_opaque_job.py::test_all_records_in_another_order"],
    "TFRecords with tensors of `tf.io.serialize_tensor`": [
        "integrity/foreign/test_index.py::test_they_are_read_padded_or_ragged"
    ],
    "a prepared dataset of TFDS": ["integrity/foreign/test_index_read.py::test_tfds_is_indexed_verified_and_resumed"],
    "several datasets": ["beam_jobs/inputs/test_dataset.py::test_records_and_labels"],
    "any Python code": ["writer/test_write.py::test_every_record_comes_back"],
    "several classes a record, from Python code": [
        "writer/test_write.py::test_names_and_numbers_are_stored_as_numbers",
        "readers/test_base.py::test_lists_are_vectors",
    ],
    "several images a record, from Python code": [
        "cli/test_kinds_of_records.py::test_records_hold_lists",
        "pipeline/test_several_images.py::test_images_are_drawn_among_as_many_as_a_record_has",
    ],
    "WebDataset": [
        "export/test_formats.py::test_webdataset",
        "export/test_formats.py::test_other_libraries_read_the_same",
    ],
    "Parquet, Hugging Face `datasets`": [
        "export/test_formats.py::test_parquet",
        "export/test_formats.py::test_other_libraries_read_the_same",
    ],
    "ArrayRecord": [
        "export/test_formats.py::test_arrayrecord",
        "export/test_formats.py::test_other_libraries_read_the_same",
    ],
    "one image file": ["cli/test_inspect.py::test_one_record_as_json_with_its_image_written"],
    "any reader of TFRecords": ["writer/test_write.py::test_a_plain_reader_opens_it"],
    "readers by an index of the records": [
        "test_other_readers.py::test_vahidk_tfrecord_reads_every_record_by_the_index"
    ],
    "TensorFlow Datasets": ["format/test_tfds_metadata.py::test_a_mixed_split"],
    "tf-models": ["test_other_readers.py::test_tf_models_finds_the_features_that_it_documents"],
    "`tf.data`": ["integrity/foreign/test_index_read.py::test_every_record_is_evaluated_once"],
    "PyTorch": ["test_every_kind.py::test_tensorflow_pytorch_and_jax_read_equal_values"],
    "JAX": ["test_every_kind.py::test_tensorflow_pytorch_and_jax_read_equal_values"],
    "Grain, batches or records by number": [
        "readers/test_grain.py::test_grain_reads_with_workers_and_restores_checkpoints"
    ],
    "NumPy, by number": ["readers/test_data_source.py::test_a_record_is_what_was_written"],
}


def test_each_row_has_tests() -> None:
    tables = PAGE.read_text(encoding="utf-8").partition("\n## Export\n")[0]
    rows = re.findall(r"^\| (.+?) \| ", tables, re.MULTILINE)
    assert [row for row in rows if row not in ("from", "to")] == list(TESTS)


def test_each_test_exists() -> None:
    missing = []
    for names in TESTS.values():
        for name in names:
            file, _, function = name.partition("::")
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            if function not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
                missing.append(name)
    assert missing == []
