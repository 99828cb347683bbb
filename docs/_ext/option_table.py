"""The directive `option-table`: the options of a config class as a table, from its fields and its docstring.

    ```{option-table} tfpipe.PipelineConfig
    ```

It writes Markdown, so the page that holds it must be Markdown too.
"""

from importlib import import_module

from docutils import nodes
from docutils.statemachine import StringList
from option_rows import write_markdown
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class OptionTable(SphinxDirective):
    """A class's first paragraphs, and a table with a row for each of its options."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the paragraphs and the table; Sphinx calls it."""
        module, _, name = self.arguments[0].rpartition(".")
        config = getattr(import_module(module), name)
        parent = nodes.container()
        self.state.nested_parse(StringList(write_markdown(config), source=self.arguments[0]), 0, parent)
        return parent.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive; Sphinx calls it."""
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
