"""Tiles: a policy acts on batches of one fixed shape, the last one padded, so that a row's bits do not depend on how
many neighbours it has, where it lies, or which worker asks. Pure; imports no torch.

Matrix libraries choose other kernels for very small batches, which is why a tile has at least 4 rows. Whether a policy
really is invariant on this machine is tested at start-up (inference/self_test).
"""

from __future__ import annotations

SMALLEST_TILE, LARGEST_TILE = 4, 64


def spans(n_rows: int, tile: int) -> list[tuple[int, int]]:
    """The [start, stop) of every tile over n_rows; the last one may be short and is padded by the caller."""
    return [(start, min(start + tile, n_rows)) for start in range(0, n_rows, tile)]


def default_tile(n_envs: int, largest: int) -> int:
    """The power of two that holds n_envs, between the smallest tile and the policy's own largest.

    It depends on the total number of environments only, never on shards or workers.
    """
    tile = SMALLEST_TILE
    while tile < n_envs and tile < largest:
        tile *= 2
    return tile
