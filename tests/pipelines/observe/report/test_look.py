"""The look that pages share stands in each of them, as it is."""

from __future__ import annotations

from tidegate.expectations.docs import _environment
from tidegate.pipelines.observe.report.look import look


def test_data_docs_have_it_unescaped() -> None:
    assert '"Segoe UI"' in look()
    assert look() in _environment().get_template("docs_index.html").render(pipeline="hours", checks=[])
