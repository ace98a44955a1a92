"""Policies as torch modules: `model.policy`, the classes of `PPO(MlpPolicy, env)`, and base classes of users' own.

The policy of a model has the live layers of Lockstep's network, by the attribute names of Stable-Baselines3. It does
not act or learn itself: programs read it, call it, and may train its parameters with losses of their own.

An `ActorCriticPolicy` that a user subclasses makes its own layers. `PolicyModule` (in `policy_module.py`) lets Lockstep
act and learn with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lockstep.data import DEFAULT_MODULE_ID
from lockstep.modules import StateDependentHead
from lockstep_sb3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    StateDependentNoiseDistribution,
    make_proba_distribution,
)
from lockstep_sb3.common.live_networks import LiveCritic, LiveMlpExtractor, extractor_of
from lockstep_sb3.common.live_optimizer import LiveOptimizer, optimizer_of
from lockstep_sb3.common.preprocessing import (
    as_batch,
    is_vectorized_observation,
    obs_as_tensor,
    preprocess_obs,
)
from lockstep_sb3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
    NetArch,
    in_new_form,
    with_channels_first,
)

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of orthogonal weights in hidden layers and extractors."""
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
LearningRate = Callable[[float], float]
"""Function of the remaining progress, which falls from 1 to 0."""


class BaseModel(nn.Module):
    """Network for observations of a space.

    Args:
        observation_space: Space of the observations; images have their channels first.
        action_space: Space of the actions.
        features_extractor_class: Class of the extractor.
        features_extractor_kwargs: Keyword arguments of the extractor, besides the space.
        features_extractor: Extractor that exists already, to use in place of a new one.
        normalize_images: Divide bytes of images by 255.
        optimizer_class: Class of the optimizer.
        optimizer_kwargs: Keyword arguments of the optimizer, besides the learning rate.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        features_extractor: BaseFeaturesExtractor | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.observation_space: Any = observation_space
        self.action_space: Any = action_space
        self.features_extractor_class = features_extractor_class
        self.features_extractor_kwargs = features_extractor_kwargs or {}
        self.normalize_images = normalize_images
        self.optimizer_class = optimizer_class
        self.optimizer_kwargs = optimizer_kwargs or {}
        if features_extractor is not None:
            self.features_extractor = features_extractor

    @property
    def optimizer(self) -> Any:
        """Optimizer of the parameters. That of a model's policy is the optimizer that `learn` uses."""
        optimizer = vars(self).get("_optimizer")
        return optimizer.follow_learner() if isinstance(optimizer, LiveOptimizer) else optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        """Replace the optimizer. That of a model stays the one that `learn` uses."""
        vars(self)["_optimizer"] = optimizer

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        parameter = next(self.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """Return a new extractor."""
        return self.features_extractor_class(self.observation_space, **self.features_extractor_kwargs)

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor) -> Any:
        """Return the features `[N, F]` of observations `[N, ...]`.

        Args:
            obs: Tensor, or a dict of tensors, as `obs_to_tensor` returns them.
            features_extractor: The extractor.
        """
        return features_extractor(preprocess_obs(obs, self.observation_space, self.normalize_images))

    def set_training_mode(self, mode: bool) -> None:
        """Switch dropout and batch statistics on for training, or off for evaluation."""
        self.train(mode)

    def is_vectorized_observation(self, observation: Any) -> bool:
        """Return whether this is a batch of observations rather than one. `ValueError` if it is neither."""
        return is_vectorized_observation(observation, self.observation_space)

    def obs_to_tensor(self, observation: Any) -> tuple[Any, bool]:
        """Return observations as tensors `[N, ...]` on the policy's device, and whether they are a batch.

        One observation becomes a batch of one row. Images may have their channels last.

        Args:
            observation: Array, or a dict of arrays.
        """
        is_batch = self.is_vectorized_observation(observation)
        return obs_as_tensor(as_batch(observation, self.observation_space), self.device), is_batch

    def parameters_to_vector(self) -> np.ndarray:
        """Return all parameters as one array."""
        return nn.utils.parameters_to_vector(self.parameters()).detach().cpu().numpy()

    def load_from_vector(self, vector: np.ndarray) -> None:
        """Set all parameters from the array of `parameters_to_vector`."""
        values = torch.as_tensor(vector, device=self.device).float()
        sizes = [parameter.numel() for parameter in self.parameters()]
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values.split(sizes)):
                parameter.copy_(value.view_as(parameter))


class BasePolicy(BaseModel):
    """Network that acts.

    Further arguments are those of `BaseModel`.

    Args:
        squash_output: Actions are squashed by tanh into [-1, 1], and rescaled to the space.
    """

    _model: Any = None
    """Model that this is the policy of; None for a policy that a program has made itself."""

    def __init__(self, *args: Any, squash_output: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._squash_output = squash_output

    @property
    def squash_output(self) -> bool:
        """Whether actions are squashed by tanh."""
        return self._squash_output

    @staticmethod
    def init_weights(module: nn.Module, gain: float = 1.0) -> None:
        """Make the weights of a linear layer or convolution orthogonal, and its bias zero. Others stay unchanged."""
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(module.weight, gain=gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        """Return actions `[N, ...]` for a batch of tensors."""
        raise TypeError(f"{type(self).__name__} must define _predict(observation, deterministic)")

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Return actions of the environment for one observation or a batch, and `state`.

        Args:
            observation: Array, or a dict of arrays.
            state: State of a policy with memory. Others return it unchanged.
            episode_start: Which rows begin an episode; only a policy with memory needs it.
            deterministic: Take the most likely actions.
        """
        if self._model is not None:
            result: tuple[np.ndarray, Any] = self._model.predict(observation, state, episode_start, deterministic)
            return result
        self.set_training_mode(False)
        tensors, is_batch = self.obs_to_tensor(observation)
        with torch.no_grad():
            actions = self._predict(tensors, deterministic).cpu().numpy()
        actions = actions.reshape(-1, *(self.action_space.shape or ()))
        if isinstance(self.action_space, spaces.Box):
            if self.squash_output:
                actions = self.unscale_action(actions)
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return (actions if is_batch else actions[0]), state

    def scale_action(self, action: np.ndarray) -> np.ndarray:
        """Return actions of a Box, rescaled from the bounds of the space to [-1, 1]."""
        low, high = self.action_space.low, self.action_space.high
        scaled: np.ndarray = 2.0 * (action - low) / (high - low) - 1.0
        return scaled

    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        """Return actions in [-1, 1], rescaled to the bounds of the space."""
        low, high = self.action_space.low, self.action_space.high
        action: np.ndarray = low + 0.5 * (scaled_action + 1.0) * (high - low)
        return action

    def save(self, path: str | Path) -> None:
        """Save the model of this policy. `ValueError` for a policy without a model."""
        if self._model is None:
            raise ValueError(
                f"this {type(self).__name__} belongs to no model, and only models are saved; save its state_dict() "
                "with torch.save"
            )
        self._model.save(path)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "auto") -> Any:
        """Return the policy of a saved model of any algorithm."""
        from lockstep_sb3.common.base_class import BaseAlgorithm  # which imports this module

        return BaseAlgorithm.load(path, device=device).policy

    # -- the policy of a model ---

    @classmethod
    def of_model(cls, model: Any) -> BasePolicy:
        """Return the policy of a model, with the live layers of its network."""
        policy = cls.__new__(cls)
        nn.Module.__init__(policy)
        policy.observation_space = with_channels_first(model.observation_space)
        policy.action_space = model.action_space
        policy.normalize_images = True
        policy._squash_output = False
        policy.attach(model)
        learner = model.lockstep.learner_group.learner
        policy.take_layers(model.lockstep.module, learner)
        policy.take_optimizer(learner)
        return policy

    def take_optimizer(self, learner: Any) -> None:
        """Make the learner's optimizer of all parameters that of this policy. There may be none."""
        entries = {entry.name: entry for entry in learner.optimizers}
        # That of TRPO's policy makes no gradient steps, so `optimizer` is that of its value function.
        entry = entries.get("default_optimizer", entries.get("critic"))
        self.optimizer = None if entry is None else optimizer_of(entry)

    def take_layers(self, network: Any, learner: Any) -> None:
        """Make the live layers of Lockstep's network the parts of this policy.

        Args:
            network: The network (`RLModule`).
            learner: Its learner, with the optimizers and the target network.
        """
        raise TypeError(
            f"{type(self).__name__} has no live layers; give the name of the policy, such as 'MlpPolicy', or a "
            "subclass of ActorCriticPolicy"
        )

    def attach(self, model: Any) -> None:
        """Make this the policy of a model."""
        # Not by `setattr`, which would look for modules and parameters in the model.
        vars(self)["_model"] = model

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the model and its optimizer: a copy acts by itself."""
        left_out = () if self._model is None else ("_model", "_optimizer")
        return {name: value for name, value in vars(self).items() if name not in left_out}


class ActorCriticPolicy(BasePolicy):
    """Policy and value function of PPO, A2C and TRPO, for observations that are vectors.

    The parts are `features_extractor`, `mlp_extractor` (hidden layers), `action_net` and `value_net` (last layers) and,
    for a Box of actions, `log_std`. A subclass may override `_build_mlp_extractor`, `_build`, `extract_features` and
    `_get_action_dist_from_latent`.

    Args:
        observation_space: Space of the observations.
        action_space: Space of the actions.
        lr_schedule: Function of the remaining progress. `learn` sets the learning rate itself.
        net_arch: Widths of the hidden layers, for both networks or by the names "pi" and "vf".
        activation_fn: Class of the activation.
        ortho_init: Orthogonal initial weights.
        use_sde: Must be False. (`PPO(use_sde=True)` explores by it, with the package's own policies.)
        log_std_init: Initial log standard deviation.
        full_std: Must be True.
        use_expln: Must be False.
        squash_output: Must be False.
        features_extractor_class: Class of the extractor.
        features_extractor_kwargs: Keyword arguments of the extractor.
        share_features_extractor: Let policy and value function use one extractor.
        normalize_images: Divide bytes of images by 255.
        optimizer_class: Class of the optimizer.
        optimizer_kwargs: Keyword arguments of the optimizer.
    """

    mlp_extractor: Any
    action_net: Any
    value_net: Any
    log_std: nn.Parameter
    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor
    """Class of the extractor, unless one is given."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: LearningRate,
        net_arch: NetArch | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = True,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if optimizer_kwargs is None:
            optimizer_kwargs = {"eps": 1e-5} if optimizer_class is torch.optim.Adam else {}
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class or self.default_extractor,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=squash_output,
        )
        expected = {"use_sde": False, "use_expln": False, "squash_output": False, "full_std": True}
        given = {"use_sde": use_sde, "use_expln": use_expln, "squash_output": squash_output, "full_std": full_std}
        for name, value in given.items():
            if value != expected[name]:
                raise ValueError(f"{name}={value} of {type(self).__name__} is not allowed here; leave it out")
        if net_arch is None:
            is_nature = self.features_extractor_class is NatureCNN
            net_arch = [] if is_nature else {"pi": [64, 64], "vf": [64, 64]}
        self.net_arch: Any = in_new_form(net_arch)
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.use_sde = use_sde
        self.log_std_init = log_std_init
        self.share_features_extractor = share_features_extractor

        self.pi_features_extractor = self.features_extractor = self.make_features_extractor()
        self.vf_features_extractor = self.features_extractor
        if not share_features_extractor:
            self.vf_features_extractor = self.make_features_extractor()
        self.features_dim = self.features_extractor.features_dim
        self.action_dist = make_proba_distribution(action_space, use_sde=use_sde)
        self._build(lr_schedule)

    def _build_mlp_extractor(self) -> None:
        """Make `mlp_extractor`, the hidden layers of both networks.

        It must have `latent_dim_pi` and `latent_dim_vf`, and `forward(features)`, which returns both last hidden
        layers. `forward_actor` and `forward_critic` return one of them.
        """
        self.mlp_extractor = MlpExtractor(self.features_dim, self.net_arch, self.activation_fn)

    def _build(self, lr_schedule: LearningRate) -> None:
        """Make all layers above the extractor, and the optimizer."""
        self._build_mlp_extractor()
        latent_dim_pi = self.mlp_extractor.latent_dim_pi
        if isinstance(self.action_dist, DiagGaussianDistribution):
            self.action_net, self.log_std = self.action_dist.proba_distribution_net(latent_dim_pi, self.log_std_init)
        else:
            self.action_net = self.action_dist.proba_distribution_net(latent_dim_pi)
        self.value_net = nn.Linear(self.mlp_extractor.latent_dim_vf, 1)
        if self.ortho_init:
            self._initialise()
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def _initialise(self) -> None:
        """Make the weights of all linear layers and convolutions orthogonal."""
        gains = {
            self.pi_features_extractor: HIDDEN_GAIN,
            self.vf_features_extractor: HIDDEN_GAIN,
            self.mlp_extractor: HIDDEN_GAIN,
            self.action_net: POLICY_GAIN,
            self.value_net: VALUE_GAIN,
        }
        for part, gain in gains.items():
            for layer in part.modules():
                self.init_weights(layer, gain)

    @classmethod
    def of_model(cls, model: Any) -> BasePolicy:
        own = getattr(model.lockstep.module, "policy", None)
        if not isinstance(own, ActorCriticPolicy):
            return super().of_model(model)
        own.attach(model)
        own.take_optimizer(model.lockstep.learner_group.learner)
        return own

    def take_layers(self, network: Any, learner: Any) -> None:
        value_encoder = network.value_encoder or network.encoder
        self.share_features_extractor = value_encoder.features is network.encoder.features
        self.pi_features_extractor = self.features_extractor = extractor_of(network.encoder.features)
        self.vf_features_extractor = self.features_extractor
        has_parameters = next(value_encoder.features.parameters(), None) is not None
        if has_parameters and not self.share_features_extractor:
            self.vf_features_extractor = extractor_of(value_encoder.features)
        else:
            self.share_features_extractor = True
        self.features_dim = self.features_extractor.features_dim
        self.mlp_extractor = LiveMlpExtractor(network.encoder, value_encoder)
        self.action_net = network.policy_head
        self.value_net = network.value_head
        if network.log_std is not None:
            self.log_std = network.log_std
        has_sde = isinstance(network.policy_head, StateDependentHead)
        self.use_sde = has_sde
        self.action_dist = make_proba_distribution(self.action_space, use_sde=has_sde)

    # -- from observations to actions and values ---

    def forward(self, obs: Any, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions `[N, ...]`, values `[N, 1]` and log-probabilities of the actions `[N]`.

        Args:
            obs: Tensor, or a dict of tensors, `[N, ...]`.
            deterministic: Take the most likely actions.
        """
        distribution, values = self.distribution_and_values(obs)
        actions = distribution.get_actions(deterministic)
        log_prob = distribution.log_prob(actions)
        return actions.reshape(-1, *(self.action_space.shape or ())), values, log_prob

    def distribution_and_values(self, obs: Any) -> tuple[Distribution, Tensor]:
        """Return the action distributions and the values `[N, 1]` of observations `[N, ...]`."""
        features = self.extract_features(obs)
        if self.share_features_extractor:
            latent_pi, latent_vf = self.mlp_extractor(features)
        else:
            policy_features, value_features = features
            latent_pi = self.mlp_extractor.forward_actor(policy_features)
            latent_vf = self.mlp_extractor.forward_critic(value_features)
        return self._get_action_dist_from_latent(latent_pi), self.value_net(latent_vf)

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor | None = None) -> Any:
        """Return the features `[N, F]`; of separate extractors a pair, for policy and value function.

        Args:
            obs: Tensor, or a dict of tensors, `[N, ...]`.
            features_extractor: The only extractor to use.
        """
        if features_extractor is not None:
            return super().extract_features(obs, features_extractor)
        policy_features = super().extract_features(obs, self.pi_features_extractor)
        if self.share_features_extractor:
            return policy_features
        return policy_features, super().extract_features(obs, self.vf_features_extractor)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Distribution:
        """Return the action distributions of the policy's last hidden layer."""
        outputs = self.action_net(latent_pi)
        if not isinstance(self.action_dist, DiagGaussianDistribution):
            return self.action_dist.proba_distribution(outputs)
        if isinstance(self.action_dist, StateDependentNoiseDistribution):
            # The live layer of Lockstep computes both.
            means, log_std = outputs.chunk(2, dim=-1)
            return self.action_dist.proba_distribution(means, log_std)
        return self.action_dist.proba_distribution(outputs, self.log_std)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        return self.get_distribution(observation).get_actions(deterministic)

    def evaluate_actions(self, obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the values `[N, 1]`, the log-probabilities of `actions` `[N]` and the entropies `[N]`, with gradients.

        Args:
            obs: Tensor, or a dict of tensors, `[N, ...]`.
            actions: `[N, ...]`.
        """
        distribution, values = self.distribution_and_values(obs)
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Any) -> Distribution:
        """Return the action distributions of observations `[N, ...]`."""
        features = self.extract_features(obs, self.pi_features_extractor)
        return self._get_action_dist_from_latent(self.mlp_extractor.forward_actor(features))

    def predict_values(self, obs: Any) -> Tensor:
        """Return the values `[N, 1]` of observations `[N, ...]`."""
        features = self.extract_features(obs, self.vf_features_extractor)
        values: Tensor = self.value_net(self.mlp_extractor.forward_critic(features))
        return values


class ActorCriticCnnPolicy(ActorCriticPolicy):
    """`ActorCriticPolicy` for images."""

    default_extractor = NatureCNN


class MultiInputActorCriticPolicy(ActorCriticPolicy):
    """`ActorCriticPolicy` for observations that are dicts."""

    default_extractor = CombinedExtractor


class ContinuousCritic(BaseModel):
    """Critics `Q(s, a)` of SAC, TD3 and their relatives, with Lockstep's live layers.

    Args:
        critics: Lockstep's critics (`ActionCritics`).
        observation_space: Space of the observations.
        action_space: Space of the actions.
        optimizer: The learner's optimizer; None for target networks.
    """

    def __init__(
        self,
        critics: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        optimizer: Any = None,
    ) -> None:
        super().__init__(observation_space, action_space, features_extractor=extractor_of(critics.features))
        self.mlp = critics.mlp
        self.n_critics = critics.mlp.num_networks
        self.optimizer = None if optimizer is None else optimizer_of(optimizer)

    @property
    def q_networks(self) -> list[nn.Module]:
        """Single critics, each a function of features and actions `[N, F + A]`."""
        return [LiveCritic(self.mlp, index) for index in range(self.n_critics)]

    def __getattr__(self, name: str) -> Any:
        """Return a single critic by its name `qf0`, `qf1`, ..."""
        index = name.removeprefix("qf")
        if name.startswith("qf") and index.isdigit() and int(index) < self.n_critics:
            return LiveCritic(self.mlp, int(index))
        return super().__getattr__(name)

    def outputs_of(self, obs: Any, actions: Tensor) -> Tensor:
        """Return the outputs `[K, N, outputs]` of all critics."""
        features = self.extract_features(obs, self.features_extractor)
        outputs: Tensor = self.mlp(torch.cat([features, actions], dim=1))
        return outputs

    def forward(self, obs: Any, actions: Tensor) -> Any:
        """Return the values `[N, 1]` of each critic.

        Args:
            obs: Tensor, or a dict of tensors, `[N, ...]`.
            actions: Actions in [-1, 1], `[N, A]`.
        """
        return tuple(self.outputs_of(obs, actions).unbind(0))

    def q1_forward(self, obs: Any, actions: Tensor) -> Tensor:
        """Return the values `[N, 1]` of the first critic."""
        return self.outputs_of(obs, actions)[0]


class LivePolicy(BasePolicy):
    """Base class of the policies of off-policy algorithms, which only models make."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} is made by a model, with the layers of its network; give policy_kwargs to the model"
        )

    def forward(self, obs: Any, deterministic: bool = False) -> Tensor:
        """Return actions of a batch of tensors; those of a Box are in [-1, 1]."""
        return self._predict(obs, deterministic)


class NetworkPolicy(LivePolicy):
    """Policy whose parts have no counterpart in Stable-Baselines3: it has Lockstep's whole network, `network`."""

    def take_layers(self, network: Any, learner: Any) -> None:
        self.network = network


class ActorCriticsPolicy(LivePolicy):
    """Policy with an `actor` and a `critic`, and a target network of the latter, `critic_target`."""

    critic_class: ClassVar[type[ContinuousCritic]] = ContinuousCritic
    """Class of the critics."""

    def take_optimizer(self, learner: Any) -> None:
        """Leave out the optimizer of the whole policy: actor and critic have one each."""
        self.optimizer = None

    def take_layers(self, network: Any, learner: Any) -> None:
        self._squash_output = True
        entries = {entry.name: entry for entry in learner.optimizers}
        self.actor = self.make_actor(network)
        self.actor.optimizer = optimizer_of(entries["actor"])
        space = self.observation_space
        self.critic = self.critic_class(network.critics, space, self.action_space, entries["critic"])
        target = target_of(learner)
        self.critic_target: ContinuousCritic | None = None
        if target is not None:
            critics = getattr(target, "critics", target)
            self.critic_target = self.critic_class(critics, space, self.action_space)

    def make_actor(self, network: Any) -> Any:
        """Return the actor with the live layers of a network."""
        raise TypeError(f"{type(self).__name__} must define make_actor(network)")

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        actions: Tensor = self.actor(observation, deterministic)
        return actions


def target_of(learner: Any) -> Any:
    """Return the target network of a learner; None without one."""
    target = learner.registered.get(f"{DEFAULT_MODULE_ID}/target")
    return None if target is None else target.module
