"""The site: `sphinx-build -W docs build/docs`, after `pip install '.[docs]'`."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [
    str(DOCS.parent),
    str(DOCS / "_ext"),
]  # a checkout's modules come before an installed tfpipe, here and in the notebooks
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no lines of TensorFlow's start-up among the outputs of a notebook

import figures  # noqa: E402

from tfpipe import __version__  # noqa: E402
from tfpipe.engine.config import toml_json  # noqa: E402

project = "tfpipe"
author = "The tfpipe authors"
project_copyright = "the tfpipe authors; Apache-2.0"
release = version = __version__

extensions = [
    "myst_nb",
    "option_table",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "docstring_markup",
    "sphinx_copybutton",
]
exclude_patterns = ["**/.ipynb_checkpoints"]
default_role = "code"  # the docstrings set names in single backticks, as Markdown does
root_doc = "index"
smartquotes = False  # an option such as --workers in a sentence would begin with one dash

html_theme = "furo"
html_title = f"tfpipe {release}"
html_static_path = ["_static"]
repository = toml_json.read(DOCS.parent / "pyproject.toml")["project"].get("urls", {}).get("Repository")
if repository:  # a link to it, and "edit this page"
    html_theme_options = {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_substitutions = figures.make_substitutions()
myst_heading_anchors = 4

nb_execution_mode = "force"  # a stored output would outlive the code that printed it
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_output_stderr = "remove"  # TensorFlow's messages at its start

autoclass_content = "both"  # the arguments are described at `__init__`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
