"""TLC explores the whole model of the protocol: promises hold, each bug breaks one, and every dangerous state is
reached.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from formal.scopes import BUGS, IN_TIME, INVARIANTS, LIVE, RIVALS, SCOPES, Bug, Scope, wide
from formal.tlc import FOLDER, check
from tests.recovery.bugs import BUGS as PLANTED

ROOT = FOLDER.parent
PAGE = (ROOT / "docs" / "proof.md").read_text()
SCOPE = {scope.name: scope for scope in SCOPES}


QUICK = {"kills", "restore", "recovery rolls forward", "a commit knows its own entry"}
"""Scopes and protections of `make test`. Tests of the real code, which the page names, have the other protections."""

IN_WIDE_BOUNDS = [pytest.mark.long, pytest.mark.timeout(7200)]


@pytest.mark.parametrize(
    ("scope", "heap"),
    [
        *(pytest.param(s, "1g", marks=[] if s.name in QUICK else [pytest.mark.long], id=s.name) for s in SCOPES),
        *(pytest.param(wide(s), "3g", marks=IN_WIDE_BOUNDS, id=f"{s.name} in wide bounds") for s in SCOPES),
    ],
)
def test_every_promise_holds_and_every_danger_is_met(scope: Scope, heap: str) -> None:
    found = check(scope, heap=heap)
    assert not found.broken, found.text
    assert found.reached >= set(scope.reaches)
    assert scope.name != "kills" or not found.reached & set(RIVALS), "no action meets a danger that needs two drivers"


@pytest.mark.long
@pytest.mark.parametrize("name", LIVE)
def test_a_rerun_publishes_everything(name: str) -> None:
    found = check(SCOPE[name], promises=IN_TIME)
    assert not found.broken, found.text


@pytest.mark.long
def test_a_rerun_that_does_not_roll_forward_does_not() -> None:
    assert check(SCOPE[LIVE[0]], "recovery rolls forward", IN_TIME).broken == IN_TIME[0]


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=[] if bug.protection in QUICK else [pytest.mark.long]) for bug in BUGS],
    ids=lambda bug: bug.protection,
)
def test_without_a_protection_a_promise_is_broken(bug: Bug) -> None:
    assert check(SCOPE[bug.scope], bug.protection, (bug.refutes,)).broken == bug.refutes


def test_a_model_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not complete"):
        check(replace(SCOPE["kills"], times="NoSuchTimes"))


def test_bugs_and_dangers_are_those_of_the_model() -> None:
    model = (FOLDER / "Tidegate.tla").read_text()
    assert set(re.findall(r'Bug (?:=|#) "([^"]+)"', model)) == {bug.protection for bug in BUGS}
    texts = set(re.findall(r'"([^"]*)"', model))
    assert {state for scope in SCOPES for state in scope.reaches} <= texts


def test_each_protection_that_crash_tests_switch_off_is_a_bug_of_the_model() -> None:
    assert {bug.rule for bug in PLANTED} <= {bug.protection for bug in BUGS}


def test_each_promise_is_what_some_bug_breaks() -> None:
    assert {bug.refutes for bug in BUGS} == set(INVARIANTS)


def test_the_page_has_every_promise_and_every_protection_with_its_test() -> None:
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if "| `" in line]
    assert [row[1] for row in rows if len(row) == 2] == [*INVARIANTS, *IN_TIME]
    protections = [row for row in rows if len(row) == 3]
    assert [(row[0], row[1]) for row in protections] == [(bug.protection, bug.refutes) for bug in BUGS]
    files = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert {row[2] for row in protections} <= files
