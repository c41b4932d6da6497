"""Text from the data is shown as text everywhere: no key can command a terminal, forge a row, or become HTML."""

from __future__ import annotations

import io
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from tests.expectations.quality_lake import pane, session_lake
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.airflow import page
from tidegate.pipelines.observe.report.plain_text import plain, plain_cell
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.project.cli.screen import plain_console, table

PARTS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "</td></tr></table>",
    "&lt;b&gt;",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[2J\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]52;c;Zm9v\x1b\\",
    "\x9b31m",
    "\ntidegate: all is well\n",
    "\r\x08\x7f",
    "\t",
    "\u202eevil\u2066",
    "\u2028",
    "[bold red]:smile:[/]",
    "ann",
)
"""Terminal commands, HTML, templates and Rich markup, line breaks, and text whose direction changes."""

HOSTILE = "".join(PARTS)
MARKUP = ("/blog/[slug]", "/blog/[id]", "[/x]", "[bold]b[/bold]", ":smile:", "a\\[b]")
"""Keys that people use, and that Rich would mistake for its markup."""
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
"""Characters that may never reach a terminal; line breaks and tabs are tested separately."""

texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=8), max_size=6).map("".join)


@given(texts, texts)
def test_a_table_on_the_screen_has_one_line_for_each_row_whatever_is_in_it(key: str, title: str) -> None:
    console = plain_console()
    console.file = io.StringIO()
    console.width = 4000
    console.print(table(f"of {title}", ["key", f"c{key}"], [[key, 1], ["bob", key]]))
    console.print(f"no row of {key}", Text.assemble((key, "bold"), " runs"))
    told = console.file.getvalue()
    assert COMMANDS.search(told) is None
    lines = told.split("\n")
    assert lines[3].startswith("bob"), lines
    assert told.isprintable() or set(told) >= {"\n"}


@given(texts)
def test_text_without_commands_stays_as_it_is(text: str) -> None:
    shown = plain(text)
    assert COMMANDS.search(shown) is None
    assert (shown == text) == (COMMANDS.search(text) is None and shown.count("\\ud") == text.count("\\ud"))
    assert len(plain_cell(text).splitlines()) <= 1
    shown.encode()


def with_hostile_keys(by_hand: ByHand) -> None:
    """Late rows, and windows that were added, deleted and changed."""
    rows = [(key, at("10:00"), 1) for key in (HOSTILE, *MARKUP)]
    by_hand.epoch(*rows, watermark=at("12:00"))
    by_hand.epoch(*rows, *((key, at("12:00"), 1) for key in (HOSTILE, *MARKUP)), watermark=at("12:10"))


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "command",
    [
        ("results", "sessions", "--view", "latest"),
        ("snapshots", "show", "sessions"),
        ("snapshots", "diff", "sessions", "1", "2"),
        ("late", "summary", "sessions", "--by", "user"),
        ("why", "sessions"),
        ("why", "sessions", "--key", HOSTILE),
        ("forget", "sessions", HOSTILE, "--yes"),
        ("report", "sessions", "--key", HOSTILE + "nobody"),
        ("results", f"sessions{HOSTILE}"),
        ("results", "sessions", f"--{HOSTILE}"),
        ("late", "summary", "sessions", "--by", HOSTILE),
        ("stream", "sessions", "--restore", HOSTILE, "--debug"),
    ],
    ids=lambda command: command[0] + command[-1][:8].strip("\x1b\n"),
)
def test_commands_and_their_errors_show_keys_as_they_are_and_send_no_command_to_the_terminal(
    project: Project, command: tuple[str, ...]
) -> None:
    project.by_hand.filled("hostile keys", with_hostile_keys)
    code, told = project.tidegate(*command)
    assert told
    if not any(HOSTILE in word for word in command):
        assert (code, [key for key in MARKUP if key not in told]) == (0, [])
    assert COMMANDS.search(told) is None
    assert sum(line.startswith("tidegate: ") for line in told.splitlines()) <= 1, "no forged reason"


class Elements(HTMLParser):
    """Return the elements of a page, the names of their attributes, and how often each begins and ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: set[str] = set()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begun[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        self.ended[tag] += 1


def test_a_key_makes_no_element_of_a_report_or_of_data_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = session_lake()
    for row in (*lake.panes, *lake.state):
        row["user"] = HOSTILE if row["user"] == "a" else row["user"]
    # They break rules, so the key is among the examples.
    lake.panes += [pane(HOSTILE, "12:20", "12:55", epoch=2), pane(HOSTILE, "12:30", "13:05", epoch=2)]
    entry = lake.write(tmp_path).pipelines["sessions"]
    file = tmp_path / "tidegate.toml"
    file.write_text(f'[pipelines.sessions]\nobject = "{entry.object}"\nstart = 2024-03-01\n')
    assert run(["quality", "check", "sessions", "--config", str(file), "--report"]) == 5
    assert COMMANDS.search("".join(capsys.readouterr())) is None
    pages = {page.name[:5]: page.read_text() for page in tmp_path.rglob("*.html")}
    assert sorted(pages) == ["check", "epoch", "index"]
    for name, text in pages.items():
        elements = Elements(text)
        assert not {"script", "img", "iframe", "object", "embed", "b"} & set(elements.begun), name
        assert not {name for name in elements.attributes if name.startswith("on")}, name
        for tag in ("td", "tr", "table", "svg", "div"):
            assert elements.begun[tag] == elements.ended[tag], (name, tag)
        assert COMMANDS.search(text) is None, name
    assert "&lt;script&gt;alert(1)" in pages["check"] + pages["epoch"], "the key is there, as text"


def test_the_page_in_airflow_makes_no_element_of_text() -> None:
    scripts = (Path(page.__file__).parent / name for name in ("page.html", "links.js"))
    text = "".join(file.read_text() for file in scripts)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "srcdoc", "eval("):
        assert way not in text
