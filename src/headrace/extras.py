"""What a plain `pip install headrace` leaves out: which extra brings it, and what to say where it is missing.

Without an extra a run works and goes without; what was asked for by name is an error before anything starts.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from headrace.errors import UsageError

# extra: (module, what a run has by it)
_EXTRAS = {
    "plots": ("matplotlib", "the picture of the report"),
    "tensorboard": ("tensorboardX", "TensorBoard files"),
    "video": ("PIL", "videos"),
    "wandb": ("wandb", "Weights & Biases"),
}
_BROUGHT_BY = {"video": "plots"}


def has(extra: str) -> bool:
    """Whether what the extra brings can be imported; a folder named wandb in the working directory is no package."""
    module, _ = _EXTRAS[extra]
    if module in sys.modules:
        return sys.modules[module] is not None
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def require(extra: str, option: str) -> None:
    """Raise if an option needs what is not there."""
    if not has(extra):
        module, _ = _EXTRAS[extra]
        raise UsageError(f"{option}: expected {module} to be installed; {_install(extra)}, or leave it out")


def left_out(*extras: str) -> str:
    """One line about those that are missing; empty if none is."""
    missing = [extra for extra in extras if not has(extra)]
    if not missing:
        return ""
    return f"left out: {' and '.join(_EXTRAS[one][1] for one in missing)}; {_install(*missing)} adds that"


def _install(*extras: str) -> str:
    names = ",".join(dict.fromkeys(_BROUGHT_BY.get(extra, extra) for extra in extras))
    return f"pip install 'headrace[{names}]'"
