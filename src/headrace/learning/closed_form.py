"""The plain MLP's gradients, derived by hand: the fast path of `ppo.AutogradGradients`, proved equal to it by tests.

    x -> two towers -> params, value -> dL/dparams, dL/dvalue in closed form -> back through the towers -> gradient

Small minibatches spend more time in autograd's bookkeeping than in arithmetic. Here every matrix is written into memory
that is kept between calls, and tanh is 2 * sigmoid(2x) - 1, whose doubling rides along in the matrix product.
Takes MlpPolicy with tanh or relu and Categorical or DiagonalGaussian actions; `supports` says so, everything else goes
through autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.learning.ppo import Coefficients, Rows, Terms, normalized
from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.networks import MlpPolicy
from headrace.weights.flat import FlatParameters


def supports(module: nn.Module) -> bool:
    """Whether the closed form knows this policy. Subclasses may have changed anything, so they are not taken."""
    return type(module) is MlpPolicy and isinstance(module.distribution, Categorical | DiagonalGaussian)


class ClosedFormGradients:
    """Writes the same gradient as autograd would, up to rounding."""

    def __init__(self, flat: FlatParameters) -> None:
        module = flat.module
        assert isinstance(module, MlpPolicy)
        self._encode = module.encode
        self._log_std = module.log_std
        self._log_std_gradient = flat.gradients.get("log_std")
        self._actor = _Tower(module.actor, "actor", flat, module.activation)
        self._critic = _Tower(module.critic, "critic", flat, module.activation)

    @torch.no_grad()
    def __call__(self, rows: Rows, c: Coefficients) -> Terms:
        n = len(rows.log_prob)
        x = self._encode(rows.obs)
        out, value = self._actor.forward(x), self._critic.forward(x).squeeze(-1)
        advantage = normalized(rows.advantage) if c.normalize_advantage else rows.advantage

        gaussian = self._log_std is not None
        if gaussian:
            assert self._log_std is not None
            inverse_std = (-self._log_std).exp()
            scaled = (rows.action.reshape(out.shape) - out) * inverse_std
            log_prob = -0.5 * scaled.square().sum(-1) - (self._log_std + _HALF_LOG_2PI).sum()
            entropy = (self._log_std + (0.5 + _HALF_LOG_2PI)).sum()
        else:
            log_p = torch.log_softmax(out, -1)
            p = log_p.exp()
            log_prob = log_p.gather(-1, rows.action.unsqueeze(-1)).squeeze(-1)
            entropy = -(p * log_p).sum(-1)

        log_ratio = log_prob - rows.log_prob
        ratio = log_ratio.exp()
        change = (ratio - 1).abs()
        gain, clipped = advantage * ratio, advantage * ratio.clamp(1 - c.clip_range, 1 + c.clip_range)
        d_log_prob = torch.where(gain <= clipped, gain, 0.0) * (-1.0 / n)  # [n, 1] below
        if gaussian:
            d_log_prob = d_log_prob.unsqueeze(-1)
            d_out = d_log_prob * scaled * inverse_std
            assert self._log_std_gradient is not None
            self._log_std_gradient.copy_((d_log_prob * (scaled.square() - 1)).sum(0) - c.ent_coef)
        else:
            d_out = p * (-d_log_prob).unsqueeze(-1)
            d_out.scatter_add_(-1, rows.action.unsqueeze(-1), d_log_prob.unsqueeze(-1))
            if c.ent_coef:
                d_out.addcmul_(p, log_p + entropy.unsqueeze(-1), value=c.ent_coef / n)

        error = value - rows.returns
        d_value = error
        if c.clip_range_vf is not None:
            moved = value - rows.value
            error = rows.value + moved.clamp(-c.clip_range_vf, c.clip_range_vf) - rows.returns
            d_value = torch.where(moved.abs() <= c.clip_range_vf, error, 0.0)
        self._actor.backward(d_out)
        self._critic.backward((d_value * (2.0 * c.vf_coef / n)).unsqueeze(-1))

        policy_loss, value_loss = -torch.min(gain, clipped).mean(), error.square().mean()
        entropy_loss = -entropy.mean()
        return Terms(
            policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss,
            policy_loss,
            value_loss,
            entropy_loss,
            ((ratio - 1) - log_ratio).mean(),
            -log_ratio.mean(),
            (change > c.clip_range).float().mean(),
            change.max(),
        )


_HALF_LOG_2PI = 0.9189385332046727


class _Tower:
    """One MLP: forward keeps its activations, backward turns d_out into the flat gradient's views."""

    def __init__(self, layers: nn.ModuleList, name: str, flat: FlatParameters, activation: str) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._weights: list[Tensor] = [layer.weight.data for layer in linear]
        self._biases: list[Tensor] = [layer.bias.data for layer in linear]
        self._d_weights = [flat.gradients[f"{name}.{i}.weight"] for i in range(len(self._weights))]
        self._d_biases = [flat.gradients[f"{name}.{i}.bias"] for i in range(len(self._weights))]
        self._is_tanh = activation == "tanh"
        self._memory: dict[
            int, list[Tensor]
        ] = {}  # rows -> activations; two sizes in practice: full and last minibatch
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """The head's output; activations are kept for backward."""
        if len(x) not in self._memory:
            self._memory[len(x)] = [torch.empty(len(x), len(bias)) for bias in self._biases]
        outputs = self._memory[len(x)]
        self._inputs = [x, *outputs[:-1]]
        last = len(outputs) - 1
        scale = 2.0 if self._is_tanh else 1.0
        for i, out in enumerate(outputs):
            k = scale if i < last else 1.0
            torch.addmm(self._biases[i], self._inputs[i], self._weights[i].t(), beta=k, alpha=k, out=out)
            if i < last:
                if self._is_tanh:
                    out.sigmoid_().mul_(2.0).sub_(1.0)
                else:
                    out.relu_()
        return outputs[-1]

    def backward(self, d_out: Tensor) -> None:
        """Fill the gradients of every layer."""
        for i in range(len(self._weights) - 1, -1, -1):
            torch.mm(d_out.t(), self._inputs[i], out=self._d_weights[i])
            torch.sum(d_out, 0, out=self._d_biases[i])
            if i > 0:
                d_in = torch.mm(d_out, self._weights[i])
                if self._is_tanh:
                    d_out = torch.ops.aten.tanh_backward(d_in, self._inputs[i])
                else:
                    d_out = torch.ops.aten.threshold_backward(d_in, self._inputs[i], 0)
