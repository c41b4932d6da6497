"""The picture of the README: the report of a real run over two weeks of flights, shown in a browser.

make picture runs the pipeline with Spark, and writes docs/images/run-report.png
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "run-report.png"
SIZE = {"width": 1200, "height": 800}

PROJECT = """
[spark]
"spark.driver.memory" = "2g"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"

[pipelines.aircraft_duty]
object = "tidegate.pipelines.examples.flights.duty:aircraft_duty"
start = 2013-01-01
suites.final = "tidegate.expectations.flights:aircraft_duty"
"""

COMMANDS = (
    ("flights", "--days", "16"),
    ("backfill", "aircraft_duty", "--start", "2013-01-01", "--end", "2013-01-15", "--slice", "1d"),
    ("quality", "check", "aircraft_duty"),
)


def take(page: Page, report: Path, picture: Path) -> None:
    """Save the first screen of a report, in its light theme."""
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": SIZE["width"], "height": SIZE["height"]})
    page.goto(report.as_uri())
    page.screenshot(path=picture)


def run_report(folder: Path) -> Path:
    """Run the pipeline in a separate folder, and return the report of its newest epoch."""
    (folder / "tidegate.toml").write_text(PROJECT)
    report = folder / "report.html"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (*COMMANDS, ("report", "aircraft_duty", "--to", str(report))):
        subprocess.run([sys.executable, "-m", "tidegate", *command], cwd=folder, env=environment, check=True)
    return report


def main() -> None:
    """Run the pipeline, open the report, and save the picture."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = run_report(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        take(browser.new_page(), report, PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
