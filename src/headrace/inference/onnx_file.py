"""A policy as an ONNX file: observations in, the actions that predict(deterministic=True) gives out.

    module, spaces --torch.onnx.export--> graph, held against the module by onnxruntime --> FILE.onnx

The input `observation` is [N, ...] as the environment returns it, the output `actions` [N, ...] as the environment
takes it. Observations of several arrays are as many inputs: observation/goal, observation/arm/joint. A file that does
not do what the policy does is not written. Needs the extra `export`.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.errors import HeadraceError, UsageError
from headrace.memory.spaces import (
    Box,
    Leaves,
    ObservationSpace,
    Space,
    as_seen,
    encode,
    in_words,
    leaves_of,
    made_up,
    shape_of,
)
from headrace.policies.actor_critic import as_sent
from headrace.policies.networks import as_policy
from headrace.policies.policy import state_size_of

Array = npt.NDArray[Any]
_ROWS = (3, 1, 64)  # the first is what is traced
_CLOSE = 1e-4


class Acting(nn.Module):
    """The best actions of a policy, as an environment is sent them."""

    def __init__(self, module: nn.Module, action: Space) -> None:
        super().__init__()
        self.policy, self._action = module, action

    def forward(self, leaves: dict[str, Tensor]) -> Tensor:
        """[N, ...] -> [N, ...]."""
        actions = as_policy(self.policy).act(as_seen(leaves), None)
        return as_sent(self._action, actions.reshape(-1, *shape_of(self._action)))


def write_onnx(
    module: nn.Module, observation: ObservationSpace, action: Space, to: Path, facts: Mapping[str, Any]
) -> None:
    """Write the file. `facts` go into its metadata, beside the spaces."""
    if state_size_of(module):
        raise UsageError(
            "export: expected a policy without a memory, got a recurrent one; use predict, or torch.save(model.policy)"
        )
    try:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # an export reports to nobody
        import onnxruntime
        import onnxscript  # noqa: F401  # torch.onnx needs it
    except ImportError as error:
        raise UsageError(f"export: {error}; it needs pip install 'headrace[export]'") from error
    acting = Acting(copy.deepcopy(module), action).eval()
    rng = np.random.default_rng(0)
    rows = [{name: made_up(leaf, rng, count) for name, leaf in leaves_of(observation).items()} for count in _ROWS]
    program = _exported(acting, _tensors(rows[0]))
    noted = {"observation_space": encode(observation), "action_space": encode(action)} | dict(facts)
    program.model.metadata_props["headrace"] = json.dumps(noted)
    body: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(body, providers=["CPUExecutionProvider"])
    for obs in rows:
        inputs = {in_words(name): leaf for name, leaf in obs.items()}
        _require_same(acting, action, _tensors(obs), session.run(None, inputs)[0])
    part = to.with_name(f"{to.name}.part")
    try:
        part.write_bytes(body)
        os.replace(part, to)
    except OSError as error:
        raise HeadraceError(f"{to}: can't be written: {error}") from error


def _tensors(leaves: Leaves) -> dict[str, Tensor]:
    return {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}


def _exported(acting: nn.Module, leaves: dict[str, Tensor]) -> Any:
    rows = torch.export.Dim("batch")
    try:
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it speaks of packages that are not needed
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), _without_monitor():
            warnings.simplefilter("ignore")  # of torch about itself
            return torch.onnx.export(
                acting, (), kwargs={"leaves": leaves}, dynamo=True, input_names=[in_words(name) for name in leaves],
                output_names=["actions"], dynamic_shapes={"leaves": {name: {0: rows} for name in leaves}},
                verbose=False,
            )  # fmt: skip
    except Exception as error:
        raise HeadraceError(
            f"export: torch can't write this policy as ONNX: {type(error).__name__}: {str(error)[:500]}; keep act free "
            f"of Python decisions about numbers"
        ) from error


@contextmanager
def _without_monitor() -> Iterator[None]:
    """torch.onnx counts with tqdm, which would leave a thread behind."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield
        return
    before, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = before


def _require_same(acting: Acting, action: Space, leaves: dict[str, Tensor], got: Array) -> None:
    """Actions of onnxruntime are the policy's; where two are as likely, either."""
    seen = as_seen(leaves)
    with torch.inference_mode():
        want = acting(leaves).numpy()
        if want.shape != got.shape or want.dtype != got.dtype:
            raise HeadraceError(f"export: expected actions {want.dtype} {want.shape}, got {got.dtype} {got.shape}")
        if isinstance(action, Box):
            is_same = np.allclose(want, got, rtol=_CLOSE, atol=_CLOSE)
        else:
            start = as_sent(action, torch.zeros((), dtype=torch.int64)).numpy()
            likely = [
                as_policy(acting.policy).evaluate(seen, torch.from_numpy(np.asarray(one - start))).log_prob.numpy()
                for one in (want, got)
            ]
            is_same = bool((np.abs(likely[0] - likely[1]) < _CLOSE).all())
    if not is_same:
        raise HeadraceError("export: onnxruntime gives other actions than the policy; the file is not written")
