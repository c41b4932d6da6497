"""The values about a pipeline's definition and sources that every manifest records."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

WINDOWS = "time_window"
"""Namespace, in manifests, of the state of windows."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Position(_Value):
    """The position up to which a source has been read.

    `version` has been read completely; `frontier` is the event time before which its rows are used; None means all of
    them. `files` counts the files of the next version, in the source's order, that have already been read. `own` has
    the fields that the source itself adds, plain JSON that only the source reads; in the manifest they are next to the
    other fields. Delta adds `table_id`, because a replaced table has a new id.

        {"version": 3, "frontier": null, "files": 0, "table_id": "6a1f..."}
    """

    version: int
    frontier: int | None = None
    files: int = 0
    own: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_own(cls, fields: Any) -> Any:
        """Move the fields of the source into `own`."""
        if not isinstance(fields, dict):
            return fields
        added = fields.get("own", {name: value for name, value in fields.items() if name not in cls.model_fields})
        if taken := sorted(added.keys() & cls.model_fields.keys()):
            raise ValueError(f"a source can't add a field {taken[0]!r} to a position")
        return {**{name: value for name, value in fields.items() if name in cls.model_fields}, "own": added}

    @model_serializer(mode="wrap")
    def _beside_each_other(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {**{name: value for name, value in fields.items() if name != "own"}, **self.own}


class Shape(_Value):
    """Shape of the windows in the code that ran an epoch, milliseconds; None where it does not apply."""

    size: int | None = None
    slide: int | None = None
    offset: int = 0
    gap: int | None = None
    lateness: int = 0


class Schemas(_Value):
    """The schemas that a restore is checked against, with a string for each field.

    `result` has the columns that retractions repeat, and is empty if nothing is retracted.
    """

    key: dict[str, str]
    namespace: str
    contents: dict[str, str]
    trigger_state: dict[str, str] = {}
    user_state: dict[str, str] = {}
    result: dict[str, str] = {}

    @property
    def has_panes(self) -> bool:
        """True if the results are panes of windows."""
        return self.namespace == WINDOWS
