"""Masks → polygons along the edges of pixels, from which pycocotools makes exactly the same mask again.

Pixels that share an edge are one polygon, and those that share a corner only are two. COCO's polygons cannot have
holes; as is usual there, a cut without width leads from the outline to the hole, around it and back.

Edges have the mask on their right. A straight run of them is one edge here: a loop alternates between horizontal and
vertical ones, so that the horizontal ones, of which each has a start and an end, name all of its corners.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Point = tuple[int, int]  # (x, y) of a corner of pixels
Loop = list[int]  # horizontal edges in their order


def outlines(mask: NDArray[np.bool_]) -> list[list[float]]:
    """Return COCO's polygons [x, y, x, y, …] of a mask (height, width); none where it is empty."""
    mask = np.asarray(mask, bool)
    if not mask.any():
        return []
    along_rows, along_columns = _edges(mask), _edges(mask.T).transposed()
    loops = _loops(along_rows, along_columns)
    outer = [loop for loop in loops if _is_outer(along_rows, loop)]
    holes = [_from_top(along_rows, loop) for loop in loops if not _is_outer(along_rows, loop)]
    cuts: dict[int, list[list[Point]]] = defaultdict(list)  # edge → the paths around holes that cuts from it lead to
    for hole in sorted(holes, key=lambda hole: along_rows.line[hole[-1]], reverse=True):
        path = _path(along_rows, hole, cuts)  # complete: cuts to other holes lead downwards
        cuts[_edge_above(along_rows, mask, path[0])].append(path)
    return [_flat(_path(along_rows, loop, cuts)) for loop in outer]


@dataclass(frozen=True, eq=False)
class _Edges:
    """Straight edges along rows (line is y, start and end are x) or along columns (line is x), sorted by line."""

    line: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def transposed(self) -> _Edges:
        """Return the edges of the transposed mask with their direction turned, which puts the mask on the right."""
        return _Edges(self.line, self.end, self.start)


def _edges(mask: NDArray[np.bool_]) -> _Edges:
    """Return the edges along rows: to the right above the mask, to the left below it."""
    height, width = mask.shape
    padded = np.zeros((height + 2, width + 1), np.int8)  # the last column keeps the edges of two rows apart
    padded[1:-1, :-1] = mask
    change = np.diff(padded, axis=0).ravel()
    before, after = np.append(np.int8(0), change[:-1]), np.append(change[1:], np.int8(0))
    first = np.flatnonzero((change != 0) & (change != before))
    last = np.flatnonzero((change != 0) & (change != after))
    line, left, right = first // (width + 1), first % (width + 1), last % (width + 1) + 1
    to_right = change[first] > 0
    return _Edges(line, np.where(to_right, left, right), np.where(to_right, right, left))


def _loops(rows: _Edges, columns: _Edges) -> list[Loop]:
    """Return the closed loops. Where two areas share a corner, a loop turns right, and stays with its own area."""
    # rightwards turns down, leftwards up; downwards turns left, upwards right
    column_of = _following(rows.end, rows.line, rows.end > rows.start, columns.line, columns.start, columns)
    row_of = _following(columns.line, columns.end, columns.end < columns.start, rows.start, rows.line, rows)
    following = row_of[column_of].tolist()
    visited, loops = bytearray(len(following)), []
    for first in range(len(following)):
        loop: Loop = []
        edge = first
        while not visited[edge]:
            visited[edge] = 1
            loop.append(edge)
            edge = following[edge]
        if loop:
            loops.append(loop)
    return loops


def _following(
    x: NDArray[np.int64],
    y: NDArray[np.int64],
    preferred: NDArray[np.bool_],
    start_x: NDArray[np.int64],
    start_y: NDArray[np.int64],
    candidates: _Edges,
) -> NDArray[np.int64]:
    """Return the candidate that starts at each (x, y); of two, the one whose end grows or falls as `preferred`."""
    side = int(max(start_x.max(initial=0), start_y.max(initial=0))) + 1
    keys = (start_y * side + start_x) * 2 + (candidates.end > candidates.start)
    order = np.argsort(keys)
    keys = keys[order]
    preferred_keys = (y * side + x) * 2 + preferred
    chosen = np.minimum(np.searchsorted(keys, preferred_keys), len(keys) - 1)
    other = np.minimum(np.searchsorted(keys, preferred_keys ^ 1), len(keys) - 1)
    return order[np.where(keys[chosen] == preferred_keys, chosen, other)]


def _is_outer(edges: _Edges, loop: Loop) -> bool:
    """Return whether the loop runs clockwise, as y points down: around an area, as opposed to around a hole."""
    return int((edges.line[loop] * (edges.start[loop] - edges.end[loop])).sum()) > 0


def _from_top(edges: _Edges, loop: Loop) -> Loop:
    """Return the loop of a hole from the edge on that follows its upper left corner."""
    line, end = edges.line[loop], edges.end[loop]
    first = int(np.lexsort((end, line))[0])  # it goes left to that corner
    return loop[first + 1 :] + loop[: first + 1]


def _edge_above(edges: _Edges, mask: NDArray[np.bool_], corner: Point) -> int:
    """Return the edge that a line upwards from a hole's upper left corner meets first."""
    x, y = corner
    empty = np.flatnonzero(~mask[:y, x])
    first, last = np.searchsorted(edges.line, np.array([0, 1]) + (empty[-1] + 1 if len(empty) else 0))
    inside = (edges.start[first:last] <= x) & (x < edges.end[first:last])
    return int(first + np.flatnonzero(inside)[0])


def _path(edges: _Edges, loop: Loop, cuts: dict[int, list[list[Point]]]) -> list[Point]:
    """Return the corners of a closed loop, from the end of its last edge to there, by way of the cuts and the holes."""
    start, end, line = (values[loop].tolist() for values in (edges.start, edges.end, edges.line))
    points = [(end[-1], line[-1])]
    for edge, left, right, y in zip(loop, start, end, line, strict=True):
        points.append((left, y))
        for hole in sorted(cuts.get(edge, [])):  # an edge above the mask goes to the right
            x, _ = hole[0]
            points += [(x, y), *hole, (x, y)]
        points.append((right, y))
    return points


def _flat(path: list[Point]) -> list[float]:
    """Return COCO's list of a closed path, whose end is not written, without points that repeat the one before."""
    kept = [point for point, before in zip(path[1:], path, strict=False) if point != before]
    return [float(value) for point in kept for value in point]
