"""The columnar operator: it computes a shard's windows on arrays. Its results equal the row operator's exactly.

Keys don't affect each other. So a caller may feed a shard as a whole or in parts, such as ranges of key groups, as long
as each part has all elements and all state rows of its keys. The largest part determines the memory needed.

Most epochs change few of the windows in state, so the cost of an epoch should not grow with all of them. Idle state
rows pass through the epoch unchanged: a window is idle if no element has its key and none of its timers or firings is
due. Windows merge only through elements, so the other windows of its key can't change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.exact import SumOutOfRange
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.aligned import AlignedKernel
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.kernel import KernelOutput, PaneRows, Rules
from tidegate.windowing.columnar.key_codes import KeyCodes, encode_keys
from tidegate.windowing.columnar.order import sort_order
from tidegate.windowing.columnar.plan import choose_operator
from tidegate.windowing.columnar.sessions import SessionKernel
from tidegate.windowing.columnar.sliced import SlicedKernel
from tidegate.windowing.columnar.slices import Slicing
from tidegate.windowing.columnar.state import InFlight, StateArrays, is_plain, millis_of, where
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.outcome import EpochOutcome, no_late, nothing
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.window import LATE
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import SLICE, WINDOW, StateSchema


class ColumnarOperator:
    """Windows of keyed elements in event time, one epoch at a time.

    Late panes are coalesced per source commit, as in a pipeline.

    Args:
        windows: the computation, with aggregates bound to the types of their columns.
        state: schema of the state rows, including the key columns.
        panes: pane policies beyond Flink's plain firing.
        max_parallelism: number of key groups.
        late_output: True emits late elements; False only counts them, as `late_dropped`.
        account_for_all: see `WindowOperator`.

    Raises:
        UnsupportedOperation: `choose_operator` chooses the row operator for these windows, or a type of an
            aggregate is missing.
    """

    def __init__(
        self,
        windows: Windows,
        state: StateSchema,
        panes: PanePolicy,
        max_parallelism: int,
        *,
        late_output: bool = True,
        account_for_all: bool = True,
    ) -> None:
        choice, firing = choose_operator(windows), windows.effective_trigger.array_firing
        if not choice.columnar or firing is None:
            raise UnsupportedOperation(f"the columnar operator can't run these windows: {choice.reason}")
        contents = ColumnarContents.of(windows)
        if contents is None:
            raise UnsupportedOperation(
                "the columnar operator needs to know every type: bind the aggregates to the input's schema "
                "(AggregateColumns.of(aggregates, schema)), and declare accumulator_type and result_type"
            )
        grid = windows.assigner.window_grid
        self._slicing = choice.slicing if isinstance(choice.slicing, Slicing) else None
        self.windows_of_an_element = 1 if grid is None or self._slicing is not None else grid.windows_of_an_element
        self._windows = windows
        self._late_output = late_output
        self._by_row = RowOperator(
            windows, state, panes, max_parallelism, late_output=late_output, account_for_all=account_for_all
        )
        self._key = state.key
        self._contents = contents
        self._state = StateArrays(state, contents, max_parallelism)
        self._rules = Rules(
            contents,
            self._state,
            windows.lateness,
            panes.accumulation,
            firing.purges,
            panes.retract_merged,
            firing.interval,
            panes.closed_through,
        )

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> EpochOutcome:
        """Process the elements of an epoch, given the state rows before it; see `EpochOperator`.

        The row operator computes the keys and clusters that arrays can't compute exactly.

        Raises:
            IllegalArgument: a commit other than the last one is incomplete.
        """
        if not timeline.complete[:-1].all():
            raise IllegalArgument(
                "complete", timeline.complete.tolist(), "only the last commit of an epoch may be incomplete"
            )
        names = self._key.names
        sliced = self._sliced(timeline)
        resting = state.slice(0, 0)
        rests = None if sliced is not None else resting_rows(state, self._key, elements, self._rules, timeline)
        if rests is not None:
            resting, state = where(state, rests), where(state, ~rests)
        keys = encode_keys(
            self._key,
            ({name: elements.keys[name] for name in names}, len(elements)),
            ({name: state[name] for name in names}, len(state)),
        )
        codes, state_codes = keys.codes
        rest = self._state.rest_of(state)
        if sliced is None:
            in_flight, odd = self._state.read(state_codes, rest)
            odd |= self._rules.are_foreign(rest, in_flight.ends, in_flight.filled, in_flight.pending, timeline)
        else:
            in_flight, odd = self._state.read(state_codes, rest, (WINDOW, SLICE))
            odd = ~sliced.can_read(in_flight, ~odd)
        odd_keys = np.zeros(len(keys), np.bool_)
        odd_keys[state_codes[odd]] = True
        # In event order the watermark may advance between any two elements, so early firings may happen there too.
        # Times are in the range of `windowing.time`, because pipelines reject others, so sums of times fit int64.
        if self._rules.interval is not None and timeline.lag is not None:
            odd_keys[:] = True
        try:
            by_arrays, rows, states = self._by_arrays(codes, elements, in_flight, odd_keys, timeline)
        except SumOutOfRange:
            # An intermediate sum was out of range, although the result may fit; the row operator has sums of any size.
            odd_keys[:] = True
            by_arrays, rows, states = self._by_arrays(codes, elements, in_flight, odd_keys, timeline)
        by_row = None
        if len(rows) or len(states):
            odd_state = self._state.whole(state.take(pa.array(states)))
            by_row = self._by_row.run(elements.take(rows), odd_state, timeline).with_late_rows(rows)
        return self._outcome(by_arrays, by_row, keys, resting)

    def _by_arrays(
        self, codes: Int64s, elements: Elements, in_flight: InFlight, odd_keys: Bools, timeline: Timeline
    ) -> tuple[KernelOutput, Int64s, Int64s]:
        """Return the kernel's output, and the indices of elements and windows that are left to the row operator."""
        keys = len(odd_keys)
        if not odd_keys.any():
            return self._kernel(codes, elements, in_flight, keys, timeline)
        odd_rows, odd_states = odd_keys[codes], odd_keys[in_flight.codes]
        plain_rows, plain_states = np.flatnonzero(~odd_rows), np.flatnonzero(~odd_states)
        output, rows, states = self._kernel(
            codes[plain_rows], elements.take(plain_rows), in_flight.take(plain_states), keys, timeline
        )
        for part in output.late:
            part.rows[:] = plain_rows[part.rows]
        return (
            output,
            np.concatenate([plain_rows[rows], np.flatnonzero(odd_rows)]),
            np.concatenate([plain_states[states], np.flatnonzero(odd_states)]),
        )

    def _kernel(
        self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int, timeline: Timeline
    ) -> tuple[KernelOutput, Int64s, Int64s]:
        assigner = self._windows.assigner
        assign, nothing, sliced = assigner.array_assignment, np.empty(0, np.int64), self._sliced(timeline)
        if sliced is not None:
            return sliced.run(codes, elements, in_flight), nothing, nothing
        if assign is not None:
            return AlignedKernel(assign, self._rules, timeline).run(codes, elements, in_flight, keys), nothing, nothing
        return SessionKernel(assigner, self._rules, timeline).run(codes, elements, in_flight, keys)

    def _sliced(self, timeline: Timeline) -> SlicedKernel | None:
        """Return the kernel for slices, or None if each window keeps its own contents in this epoch."""
        # A window that newer code closed before its end accepts elements only if it has state.
        if self._slicing is None or self._rules.closed_through > timeline.initial:
            return None
        return SlicedKernel(self._slicing, self._rules, timeline)

    def _outcome(
        self, by_arrays: KernelOutput, by_row: EpochOutcome | None, keys: KeyCodes, resting: pa.Table
    ) -> EpochOutcome:
        result = self._contents.result
        panes = [part for part in by_arrays.panes if len(part)]
        late = [part.table(LATE) for part in by_arrays.late]
        if not self._late_output:
            by_arrays.counters.late_dropped += sum(map(len, late))
            late = []
        by_arrays.counters.open_windows += len(resting)
        no_panes = PaneRows.empty(results=self._contents.results(self._contents.empty()))
        tables = [PaneRows.concat(panes or [no_panes]).table(keys, result)]
        others = [resting]
        counters = by_arrays.counters
        if by_row is not None:
            tables.append(by_row.panes)
            late.append(by_row.late)
            others.append(by_row.state)
            counters = Counters.total([counters, by_row.counters])
        state = self._state.table(by_arrays.state, keys, others)
        return EpochOutcome(
            panes=pa.concat_tables(tables),
            outputs=nothing(),
            late=pa.concat_tables(late) if late else no_late(),
            state=state,
            counters=counters,
            next_timer=pc.min(pc.list_flatten(state["event_time_timers"])).as_py() if len(state) else None,
            rows_by_row=0 if by_row is None else by_row.rows_by_row,
        )


def resting_rows(state: pa.Table, key: KeySchema, elements: Elements, rules: Rules, timeline: Timeline) -> Bools | None:
    """Return a flag for each state row: whether it is idle; or None if determining that costs too much."""
    # Early firings by interval have timers of their own.
    if len(state) <= len(elements) or rules.interval is not None:
        return None
    ends = millis_of(state, "window_end")
    filled, pending = _array(state["filled"].fill_null(False)), _array(state["late_firing"].is_valid())
    # If one state row of a key needs the row operator, all rows of that key go to it.
    odd = ~_array(is_plain(state)) | rules.are_foreign(state, ends, filled, pending, timeline)
    rests: Bools = ~odd & ~pending & ~rules.due(ends, timeline)
    if len(elements) or odd.any():
        rests &= ~_has_keys(state, key, elements.keys, odd)
    return rests if np.count_nonzero(rests) * 2 > len(rests) else None


def _has_keys(state: pa.Table, key: KeySchema, columns: Mapping[str, pa.Array], odd: Bools) -> Bools:
    """Return a flag for each state row: whether its key is also that of an element or of a row for the row operator.

    Each key column is compared separately, so a few other keys may be flagged too.
    """
    matches: Bools = np.ones(len(state), np.bool_)
    for name, kind in zip(key.names, key.types, strict=True):
        column = state[name].cast(kind)
        values = _values([columns[name], column.filter(pa.array(odd))], kind)
        matches &= _array(pc.is_in(column, value_set=values))
    return matches


def _values(columns: Sequence[pa.Array | pa.ChunkedArray], kind: pa.DataType) -> pa.Array:
    """Return the distinct values of key columns, with all values of their dictionaries."""
    chunks = [
        chunk for column in columns for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    ]
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    nulls = pa.nulls(int(any(column.null_count for column in columns)), kind)
    return pc.unique(pa.concat_arrays([nulls, *(part.cast(kind) for part in values)]))


def _array(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())


ROWS_AT_A_TIME = 4_000_000
"""Number of elements in a pass, counted once for each of their windows. Each takes about 250 bytes of memory."""


def run_in_passes(
    operator: ColumnarOperator,
    elements: Elements,
    state: pa.Table,
    timeline: Timeline,
    rows: int = ROWS_AT_A_TIME,
) -> EpochOutcome:
    """Return the outcome of `operator.run`, computed on about `rows` elements at a time.

    An element counts once for each of its windows. Each pass processes its elements before the next one begins, which
    bounds memory. The operator processes elements by commit and then by time, so a pass may end between any two
    elements of different times without changing the order. A single hot key needs no more memory than many keys.
    """
    rows = max(1, rows // operator.windows_of_an_element)
    if len(elements) <= rows:
        return operator.run(elements, state, timeline)
    outcomes = []
    for pass_rows, commit, part in _passes(elements, timeline, rows):
        taken = elements.take(pass_rows)
        outcome = operator.run(replace(taken, commits=taken.commits - commit), state, part)
        state = outcome.state
        outcomes.append(outcome.with_late_rows(pass_rows))
    return joined_outcomes(outcomes)


def run_in_pieces(
    operator: ColumnarOperator,
    pieces: Iterable[tuple[Elements, int, bool]],
    state: pa.Table,
    timeline: Timeline,
    rows: int = ROWS_AT_A_TIME,
) -> Iterator[EpochOutcome]:
    """Yield the outcomes of an epoch whose elements come in pieces, which need not fit in memory together.

    The pieces of an epoch are the commits of the epoch, in order, or parts of them. The outcome is that of
    `operator.run` over all elements if the order of the elements of a commit does not matter
    (`Windows.may_split_commits`). The state of the last outcome is the state after the epoch.

    Args:
        operator: the operator.
        pieces: for each, its elements, the number of its last commit, and True if that commit ends with it. In event
            order the commit is 0, and only the last piece ends it.
        state: state rows before the epoch.
        timeline: timeline of the epoch.
        rows: see `run_in_passes`.
    """
    watermark, first = timeline.initial, 0
    for elements, last, ended in pieces:
        if timeline.lag is None:
            part = timeline.part(watermark, first, last, ended)
            outcome = run_in_passes(operator, replace(elements, commits=elements.commits - first), state, part, rows)
            watermark, first = part.final, last + ended
        else:
            outcome = _held(operator, elements, state, timeline, ended, rows)
        state = outcome.state
        yield outcome


def _held(
    operator: ColumnarOperator, elements: Elements, state: pa.Table, timeline: Timeline, ended: bool, rows: int
) -> EpochOutcome:
    """Return the outcome of a piece in event order, computed on about `rows` elements at a time."""
    size, outcomes = max(1, rows // operator.windows_of_an_element), []
    for begin in range(0, max(1, len(elements)), size):
        is_last = ended and begin + size >= len(elements)
        part = elements.slice(begin, min(size, len(elements) - begin))
        outcome = operator.run(part, state, timeline if is_last else timeline.held())
        state = outcome.state
        outcomes.append(outcome.with_late_rows(np.arange(begin, begin + len(part))))
    return joined_outcomes(outcomes)


def _passes(elements: Elements, timeline: Timeline, rows: int) -> Iterator[tuple[Int64s, int, Timeline]]:
    """Yield for each pass the indices of its elements, the number of its first commit, and its timeline."""
    times = elements.timestamps
    order = sort_order(elements.commits, times)
    differs = np.ones(len(order), np.bool_)
    differs[1:] = (np.diff(times[order]) != 0) | (np.diff(elements.commits[order]) != 0)
    if timeline.lag is not None:
        # Elements that don't move the watermark belong to the first commit, whose late panes are emitted together.
        differs[1:] &= times[order[1:]] - timeline.lag > timeline.initial
    may_begin = np.append(np.flatnonzero(differs), len(order))
    wanted = np.append(np.arange(0, len(order), rows), len(order))
    begins = np.unique(may_begin[np.searchsorted(may_begin, wanted)])
    watermark, commit = timeline.initial, 0
    for begin, end in pairwise(begins.tolist()):
        pass_rows, final = order[begin:end], end == len(order)
        if timeline.lag is not None:
            newest = max(watermark, timeline.following(int(times[pass_rows[-1]])))
            after = timeline.final if final else newest
            part = Timeline.in_event_order(watermark, after, timeline.lag, clock=int(timeline.clocks[0]))
            yield pass_rows, 0, part
        else:
            last = len(timeline.complete) - 1 if final else int(elements.commits[pass_rows[-1]])
            ended = bool(timeline.complete[last]) and (final or int(elements.commits[order[end]]) > last)
            part = timeline.part(watermark, commit, last, ended)
            yield pass_rows, commit, part
            commit = last + ended
        watermark = part.final


def joined_outcomes(outcomes: Sequence[EpochOutcome]) -> EpochOutcome:
    """Return the outcomes of all passes or pieces as one; its state is that of the last one."""
    counters = Counters.total(outcome.counters for outcome in outcomes)
    counters.open_windows = outcomes[-1].counters.open_windows
    return replace(
        outcomes[-1],
        panes=pa.concat_tables([outcome.panes for outcome in outcomes]),
        late=pa.concat_tables([outcome.late for outcome in outcomes]),
        counters=counters,
        rows_by_row=sum(outcome.rows_by_row for outcome in outcomes),
    )
