"""What holds of every pipeline's windows, one expectation a rule: they read as Great Expectations' own do."""

from expectations.invariants.alignment import ExpectWindowsToBeAligned, ExpectWindowsToBeAtLeast
from expectations.invariants.names import (
    ExpectFinalAtToFitTheBounds,
    ExpectKeysToHashToTheirGroup,
    ExpectWindowIdsToNameTheirWindows,
)
from expectations.invariants.origin import (
    ExpectEpochsToBeOfTheLine,
    ExpectFilesToBeOfOurCommits,
    ExpectFilesToKeepTheirRows,
    ExpectNobodyElseToRewriteFiles,
)
from expectations.invariants.panes import ExpectOneOnTimePaneBeforeLateOnes, ExpectPanesToBeDense
from expectations.invariants.progress import ExpectEventsToBeConserved, ExpectWatermarkNeverToGoBack
from expectations.invariants.sessions import ExpectNoSessionInsideAnother, ExpectSessionsToLieApart
from expectations.invariants.sliding import ExpectElementsInEverySlidingWindow
from expectations.invariants.state import (
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
