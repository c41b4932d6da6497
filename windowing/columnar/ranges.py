"""Merged contents of many overlapping ranges of rows, such as the slices of sliding windows.

Rows are divided into blocks as long as the longest range. So a range is the end of one block and the beginning of the
next, and merging two running aggregates gives its contents, however long it is. This is the two-stack queue with an
aggregate, for all ranges at a time: nothing is ever subtracted, so minima and sketches work like sums.
"""

from __future__ import annotations

import numpy as np

from tidegate.windowing.aggregates.vectorised import Groups, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents, Contents
from tidegate.windowing.columnar.order import begins
from tidegate.windowing.epochs.arrays import joined, taken

_WORTH = 6
"""Merges of a row that running merges take at most. With fewer rows to merge, each range is merged by itself."""


def merged_ranges(
    functions: ColumnarContents, contents: Contents, firsts: Int64s, lasts: Int64s, blocks: Int64s
) -> Contents:
    """Return the merged contents of each range of rows.

    Args:
        functions: the aggregates.
        contents: contents of the rows.
        firsts: first row of each range.
        lasts: last row of each range, inclusive.
        blocks: block of each row; never decreases. A range covers at most two blocks. If it covers two, it has the end
            of the first one and the beginning of the second one; if it covers one, it has the end or the beginning of
            it.
    """
    sizes = lasts - firsts + 1
    rows = len(blocks)
    if int(sizes.sum()) <= _WORTH * rows:
        of = Groups.of_sizes(sizes)
        return functions.merge(taken(contents, np.arange(of.rows) - (of.starts - firsts)[of.ids]), of)
    of_blocks = Groups.of_firsts(begins(blocks))
    from_begin = _running(functions, contents, of_blocks)
    backwards = np.arange(rows)[::-1]
    until_end = taken(
        _running(functions, taken(contents, backwards), Groups.of_sizes(of_blocks.sizes[::-1])), backwards
    )
    one = of_blocks.ids[firsts] == of_blocks.ids[lasts]
    is_end = one & (lasts == of_blocks.lasts[of_blocks.ids[lasts]])
    # Row i of `both` is the end of a block from row i on, and row `rows + i` its beginning up to row i.
    both = joined([until_end, from_begin])
    merged = taken(both, np.where(one & ~is_end, rows + lasts, firsts))
    two = np.flatnonzero(~one)
    if not len(two):
        return merged
    pairs = functions.merged_pairs(taken(merged, two), taken(both, rows + lasts[two]))
    place = np.arange(len(firsts))
    place[two] = len(firsts) + np.arange(len(two))
    return taken(joined([merged, pairs]), place)


def _running(functions: ColumnarContents, contents: Contents, groups: Groups) -> Contents:
    """Return the contents of each row merged with those of all earlier rows of its group.

    Pairs of rows are merged, then the pairs' running merges give those of the rows: 2 merges per row, in few steps.
    """
    sizes = groups.sizes
    if not len(sizes) or int(sizes.max()) == 1:
        return contents
    place = np.arange(groups.rows) - groups.starts[groups.ids]
    seconds = np.flatnonzero(place % 2 == 1)
    pairs = functions.merged_pairs(taken(contents, seconds - 1), taken(contents, seconds))
    halves = sizes // 2
    pairs = _running(functions, pairs, Groups.of_sizes(halves[halves > 0]))
    thirds = np.flatnonzero((place % 2 == 0) & (place > 0))
    pair_of = np.cumsum(place % 2) - 1
    after = functions.merged_pairs(taken(pairs, pair_of[thirds - 1]), taken(contents, thirds))
    source = np.arange(groups.rows)
    source[seconds] = groups.rows + np.arange(len(seconds))
    source[thirds] = groups.rows + len(seconds) + np.arange(len(thirds))
    return taken(joined([contents, pairs, after]), source)
