"""The description of a source: the value that names a pipeline's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse

TimeUnit = Literal["s", "ms"]


@runtime_checkable
class SourceDescription(Protocol):
    """Description of a source of events. `DeltaSource` is one; other kinds of sources define their own.

    A description is a frozen value that is checked on creation. It is part of a pipeline and of its fingerprint.
    """

    @property
    def table(self) -> str:
        """Name below the warehouse, or an absolute path or URI. Manifests store the position under this name."""

    @property
    def timestamp(self) -> str:
        """Column of the event time."""

    @property
    def zone(self) -> str | None:
        """Time zone of a wall-clock event time; None for other event times."""

    @property
    def unit(self) -> TimeUnit | None:
        """Unit of an integer event time; None for other event times."""

    def open(self, warehouse: Warehouse) -> object:
        """Open the source at its newest version: return a `tidegate.pipelines.sources.base.Source`.

        Args:
            warehouse: the warehouse of the project; `warehouse.path(self.table)` is the place of the source.

        Raises:
            MissingSource: there is no such source yet.
            Refused: it can't be opened; the message names it and the remedy.
        """


MEMBERS = tuple(sorted(name for name in vars(SourceDescription) if not name.startswith("_")))
"""Members of a description."""


def missing_in(value: object) -> list[str]:
    """Return the members of a description that a value lacks, or all of them if the value is a class."""
    return [name for name in MEMBERS if isinstance(value, type) or not hasattr(value, name)]
