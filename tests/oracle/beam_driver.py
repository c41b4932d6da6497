"""Runs scenarios with Beam's trigger driver, in an environment that has Beam: a line of JSON in, a line out. The answer
has a list for each step: the panes of the step, each a window and its sorted values.
"""

import json
import sys

from apache_beam.transforms import trigger as beam
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import FixedWindows, Sessions, WindowFn
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

ENTRIES = {"after_any": beam.AfterAny, "after_all": beam.AfterAll, "after_each": beam.AfterEach}


def term(raw):
    """Return the trigger of a scenario."""
    match raw["type"]:
        case "default":
            return beam.DefaultTrigger()
        case "after_count":
            return beam.AfterCount(raw["count"])
        case "after_processing_time":
            return beam.AfterProcessingTime(raw["delay"])
        case "after_watermark":
            return beam.AfterWatermark(*(term(raw[part]) if raw[part] else None for part in ("early", "late")))
        case "repeatedly":
            return beam.Repeatedly(term(raw["of"]))
        case "or_finally":
            return beam.OrFinally(term(raw["of"]), term(raw["until"]))
        case kind:
            return ENTRIES[kind](*map(term, raw["of"]))


class Clock:
    """A clock that the scenario sets."""

    now = 0

    def time(self):
        """The time."""
        return self.now


class Run:
    """A running scenario."""

    def __init__(self, scenario):
        windows = scenario["windows"]
        session = windows["type"] == "session"
        self.windowing = Windowing(
            Sessions(windows["gap"]) if session else FixedWindows(windows["size"]),
            triggerfn=term(scenario["trigger"]),
            accumulation_mode=getattr(beam.AccumulationMode, scenario["accumulation"].upper()),
            allowed_lateness=scenario["lateness"],
        )
        self.clock = Clock()
        self.driver = beam.GeneralTriggerDriver(self.windowing, self.clock)
        self.state = beam.InMemoryUnmergedState()
        self.watermark = MIN_TIMESTAMP

    def step(self, raw):
        """Return the panes of a step."""
        [(kind, value)] = raw.items()
        if kind == "element":
            time = Timestamp(value["ts"])
            windows = self.windowing.windowfn.assign(WindowFn.AssignContext(time, value["value"]))
            element = WindowedValue(value["value"], time, windows)
            return (
                self.shown(self.driver.process_elements(self.state, [element], self.watermark, self.watermark))
                + self.fire()
            )
        if kind == "watermark":
            self.watermark = Timestamp(value)
        else:
            self.clock.now = value
        return self.fire()

    def fire(self):
        """Return the panes of due timers, and of timers that these set."""
        panes = []
        while due := self.state.get_timers(True, self.watermark, self.clock.now)[0]:
            for window, (name, domain, time, _) in due:
                panes += self.shown(self.driver.process_timer(window, name, domain, time, self.state, self.watermark))
        return panes

    def shown(self, outputs):
        """Return panes as scenarios write them."""
        return [[[int(pane.windows[0].start), int(pane.windows[0].end)], sorted(pane.value)] for pane in list(outputs)]


for line in sys.stdin:
    scenario = json.loads(line)
    run = Run(scenario)
    panes = [run.step(step) for step in scenario["steps"]]
    print(json.dumps({"id": scenario["id"], "panes": panes}))
