"""Learning from transitions in sequences: burn-in, what comes next, masks and errors, against step-by-step networks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from algorithm_cases import ALGORITHM_CASES, FROM_RETURNS, OFFLINE, ON_POLICY, class_of, has_option, takes
from gymnasium import spaces
from learner_parts import BOX, MODULE, THREE, episodes
from parts import one_in

from lockstep import (
    BCConfig,
    CQLConfig,
    DQNConfig,
    IQLConfig,
    SACConfig,
    SampleBatch,
    TD3Config,
    get_config,
)
from lockstep.data import SingleAgentEpisode
from lockstep.learner.many.reduction import LocalReducer
from lockstep.learner.sequences import (
    BURN_IN_OBS,
    TARGET_NEXT_OBS,
    errors_of_sequences,
    remembered_rows,
    without_burn_in,
)
from lockstep.modules import MemoryFeatures

MOVE = spaces.Box(-1.0, 1.0, (2,), np.float32)
MASKED = spaces.Dict({"observations": BOX, "action_mask": spaces.MultiBinary(3)})


ATTENTION = {"attention": {"size": 4, "num_heads": 2, "memory": 8, "hidden_size": 4}}


def learner_of(kind, actions=THREE, observations=BOX, recurrent="lstm", memory_in="both", **training):
    config = kind().framework(dtype="float64").debugging(seed=1).training(**training)
    memory = ATTENTION if recurrent == "attention" else {"recurrent": recurrent, "recurrent_size": 4}
    config.rl_module(model_config={"hiddens": (5,), "policy_gain": 1.0, "memory_in": memory_in, **memory})
    return config.build_learner(spaces=(observations, actions))


def sequences(lengths=(5, 3, 2), burned=(2, 0, 0), n_step=1, seed=0, actions=THREE, recurrent="lstm", gamma=0.9):
    """A batch as a replay buffer gives it."""
    rng, rows = np.random.default_rng(seed), sum(lengths)
    obs = rng.normal(size=(rows + len(lengths), 3))
    starts = np.cumsum(np.array(lengths) + 1) - np.array(lengths) - 1  # each followed by what comes last
    index = np.concatenate([start + np.arange(length) for start, length in zip(starts, lengths)])
    inside = np.concatenate([np.arange(length) for length in lengths])
    steps = np.minimum(n_step, np.repeat(lengths, lengths) - inside)
    taken = rng.integers(3, size=rows) if actions is THREE else rng.uniform(-1, 1, (rows, 2))
    columns = {
        "obs": obs[index],
        "new_obs": obs[index + 1],
        "actions": taken,
        "rewards": rng.normal(size=rows),
        "terminateds": (inside == np.repeat(lengths, lengths) - 1) & (np.repeat(np.arange(len(lengths)), lengths) == 1),
        "seq_lens": np.array(lengths),
        "state_in": {name: rng.normal(size=(len(lengths), 4)) for name in ("h", "c")[: 1 + (recurrent == "lstm")]},
    }
    if recurrent == "attention":
        state = {"memory": rng.normal(size=(len(lengths), 1, 8, 4)), "length": np.full((len(lengths), 1), 3.0)}
        columns["state_in"] = state
    if any(burned):
        columns["loss_mask"] = inside >= np.repeat(burned, lengths)
    if n_step > 1:
        columns |= {"num_steps": steps, "discounts": gamma**steps}
    return SampleBatch(columns)


def steps_of(network, obs, state):
    """What a network gives at each observation of a sequence, one step after another."""
    found = []
    for row in torch.from_numpy(obs):
        out = network.forward_train({"obs": row[None, None], "state_in": state})
        state = out["state_out"]
        found.append(out["q_values"][0, 0])
    return torch.stack(found)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("recurrent", ["lstm", "gru", "attention"])
def test_the_loss_of_dqn_is_that_of_networks_run_step_by_step(recurrent, n_step):
    """Over burn-in and sequence from the stored state, both networks; double Q; masked rows count for nothing."""
    learner = learner_of(DQNConfig, recurrent=recurrent, gamma=0.9, huber_delta=None, lr=0.0)
    batch = sequences(n_step=n_step, recurrent=recurrent)
    module, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module
    with torch.no_grad():
        for parameter in target.parameters():  # its memory, too, is another one
            parameter.mul_(1.5)
    errors, first = [], 0
    for number, (length, burned) in enumerate(zip((5, 3, 2), (2, 0, 0))):
        rows = slice(first, first + length)
        obs = np.concatenate([batch["obs"][rows], batch["new_obs"][first + length - 1][None]])
        state = {name: torch.from_numpy(leaf[number : number + 1]) for name, leaf in batch["state_in"].items()}
        values, theirs = steps_of(module, obs, state), steps_of(target, obs, state)
        for t in range(burned, length):
            steps = min(n_step, length - t)
            following = theirs[t + steps][values[t + steps].argmax()]
            goes_on = 1.0 - batch["terminateds"][first + t]
            target_value = batch["rewards"][first + t] + 0.9**steps * goes_on * following
            errors.append((values[t][batch["actions"][first + t]] - target_value).item())
        first += length
    results = learner.update_from_batch(batch)[MODULE]
    np.testing.assert_allclose(results["qf_loss"], 0.5 * np.square(errors).mean(), rtol=1e-12)
    sizes = np.split(np.abs(errors), [3, 6])
    expected = [0.9 * part.max() + 0.1 * part.mean() for part in sizes]
    np.testing.assert_allclose(learner.row_errors[MODULE].numpy(), expected, rtol=1e-10)


def columns_of(learner, batch):
    """What a gradient step of the learner reads."""
    (columns,) = learner._read_batch(batch)[0].values()
    return without_burn_in(columns, LocalReducer())


MEMORY_IN = {"sac": SACConfig, "td3": TD3Config, "iql": IQLConfig}


@pytest.mark.parametrize("memory_in", ["both", "policy", "critic"])
@pytest.mark.parametrize("name", MEMORY_IN)
def test_each_part_remembers_what_memory_in_says(name, memory_in):
    """One with memory gives what it gives step by step from its stored state; one without sees the row alone."""
    learner = learner_of(MEMORY_IN[name], MOVE, memory_in=memory_in)
    module = learner.module[MODULE]
    kept = module.get_initial_state()
    rng = np.random.default_rng(4)
    batch = sequences(actions=MOVE)
    batch["state_in"] = {key: rng.normal(size=(3, 4)) for key in kept}
    columns = columns_of(learner, batch)
    rows = remembered_rows(columns, module, learner.registered[f"{MODULE}/target"].module)

    encoders = {"features": module.encoder, "value_features": module.value_encoder}
    encoders["critic_features"] = module.critics.features
    with_memory = {"policy": {"features"}, "critic": {"value_features", "critic_features"}, "both": set(encoders)}
    prefixes = {"features": "", "value_features": "vf_", "critic_features": "qf_"}
    for field, encoder in encoders.items():
        found = getattr(rows["obs"], field)
        if encoder is None:
            assert found is None
            continue
        found = found.unflatten(0, (3, 3))
        for number, (length, burned) in enumerate(zip((5, 3, 2), (2, 0, 0))):
            first = sum((5, 3, 2)[:number])
            obs = torch.from_numpy(batch["obs"][first : first + length])
            state = {}
            for key, leaf in encoder.initial_state().items():
                stored = batch["state_in"].get(prefixes[field] + key)
                state[key] = leaf[None] if stored is None else torch.from_numpy(stored[number : number + 1])
            for t in range(length):
                if field in with_memory[memory_in]:
                    expected, state = encoder(obs[None, t : t + 1], torch.float64, state)
                    expected = expected[0, 0]
                else:
                    assert not state
                    expected = encoder.of_rows(obs[t : t + 1], torch.float64)[0]
                if t >= burned:
                    torch.testing.assert_close(found[number, t - burned], expected, rtol=0, atol=1e-12)
    assert np.isfinite(learner.update_from_batch(batch)[MODULE]["total_loss"])


def has_critic(name):
    config = get_config(name)
    return takes(name, "box") and "critic" in config.learner_class.observed_by and name not in ON_POLICY


@pytest.mark.parametrize("name", filter(has_critic, ALGORITHM_CASES))
@pytest.mark.parametrize("memory_in", ["policy", "critic"])
def test_policy_and_critics_depend_on_the_past_where_they_have_a_memory(name, memory_in):
    learner = learner_of(class_of(name), MOVE, memory_in=memory_in)
    rng = np.random.default_rng(0)
    made = [
        SingleAgentEpisode(
            observations=rng.normal(size=(steps + 1, 3)), actions=np.zeros((steps, 2)), rewards=np.ones(steps)
        )
        for steps in (3, 5)
    ]
    assert np.isfinite(learner.update_from_episodes(made)[MODULE]["total_loss"])
    module = learner.module[MODULE]
    assert module.is_stateful()
    obs = torch.randn(2, 4, 3, dtype=torch.float64)
    other = obs.clone()
    other[:, 0] += 1.0
    batches = [{"obs": each, "actions": torch.full((2, 4, 2), 0.3, dtype=torch.float64)} for each in (obs, other)]
    acted = [module.forward_inference(batch)["action_dist_inputs"][:, 1:] for batch in batches]
    outputs = [module.forward_train(batch) for batch in batches]
    values = [out["q_values" if "q_values" in out else "vf_preds"] for out in outputs]
    values = [value.reshape(-1, 2, 4, *value.shape[3:])[:, :, 1:] for value in values]
    assert bool((acted[0] != acted[1]).any()) is (memory_in == "policy")
    assert bool((values[0] != values[1]).any()) is (memory_in == "critic")

    state = {key: leaf.expand(2, *leaf.shape) for key, leaf in module.get_initial_state().items()}
    for t in range(4):  # acting step by step
        out = module.forward_inference({"obs": obs[:, t : t + 1], "state_in": state})
        whole = module.forward_inference({"obs": obs})["action_dist_inputs"][:, t]
        torch.testing.assert_close(out["action_dist_inputs"][:, 0], whole, rtol=0, atol=1e-12)
        state = out["state_out"]
        assert state.keys() == module.get_initial_state().keys()

    spec = module.spec()
    acting = replace(spec, inference_only=True).build()
    acting.load_state_dict(module.state_dict(), strict=False)
    acting.double()
    if memory_in == "critic":
        assert not acting.is_stateful()
        rows = acting.forward_inference({"obs": obs[:, 2]})["action_dist_inputs"]
        torch.testing.assert_close(rows, module.forward_inference({"obs": obs})["action_dist_inputs"][:, 2])
    else:
        assert acting.is_stateful()


@pytest.mark.parametrize(
    ("kind", "memory_in", "words"),
    [
        (DQNConfig, "policy", "action values are one network"),
        (BCConfig, "critic", "needs a value function or critics"),
        (SACConfig, "shared", "'shared' is for on-policy algorithms"),
    ],
)
def test_a_memory_of_a_part_that_is_not_there_is_refused(kind, memory_in, words):
    with pytest.raises(ValueError, match=words):
        learner_of(kind, THREE if kind is DQNConfig else MOVE, memory_in=memory_in)


def test_no_gradient_flows_through_the_burn_in():
    learner = learner_of(DQNConfig)
    columns = columns_of(learner, sequences())
    assert columns[BURN_IN_OBS].shape == (3, 2, 3)
    assert columns["loss_mask"].tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    columns[BURN_IN_OBS].requires_grad_()
    columns["obs"].requires_grad_()
    network, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module
    rows = remembered_rows(columns, network, target)
    rows["obs"].features.sum().backward()
    assert columns["obs"].grad.abs().sum() > 0
    assert columns[BURN_IN_OBS].grad is None
    assert not any(rows[name].features.requires_grad for name in ("new_obs", TARGET_NEXT_OBS))


def test_contents_of_burn_in_and_padding_change_nothing_else():
    first, second = (learner_of(DQNConfig) for _ in range(2))
    batch = sequences()
    other = SampleBatch(batch)
    for name in ("rewards", "actions"):
        other[name] = np.where(batch["loss_mask"], batch[name], 1)
    other.right_zero_pad(9)
    numbers = [
        learner.update_from_batch(each)[MODULE]["qf_loss"] for learner, each in ((first, batch), (second, other))
    ]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-14)


def test_burn_in_changes_the_state_that_a_sequence_begins_with():
    learner = learner_of(DQNConfig)
    losses = []
    for shift in (0.0, 1.0):
        batch = sequences()
        batch["obs"] = np.where(batch["loss_mask"][:, None], batch["obs"], batch["obs"] + shift)
        losses.append(float(learner.update_from_batch(batch)[MODULE]["qf_loss"]))
    assert abs(losses[0] - losses[1]) > 1e-6


@pytest.mark.parametrize(("kind", "actions"), [(SACConfig, MOVE), (SACConfig, THREE), (TD3Config, MOVE)])
def test_critics_have_a_memory_of_their_own_which_begins_empty(kind, actions):
    learner = learner_of(kind, actions)
    columns = columns_of(learner, sequences(actions=actions))
    module, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module
    rows = remembered_rows(columns, module, target)
    critics = module.critics
    obs = columns["obs"][1:2, :3]  # the sequence without burn-in
    dtype = critics.mlp.weights[0].dtype
    expected = critics.features(obs, dtype)[0][0]
    torch.testing.assert_close(rows["obs"].critic_features.unflatten(0, (3, -1))[1], expected, rtol=0, atol=1e-12)
    state = {name: leaf[1:2] for name, leaf in columns["state_in"].items()}
    expected = module.encoder(obs, dtype, state)[0][0]
    torch.testing.assert_close(rows["obs"].features.unflatten(0, (3, -1))[1], expected, rtol=0, atol=1e-12)
    before = {name: value.clone() for name, value in module.named_parameters()}
    learner.update_from_batch(sequences(actions=actions))
    learner.update_from_batch(sequences(actions=actions))
    still = [name for name, value in module.named_parameters() if torch.equal(before[name], value)]
    assert still == []  # all learn, both memories too


def test_masks_of_observations_are_those_of_the_row_that_a_target_reads():
    learner = learner_of(DQNConfig, observations=MASKED)
    batch = sequences(n_step=2)
    mask = np.random.default_rng(3).integers(0, 2, (len(batch), 3)).astype(np.int8)
    after = np.roll(mask, -1, 0)
    batch["obs"] = {"observations": batch["obs"], "action_mask": mask}
    batch["new_obs"] = {"observations": batch["new_obs"], "action_mask": after}
    columns = columns_of(learner, batch)
    network, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"].module
    rows = remembered_rows(columns, network, target)
    found = rows["new_obs"].mask.unflatten(0, (3, -1))
    assert found[1].tolist() == [mask[7].tolist(), after[7].tolist(), after[7].tolist()]  # two steps on, then the last
    assert np.isfinite(learner.update_from_batch(batch)[MODULE]["qf_loss"])


def test_priority_of_a_sequence_is_near_its_largest_error():
    errors, mask = torch.tensor([1.0, -3.0, 9.0, 2.0]), torch.tensor([[True, True], [False, True]])
    torch.testing.assert_close(errors_of_sequences(errors, mask), torch.tensor([0.9 * 3 + 0.1 * 2, 2.0]))


@pytest.mark.parametrize(("kind", "actions"), [(DQNConfig, THREE), (SACConfig, MOVE), (SACConfig, THREE)])
def test_outputs_of_sequences_equal_those_of_single_steps(kind, actions):
    module = learner_of(kind, actions).module[MODULE]
    obs = torch.randn(2, 4, 3, dtype=torch.float64)
    taken = torch.zeros(2, 4, dtype=torch.int64) if actions is THREE else torch.zeros(2, 4, 2, dtype=torch.float64)
    whole = module.forward_train({"obs": obs, "actions": taken})
    assert module.compute_values({"obs": obs}).shape == (2, 4)
    state = {name: leaf.expand(2, -1) for name, leaf in module.get_initial_state().items()}
    for t in range(4):
        acted = module.forward_exploration({"obs": obs[:, t : t + 1], "state_in": state})
        state = acted["state_out"]
        name = "q_values" if kind is DQNConfig else "action_dist_inputs"
        torch.testing.assert_close(acted["action_dist_inputs"][:, 0], whole[name][:, t], rtol=0, atol=1e-12)
    features = {name: memory(obs, torch.float64)[0].flatten(0, 1) for name, memory in module.memories().items()}
    rows = module.forward_train({"obs": MemoryFeatures(**features), "actions": taken.flatten(0, 1)})
    flat = whole["q_values"].flatten(0, 1) if kind is DQNConfig else whole["q_values"].flatten(1, 2)
    torch.testing.assert_close(rows["q_values"], flat, rtol=0, atol=1e-12)


def test_episodes_are_learned_from_as_well():
    learner = learner_of(DQNConfig)
    results = learner.update_from_episodes(episodes())
    assert np.isfinite(results[MODULE]["qf_loss"])
    assert results[MODULE]["num_module_steps_trained"] == 12


# -- from recorded data ---


def as_prefixes(batch):
    """For each row a sequence that ends with it and begins where its own does: what came before is burn-in."""
    lengths, pieces = batch["seq_lens"], []
    for first, length in zip(np.cumsum(lengths) - lengths, lengths):
        pieces += [first + np.arange(steps + 1) for steps in range(length)]
    rows = np.concatenate(pieces)
    columns = {name: column[rows] for name, column in batch.items() if name not in ("seq_lens", "state_in")}
    sizes = np.array([len(piece) for piece in pieces])
    return SampleBatch(**columns, seq_lens=sizes, loss_mask=np.isin(np.arange(len(rows)), np.cumsum(sizes) - 1))


OTHERS = [name for name in OFFLINE if name != "bc"]


def draws(algorithm):
    """Whether its loss draws actions of a Box at random."""
    return has_option(algorithm, "num_actions")


def without_noise(algorithm):
    """Options with which two updates from the same rows in another order are the same."""
    options = {"bc_logstd_coeff": 0.1, "target_noise": 0.0, "policy_delay": 1}
    return {name: value for name, value in options.items() if has_option(algorithm, name)}


@pytest.mark.parametrize("recurrent", ["lstm", "gru", "attention"])
@pytest.mark.parametrize(
    ("kind", "actions", "training"),
    one_in(
        3,
        [
            (BCConfig, THREE, {"entropy_coeff": 0.1}),
            (BCConfig, MOVE, {"loss": "mse"}),
            *((class_of(name), THREE, {}) for name in OTHERS if takes(name, "discrete")),
            *((class_of(name), MOVE, without_noise(name)) for name in OTHERS if takes(name, "box") and not draws(name)),
        ],
    ),
)
def test_a_row_is_learned_from_with_all_that_came_before_it(kind, actions, training, recurrent):
    """The same loss from a sequence and from each of its rows alone, with the rest as burn-in."""
    batch = sequences(burned=(0, 0, 0), actions=actions)
    del batch["state_in"]
    found = []
    for each in (batch, as_prefixes(batch)):
        learner = learner_of(kind, actions, recurrent=recurrent, **training)
        target = learner.registered.get(f"{MODULE}/target")
        if target is not None:  # another network than the one that learns
            target.flat.mul_(1.5)
        found.append(learner.update_from_batch(each)[MODULE]["total_loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    other = SampleBatch(batch)
    other["obs"] = np.where(np.arange(len(batch))[:, None] == 0, batch["obs"] + 1.0, batch["obs"])  # before many others
    assert (
        found[0]
        != learner_of(kind, actions, recurrent=recurrent, **training).update_from_batch(other)[MODULE]["total_loss"]
    )


def run_over(memory, obs):
    """What a memory that begins empty holds at each observation `[T, 3]`."""
    return memory(torch.from_numpy(obs)[None], torch.float64)[0][0]


def each_sequence(batch):
    """Rows of each sequence, and its observations with the one that comes after."""
    for first, length in zip(np.cumsum(batch["seq_lens"]) - batch["seq_lens"], batch["seq_lens"]):
        rows = slice(first, first + length)
        yield rows, np.concatenate([batch["obs"][rows], batch["new_obs"][rows][-1:]])


def test_iqls_losses_equal_those_of_three_memories_and_own_targets():
    learner = learner_of(IQLConfig, expectile=0.8, beta=2.0, gamma=0.9)
    module, target = learner.module[MODULE], learner.registered[f"{MODULE}/target"]
    target.flat.mul_(1.5)
    batch = sequences(burned=(0, 0, 0))
    del batch["state_in"]
    parts = {"vf_loss": [], "critic_loss": [], "actor_loss": []}
    for rows, obs in each_sequence(batch):
        taken = torch.from_numpy(batch["actions"][rows])
        every = torch.arange(len(taken))
        goes_on = 1.0 - torch.from_numpy(batch["terminateds"][rows]).double()
        with torch.no_grad():
            values = module.value_head(run_over(module.value_encoder, obs))[:, 0]
            logp = torch.log_softmax(module.policy_head(run_over(module.encoder, obs[:-1])), -1)[every, taken]
            believed, judged = (
                critics.mlp(run_over(critics.features, obs[:-1]))[:, every, taken]
                for critics in (target.module, module.critics)
            )
        u = believed.amin(0) - values[:-1]
        goal = torch.from_numpy(batch["rewards"][rows]) + 0.9 * goes_on * values[1:]
        parts["vf_loss"].append(torch.where(u < 0, 0.2, 0.8) * u**2)
        parts["critic_loss"].append(0.5 * (judged - goal).square().sum(0))
        parts["actor_loss"].append(-(2.0 * u).exp().clamp(max=100.0) * logp)
    results = learner.update_from_batch(batch)[MODULE]
    for name, found in parts.items():
        assert results[name] == pytest.approx(torch.cat(found).mean().item(), rel=1e-12), name


@pytest.mark.parametrize("shared", [False, True])
def test_offline_learning_uses_the_value_of_the_last_observation(shared):
    """Returns reach to the end of the episode, over sequences; what was cut off goes on with the value there."""
    config = get_config(FROM_RETURNS).framework(dtype="float64").training(gamma=0.9)
    model = {"hiddens": (5,), "recurrent": "gru", "recurrent_size": 4, "max_seq_len": 20, "vf_share_layers": shared}
    learner = config.rl_module(model_config=model).build_learner(spaces=(BOX, THREE))
    module, made = learner.module[MODULE], episodes((3, 5, 4), ("terminated", "truncated", "open"))
    errors = []
    for episode in made:
        obs = np.asarray(episode.get_observations(), np.float64)
        with torch.no_grad():
            values = module.value_head(run_over(module.value_encoder or module.encoder, obs))[:, 0].numpy()
        following = 0.0 if episode.is_terminated else values[-1]
        for t in range(len(episode) - 1, -1, -1):
            following = float(episode.get_rewards(t)) + 0.9 * following
            errors.append(following - values[t])
    results = learner.update_from_episodes(made)[MODULE]
    assert results["vf_loss"] == pytest.approx(0.5 * np.square(errors).mean(), rel=1e-6)
    assert results["num_module_steps_trained"] == 12


def test_bc_needs_no_observation_that_comes_after():
    batch = sequences(burned=(0, 0, 0))
    only = SampleBatch({name: batch[name] for name in ("obs", "actions", "seq_lens")})
    with_all = learner_of(BCConfig).update_from_batch(SampleBatch({k: v for k, v in batch.items() if k != "state_in"}))
    assert learner_of(BCConfig).update_from_batch(only)[MODULE]["total_loss"] == with_all[MODULE]["total_loss"]


@pytest.mark.parametrize(("kind", "actions"), [(class_of(FROM_RETURNS), THREE), (IQLConfig, MOVE), (CQLConfig, MOVE)])
def test_every_memory_learns(kind, actions):
    learner = learner_of(kind, actions)
    batch = sequences(burned=(0, 0, 0), actions=actions)
    module = learner.module[MODULE]
    before = {name: value.clone() for name, value in module.named_parameters()}
    for _ in range(2):
        learner.update_from_batch(batch)
    assert [name for name, value in module.named_parameters() if torch.equal(before[name], value)] == []
