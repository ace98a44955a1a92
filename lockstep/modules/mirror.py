"""`ActionMirror`: the mirror image of a policy's actions, and the symmetrised distribution of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lockstep.data.trees import Tree
from lockstep.modules.action_dist import ActionDist
from lockstep.ops.distributions import Categorical, DiagGaussian, SquashedGaussian


def original_of(module: object, obs: Tree) -> Any:
    """Return single observations: for a symmetric network, whose observations are pairs, the first of each pair."""
    return obs if getattr(module, "action_mirror", None) is None else obs[0]


@dataclass(frozen=True)
class MirrorNumbers:
    """Numbers of a mirror: `mirrored[i] = sign[i] * value[index[i]] + offset[i]`.

    The values are the entries of an action in a Box, or one number for each choice of a Discrete space.
    """

    index: npt.NDArray[np.int64]
    """`[A]`, the entry that each mirrored entry comes from."""
    sign: npt.NDArray[np.float64]
    """`[A]`, 1 or -1; 1 for choices."""
    offset: npt.NDArray[np.float64]
    """`[A]`, 0 for choices and for actions in [-1, 1]."""


class ActionMirror(nn.Module):
    """Mirror of actions in the policy's form, with its numbers as buffers.

    A checkpoint of a symmetric network contains the buffers, so acting does not need the function of the user that they
    were taken from. They are NaN until `set_numbers`.

    Args:
        action_dist: Distribution over the actions.

    Raises:
        ValueError: The actions are neither in a Box nor in a Discrete space.
    """

    index: Tensor
    sign: Tensor
    offset: Tensor

    def __init__(self, action_dist: ActionDist) -> None:
        super().__init__()
        dist_class = action_dist.dist_class
        if dist_class not in (Categorical, DiagGaussian, SquashedGaussian):
            raise ValueError(
                f"symmetric=True needs a Discrete space or a Box of actions, not {action_dist.action_space}; "
                "training(symmetry=f) alone mirrors rows of all action spaces"
            )
        self.action_dist = action_dist
        self.has_log_std = dist_class is not Categorical
        """Whether the second half of the distribution's inputs are the logarithms of standard deviations."""
        size = action_dist.noise_size
        self.register_buffer("index", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("sign", torch.full((size,), torch.nan))
        self.register_buffer("offset", torch.full((size,), torch.nan))

    def set_numbers(self, numbers: MirrorNumbers) -> None:
        """Copy the numbers into the buffers."""
        for buffer, values in ((self.index, numbers.index), (self.sign, numbers.sign), (self.offset, numbers.offset)):
            buffer.copy_(torch.from_numpy(values))

    def forward(self, values: Tensor) -> Tensor:
        """Return the mirror images of actions or means `[..., A]`, or of one number for each choice `[..., A]`."""
        mirrored: Tensor = values.index_select(-1, self.index) * self.sign + self.offset
        return mirrored

    def asymmetry(self, inputs: Tensor, inputs_of_images: Tensor) -> Tensor:
        """Return the mean squared difference `[N]` between mean actions of images and mirrored mean actions.

        No gradient flows through the mirrored mean actions, which are the targets. For a Discrete space the
        probabilities of the choices take the place of the mean action.

        Args:
            inputs: Inputs `[N, D]` of the action distributions for observations.
            inputs_of_images: Inputs `[N, D]` for their mirror images.
        """
        targets = self(self._mean_actions(inputs)).detach()
        return (self._mean_actions(inputs_of_images) - targets).square().mean(-1)

    def _mean_actions(self, inputs: Tensor) -> Tensor:
        """Return the mean actions `[N, A]`, or the probabilities `[N, A]` of the choices of a Discrete space."""
        dist: Any = self.action_dist.from_inputs(inputs)
        mean: Tensor = dist.mode() if self.has_log_std else dist.log_probs.exp()
        return mean

    def symmetrised(self, inputs: Tensor, inputs_of_image: Tensor) -> Tensor:
        """Return the inputs `[N, D]` of a distribution that is in mirror image at mirrored observations.

            mean(o) = (mu(o) + M mu(M o)) / 2

        The logarithms of standard deviations and the logits of choices are averaged in the same way.

        Args:
            inputs: The network's outputs `[N, D]` for observations.
            inputs_of_image: Its outputs `[N, D]` for their mirror images.
        """
        if not self.has_log_std:
            return 0.5 * (inputs + self(inputs_of_image))
        mean, log_std = inputs.chunk(2, dim=-1)
        mean_of_image, log_std_of_image = inputs_of_image.chunk(2, dim=-1)
        # A deviation has neither sign nor offset: it only changes its place.
        log_std_of_image = log_std_of_image.index_select(-1, self.index)
        return torch.cat([0.5 * (mean + self(mean_of_image)), 0.5 * (log_std + log_std_of_image)], dim=-1)
