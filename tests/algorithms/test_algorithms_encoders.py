"""A network of the user's own for the features of observations, `model_config.encoder`, in every algorithm."""

import json

import numpy as np
import pytest
import torch
from algorithm_cases import FAST, NAMES, OFFLINE, ON_POLICY, takes
from algorithm_tools import some_episodes, transitions
from gymnasium import spaces
from torch import nn

from lockstep import PPOConfig, SACConfig, TD3Config, get_config
from lockstep.algorithms import Policy
from lockstep.data.trees import map_tree
from lockstep.modules import DefaultActorCriticModule, ModelConfig, RecurrentActor, RLModuleSpec, TorchActor, make_actor

OBS, BOX, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (8, 8, 1), np.uint8)


class Net(nn.Module):
    """Adds up what it sees of any observation, and runs a layer on it."""

    def __init__(self, space, size=5, told=None):
        super().__init__()
        self.output_size = size
        self.layer = nn.Linear(1, size)

    def forward(self, obs):
        total = []
        map_tree(
            lambda leaf: total.append(leaf.reshape(len(leaf), -1).to(self.layer.weight.dtype).sum(1, keepdim=True)), obs
        )
        return torch.stack(total).sum(0) @ self.layer.weight.T + self.layer.bias


class Nameless(nn.Module):
    """Has no `output_size`."""

    def __init__(self, space, output_size=None):
        super().__init__()
        if output_size is not None:
            self.output_size = output_size

    def forward(self, obs):
        return obs


def make_local():
    class Local(Net):
        pass

    return Local


OWN = {"encoder": Net, "encoder_config": {"size": 4}, "hiddens": (6,)}


def built(algorithm, **model):
    actions = CHOICES if takes(algorithm, "discrete") else BOX
    config = get_config(algorithm).environment(observation_space=OBS, action_space=actions)
    config.rl_module(model_config={**OWN, **model}).debugging(seed=1)
    return config.build_learner(), actions


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_network_of_an_algorithm_has_the_encoder_and_trains_it(algorithm):
    learner, actions = built(algorithm)
    module = learner.module["default_policy"]
    encoders = [each for each in module.modules() if isinstance(each, Net)]
    learned_by = {name.partition(".")[0] for name, each in module.named_modules() if isinstance(each, Net)}
    assert all(each.output_size == 4 for each in encoders)
    wanted = {name for name in ("encoder", "value_encoder", "critics") if getattr(module, name, None) is not None}
    assert learned_by == wanted
    before = [each.layer.weight.detach().clone() for each in encoders]
    if algorithm in ON_POLICY:
        learner.update_from_episodes(some_episodes(num_actions=2))
    else:
        for _ in range(3):  # policies may learn in every third step
            learner.update_from_batch(transitions(actions))
    assert all((each.layer.weight != old).any() for each, old in zip(encoders, before))


@pytest.mark.parametrize("algorithm", ["sac", "td3", *(name for name in FAST if name in OFFLINE)])
def test_shared_features_are_trained_by_the_critics_alone(algorithm):
    learner, actions = built(algorithm, q_share_layers=True)
    module = learner.module["default_policy"]
    assert module.encoder.features is module.critics.features
    module.forward_train(
        {"obs": torch.zeros(2, 3), "actions": torch.zeros(2, 2) if actions is BOX else torch.zeros(2)}
    )["action_dist_inputs"].sum().backward()
    assert module.encoder.features.network.layer.weight.grad is None or not (
        module.encoder.features.network.layer.weight.grad.any()
    )
    before = module.encoder.features.network.layer.weight.detach().clone()
    for _ in range(2):
        learner.update_from_batch(transitions(actions))
    assert (module.encoder.features.network.layer.weight != before).any()
    target = learner.registered["default_policy/target"].module
    theirs = target if algorithm != "td3" else target.critics
    assert theirs.features is not module.critics.features
    state = learner.get_state()
    again, _ = built(algorithm, q_share_layers=True)
    again.set_state(state)
    for each in (learner, again):
        each.update_from_batch(transitions(actions))
    for ours, other in zip(learner.module.parameters(), again.module.parameters()):
        assert torch.equal(ours, other)


@pytest.mark.parametrize(
    "space",
    [
        OBS,
        IMAGE,
        spaces.Discrete(4, start=2),
        spaces.Dict({"a": OBS, "b": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])])}),
    ],
    ids=["box", "bytes", "discrete", "nested"],
)
@pytest.mark.parametrize("recurrent", [None, "gru"])
def test_any_observation_acts_by_torch_with_and_without_memory(space, recurrent):
    config = ModelConfig(**OWN, recurrent=recurrent)
    config = PPOConfig().environment(observation_space=space, action_space=CHOICES).rl_module(model_config=config)
    policy = config.build_policy()
    actor = make_actor(policy.module)
    assert type(actor) is (TorchActor if recurrent is None else RecurrentActor)
    action = policy.compute_single_action(space.sample(), *([None] if recurrent else []))
    assert (action[0] if recurrent else action) in (0, 1)


def test_it_goes_into_json_and_checkpoints_by_its_name(tmp_path):
    config = PPOConfig().environment(observation_space=OBS, action_space=CHOICES).rl_module(model_config=OWN)
    again = PPOConfig().update_from_dict(json.loads(config.to_json()))
    assert again.model_config == config.model_config
    assert again.model_config.encoder is Net
    named = ModelConfig.of(config.model_config.to_dict())
    assert named == config.model_config
    policy = config.build_policy()
    same = Policy.from_checkpoint(policy.save_to_path(tmp_path / "policy"))
    x = OBS.sample()[None]
    inputs = [
        each.module.forward_inference({"obs": torch.as_tensor(x)})["action_dist_inputs"] for each in (policy, same)
    ]
    assert torch.equal(*inputs)


class Masked(torch.nn.Module):
    """Reads a mask that it does not get."""

    output_size = 3

    def __init__(self, space):
        super().__init__()

    def forward(self, obs):
        return {"obs": obs}["action_mask"]


def network(**model):
    return lambda: PPOConfig().rl_module(model_config=model).build_learner(spaces=(OBS, CHOICES))


def critics(kind, space=OBS, **model):
    return lambda: kind().rl_module(model_config=model).build_learner(spaces=(space, BOX))


def local_json():
    return PPOConfig().rl_module(model_config={"encoder": make_local()}).to_json()


def local_checkpoint():
    config = ModelConfig(encoder=make_local())
    return RLModuleSpec(DefaultActorCriticModule, OBS, CHOICES, model_config=config).build().save_to_path()


REFUSED = [
    (network(encoder=Nameless), "model_config.encoder=Nameless has output_size=None; set self.output_size"),
    (network(encoder=Nameless, encoder_config={"output_size": 0}), "has output_size=0"),
    (network(encoder=Nameless, encoder_config={"output_size": 2}), "gives a tensor [2, 3]", "[2, output_size]"),
    (network(encoder=3), "encoder=3 must be a class, a function, the name"),
    (network(encoder="no.such:Net"), "encoder='no.such:Net' cannot be imported", "package.module:Class"),
    (network(encoder_config={"size": 3}), "encoder_config={'size': 3} needs an encoder of your own: set encoder"),
    (
        network(encoder=Masked),
        "model_config.encoder=Masked raises KeyError: 'action_mask', where it gets 2",
        "no action mask",
    ),
    (critics(SACConfig, q_share_layers=True), "q_share_layers=True: observations of Box", "nothing to share"),
    (critics(TD3Config, q_share_layers=True, recurrent="gru"), "q_share_layers=True", "recurrent='gru'"),
    (local_json, "encoder=", "inside of a function; define it at the top"),
    (local_checkpoint, "model_config.encoder=", "inside of a function"),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row[1] for row in REFUSED])
def test_an_encoder_that_does_not_fit_is_refused_by_name(row):
    call, *words = row
    with pytest.raises(ValueError) as refused:
        call()
    assert [word for word in words if word not in str(refused.value)] == []


def test_an_encoder_that_is_no_network_is_refused():
    with pytest.raises(TypeError, match=r"model_config.encoder=dict must make a torch nn.Module, not dict"):
        PPOConfig().rl_module(model_config={"encoder": dict}).build_learner(spaces=(spaces.Dict(), CHOICES))
