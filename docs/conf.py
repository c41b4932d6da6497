"""The documentation site: `make docs` builds it from these pages and from the docstrings of `tidegate`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

HERE = Path(__file__).parent
# The checkout that these pages are of, whatever an environment has installed.
sys.path[:0] = [str(HERE.parent), str(HERE / "_site")]

project = "Tidegate"
author = "The authors of Tidegate"
version = release = version_of("tidegate")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "notebooks",
    "docstrings",
    "diagrams",
]
# GitHub shows README.md; the site has the same text in index.md.
exclude_patterns = ["README.md", "_site"]
source_suffix = {".md": "markdown"}
highlight_language = "text"

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# Docstrings set code in single quotes, as Markdown does.
default_role = "literal"
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
# Sphinx looks for the sources of base classes. To find these, it would load the libraries, which then log.
ModuleAnalyzer.cache.update(
    {
        ("module", base): PycodeError(f"the sources of {base} are not read")
        for base in (
            "airflow.sdk",
            "airflow.sdk.bases.hook",
            "airflow.triggers.base",
            "great_expectations.expectations.expectation",
        )
    }
)
# The pages need neither, and both take seconds to load; Great Expectations writes to stderr meanwhile.
autodoc_mock_imports = ["airflow", "great_expectations"]

html_theme = "furo"
html_title = f"Tidegate {release}"
html_copy_source = False
html_show_sourcelink = False
