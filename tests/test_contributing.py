"""The pages for contributors are correct: their links, the changelog, what the security page says, and the hooks."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    broken = []
    for file, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", (ROOT / page).read_text()):
        target = ROOT / (file or page)
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if target.is_file() else []
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        if not target.exists() or (heading and heading not in anchors):
            broken.append(f"{file}#{heading}")
    assert broken == []


def test_the_version_has_its_section_in_the_changelog_and_the_newest_comes_first() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(
        r"^## (\d+)\.(\d+)\.(\d+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    if version.endswith(".dev0"):
        # Between releases, the version is that of the next one, whose section is still called Unreleased.
        assert version.removesuffix(".dev0") > ".".join(sections[0])
        assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()
    else:
        assert ".".join(sections[0]) == version
    assert sorted(sections, key=lambda parts: [int(part) for part in parts], reverse=True) == sections


def test_what_the_security_page_says_is_switched_off_is() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    assert "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False" in page
    assert "GX_ANALYTICS_ENABLED=false" in page
    assert 'AIRFLOW__USAGE_DATA_COLLECTION__ENABLED: "False"' in (ROOT / "docker-compose.yml").read_text()
    assert '"AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False"' in (ROOT / "pipelines/airflow/embedded.py").read_text()
    assert '"GX_ANALYTICS_ENABLED"] = "false"' in (ROOT / "expectations/__init__.py").read_text()
    parts = [
        file.read_text()
        for folder in ("windowing", "pipelines", "expectations")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert not re.search(r"^\s*(?:import|from) (?:pickle|cloudpickle|dill)\b", "\n".join(parts), re.MULTILINE)


def test_the_security_page_has_a_private_way_and_one_for_repositories_without_it() -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text().split("## Nothing phones home")[0].split())
    assert "**Report a vulnerability**" in text
    assert "write nothing about the vulnerability" in text


def test_the_hooks_of_a_commit_run_the_programs_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"], "a program from elsewhere would be another version"
    hooks = {hook["id"]: hook for hook in config["repos"][0]["hooks"]}
    assert set(hooks) == {"ruff-check", "ruff-format", "codespell", "mypy"}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None
    for hook in hooks.values():
        program = hook["entry"].split()[0]
        assert hook["language"] == "system"
        assert (ROOT / program).exists(), f"{program}: run make env"
        assert program.replace(".venv/bin", "$(BIN)") in lint[1], f"make lint does not run {program}"


def test_the_words_of_code_and_pages_are_spelled_right() -> None:
    done = subprocess.run([ROOT / ".venv/bin/codespell"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
