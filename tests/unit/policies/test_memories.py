"""LSTM and GRU: a step, sequences at once and the walk along them are torch's own layers, row after row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.policies.memories import Memory
from headrace.policies.sequences import Split

T, N, F, H = 13, 5, 3, 8


def walked(memory: Memory, x: torch.Tensor, starts: np.ndarray, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torch.nn.LSTM and GRU, one environment and one row at a time."""
    layers, parts = memory.cells.num_layers, memory.state_size // (memory.cells.num_layers * H)
    latents, states = torch.empty(T, N, H), torch.empty(T, N, memory.state_size)
    for env in range(N):
        now = state[env].view(layers, parts, H)
        for t in range(T):
            if starts[t, env]:
                now = torch.zeros_like(now)
            given = (now[:, 0].contiguous(), now[:, 1].contiguous()) if parts == 2 else now[:, 0].contiguous()
            out, after = memory.cells(x[t, env].unsqueeze(0), given)
            now = torch.stack(after if parts == 2 else [after], 1)
            latents[t, env], states[t, env] = out[0], now.reshape(-1)
    return latents, states


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("layers", "share"), [(1, 0.0), (1, 0.3), (2, 0.3), (2, 1.0)])
def test_the_three_ways_are_torchs(kind: str, layers: int, share: float) -> None:
    rng = np.random.default_rng(3)
    memory = Memory(kind, F, H, layers, torch.Generator().manual_seed(1))
    x, state = torch.randn(T, N, F), torch.randn(N, memory.state_size)
    starts = rng.random((T, N)) < share
    with torch.no_grad():
        latents, states = walked(memory, x, starts, state)
        split = Split(starts)
        together = memory.sequences(x.reshape(T * N, F), split, state)
        followed = memory.follow(x.reshape(T * N, F), split, state)
        now = state.clone()
        for t in range(T):
            now[torch.from_numpy(starts[t])] = 0.0
            latent, now = memory.step(x[t], now)
            torch.testing.assert_close(latent, latents[t], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(now, states[t], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together, latents.reshape(T * N, H), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(followed, states, rtol=1e-5, atol=1e-6)


def test_sequences_are_cut_where_episodes_start_and_padded_little() -> None:
    """Every row is in one sequence, behind the rows of its own episode; a long episode does not fill up others."""
    rng = np.random.default_rng(0)
    for share in (0.0, 0.02, 0.3, 1.0):
        starts = rng.random((128, 9)) < share
        starts[:, 0] = False
        split = Split(starts)
        rows = np.concatenate([bucket.rows.numpy() for bucket in split.buckets])
        assert (rows[split.place.numpy()] == np.arange(starts.size)).all()
        assert len(rows) <= 2.0 * starts.size
        for bucket in split.buckets:
            sequences = bucket.rows.numpy().reshape(bucket.length, -1)
            for sequence, begins in zip(sequences.T, bucket.begins.numpy(), strict=True):
                steps, env = np.divmod(sequence, 9)
                assert (env == env[0]).all()
                assert (np.isin(np.diff(steps), (0, 1))).all()
                assert not starts[steps[1:][np.diff(steps) == 1], env[0]].any()
                assert begins == (env[0] if steps[0] == 0 and not starts[0, env[0]] else 9)
