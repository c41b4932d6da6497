"""Rules for the tables of every pipeline, each an expectation in the style of Great Expectations' own."""

from tidegate.expectations.invariants.alignment import ExpectWindowsToBeAligned, ExpectWindowsToBeAtLeast
from tidegate.expectations.invariants.names import (
    ExpectFinalAtToFitTheBounds,
    ExpectKeysToHashToTheirGroup,
    ExpectWindowIdsToNameTheirWindows,
)
from tidegate.expectations.invariants.origin import (
    ExpectEpochsToBeOfTheLine,
    ExpectFilesToBeOfOurCommits,
    ExpectFilesToKeepTheirRows,
    ExpectNobodyElseToRewriteFiles,
)
from tidegate.expectations.invariants.panes import ExpectOneOnTimePaneBeforeLateOnes, ExpectPanesToBeDense
from tidegate.expectations.invariants.progress import ExpectEventsToBeConserved, ExpectWatermarkNeverToGoBack
from tidegate.expectations.invariants.sessions import ExpectNoSessionInsideAnother, ExpectSessionsToLieApart
from tidegate.expectations.invariants.sliding import ExpectElementsInEverySlidingWindow
from tidegate.expectations.invariants.state import (
    ExpectNoStateBehindWatermark,
    ExpectNoTimerOfClosedWindow,
    ExpectStateToMatchChecksums,
)

__all__ = [
    "ExpectElementsInEverySlidingWindow",
    "ExpectEpochsToBeOfTheLine",
    "ExpectEventsToBeConserved",
    "ExpectFilesToBeOfOurCommits",
    "ExpectFilesToKeepTheirRows",
    "ExpectFinalAtToFitTheBounds",
    "ExpectKeysToHashToTheirGroup",
    "ExpectNoSessionInsideAnother",
    "ExpectNoStateBehindWatermark",
    "ExpectNoTimerOfClosedWindow",
    "ExpectNobodyElseToRewriteFiles",
    "ExpectOneOnTimePaneBeforeLateOnes",
    "ExpectPanesToBeDense",
    "ExpectSessionsToLieApart",
    "ExpectStateToMatchChecksums",
    "ExpectWatermarkNeverToGoBack",
    "ExpectWindowIdsToNameTheirWindows",
    "ExpectWindowsToBeAligned",
    "ExpectWindowsToBeAtLeast",
]
