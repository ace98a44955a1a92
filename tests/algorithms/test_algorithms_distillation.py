"""Distillation: its three losses, what the teacher sees and labels, runs that are resumed, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from agent_games import game_config
from algorithm_tools import MODULE, THREE, exact_learner, make_policy
from gymnasium import spaces

from lockstep import DistillationConfig, Policy, PPOConfig, SACConfig, load_policy, train
from lockstep.algorithms.distillation import TEACHER_ACTIONS, TEACHER_DIST_INPUTS
from lockstep.cli import main
from lockstep.connectors import ModuleConnectors
from lockstep.envs.toys import HistoryProbe
from lockstep.export import load_export
from lockstep.learner.learner import STEPS_SAMPLED
from lockstep.policy.teacher import Teacher
from lockstep.runs import resume
from lockstep.trainer import restore_trainer, save_trainer

TWO_NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)


PROBE = "lockstep/HistoryProbe-v0"
OBSERVATIONS = HistoryProbe().observation_space
ACTIONS = HistoryProbe().action_space


def teacher_config(groups: Any = None) -> Any:
    config = PPOConfig().environment(PROBE).rl_module(model_config={"hiddens": (16,)}, observation_groups=groups)
    config.training(lr=1e-2, gamma=0.5, train_batch_size=512, minibatch_size=128).debugging(seed=1)
    config.env_runners(num_envs_per_env_runner=8)
    return config.reporting(total_steps=8192, steps_per_epoch=8192).evaluation(evaluation_interval=0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a policy that sees the load."""
    trainer = teacher_config({"policy": ["load"], "critic": ["load"]}).build_trainer()
    trainer.run()
    path = tmp_path_factory.mktemp("teacher") / "policy"
    trainer.policy.save_to_path(path)
    return str(path)


def student_config(teacher: Any, **training: Any) -> Any:
    config = DistillationConfig().environment(PROBE)
    config.training(**{"teacher": teacher, "train_batch_size": 160, **training})
    config.rl_module(observation_groups={"policy": ["proprio"]}, model_config={"hiddens": (8,)}).debugging(seed=2)
    config.env_runners(num_envs_per_env_runner=4).reporting(total_steps=640, steps_per_epoch=320)
    return config.evaluation(evaluation_interval=0)


def recurrent(config: Any) -> Any:
    return config.rl_module(model_config={"hiddens": (16,), "recurrent": "gru", "recurrent_size": 32})


# -- the losses ---


def loss_of(action_space: Any, loss: str, inputs: Any, column: str, label: Any) -> float:
    learner = exact_learner(DistillationConfig(), action_space, loss=loss)
    fwd_out = {"action_dist_inputs": torch.tensor(inputs, dtype=torch.float64)}
    batch = {column: torch.as_tensor(label)}
    return float(learner.compute_losses(fwd_out={MODULE: fwd_out}, batch={MODULE: batch})[MODULE])


def test_kl_of_a_fair_teacher_and_a_student_of_one_to_three():
    logits = [[0.0, math.log(3.0)]]
    kl = loss_of(spaces.Discrete(2), "kl", logits, TEACHER_DIST_INPUTS, torch.zeros(1, 2, dtype=torch.float64))
    assert kl == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), abs=1e-12)


def test_nll_is_the_mean_of_the_negative_log_probabilities():
    logits = [[0.0, math.log(3.0)], [0.0, math.log(3.0)]]
    nll = loss_of(spaces.Discrete(2), "nll", logits, TEACHER_ACTIONS, [0, 1])
    assert nll == pytest.approx(-0.5 * (math.log(0.25) + math.log(0.75)), abs=1e-12)


def test_mse_is_the_distance_of_the_most_likely_actions():
    inputs = [[0.5, -0.5, 0.0, 0.3]]  # means, and log standard deviations that do not matter
    mse = loss_of(TWO_NUMBERS, "mse", inputs, TEACHER_ACTIONS, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert mse == pytest.approx((0.5**2 + 1.5**2) / 2, abs=1e-12)


# -- what the teacher sees, and its labels ---


@pytest.mark.parametrize("kind", [PPOConfig, SACConfig])
def test_labels_are_the_actions_that_the_teacher_takes(kind):
    observations = spaces.Box(-1.0, 1.0, (3,), np.float32)
    bounds = spaces.Box(-2.0, 3.0, (2,), np.float32)
    policy = make_policy(bounds, observations, kind(), normalize_observations=True)
    obs = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    policy.connectors.obs.update(5.0 * obs + 1.0)
    student = make_policy(bounds, observations, DistillationConfig(), seed=1)
    teacher = Teacher(policy, student.module, student.connectors)
    labels = teacher.actions(teacher.view(obs))
    np.testing.assert_allclose(student.to_env(labels), policy.compute_actions(obs, explore=False), atol=1e-6)
    assert np.abs(labels - np.asarray(student.compute_actions(obs))).max() > 1e-3


def test_labels_of_choices_begin_with_zero():
    policy = make_policy(spaces.Discrete(3, start=5))
    student = make_policy(spaces.Discrete(3, start=5), config=DistillationConfig(), seed=1)
    obs = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    labels = Teacher(policy, student.module, student.connectors).actions(obs)
    assert (labels + 5 == policy.compute_actions(obs, explore=False)).all()
    assert len(set(labels.tolist())) > 1


def test_a_teacher_of_an_array_gets_the_entry_of_its_group():
    entry = spaces.Box(-1.0, 1.0, (3,), np.float32)
    policy = make_policy(THREE, entry)
    config = DistillationConfig().rl_module(observation_groups={"policy": ["a"], "teacher": ["inner/b"]})
    observations = spaces.Dict({"a": TWO_NUMBERS, "inner": spaces.Dict({"b": entry})})
    student = make_policy(THREE, observations, config)
    seen = np.random.default_rng(0).uniform(-1, 1, (9, 3)).astype(np.float32)
    teacher = Teacher(policy, student.module, student.connectors)
    labels = teacher.actions(teacher.view({"a": np.zeros((9, 2), np.float32), "inner": {"b": seen}}))
    assert (labels == policy.compute_actions(seen, explore=False)).all()


def test_a_student_acts_without_the_entries_and_files_of_its_teacher(teacher, tmp_path):
    trainer = student_config(teacher).build_trainer()
    trainer.run()
    trainer.policy.config.training(teacher=str(tmp_path / "gone"))
    trainer.policy.save_to_path(tmp_path / "student")
    student = Policy.from_checkpoint(tmp_path / "student")
    obs = {"proprio": np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)}
    expected = trainer.policy.compute_actions(obs)
    assert (student.compute_actions(obs) == expected).all()
    student.export(tmp_path / "export")
    np.testing.assert_allclose(load_export(tmp_path / "export").compute_actions(obs), expected, atol=1e-6)


# -- runs ---


def mean_return(policy: Policy, episodes: int = 100) -> float:
    """Return the mean return of the policy's most likely actions over one seed of each episode."""
    envs = [HistoryProbe() for _ in range(episodes)]
    observations = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
    state = policy.get_initial_state(episodes) if policy.is_stateful else None
    total = 0.0
    for _ in range(HistoryProbe.length):
        rows = {name: np.stack([obs[name] for obs in observations]) for name in OBSERVATIONS.spaces}
        if state is None:
            actions = policy.compute_actions(rows)
        else:
            actions, state = policy.compute_actions(rows, state)
        steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
        observations = [step[0] for step in steps]
        total += sum(step[1] for step in steps)
    return total / episodes


def test_two_angles_of_the_probe_determine_the_load_and_one_does_not():
    env = HistoryProbe()
    loads = []
    angles = []
    for seed in range(400):
        before, _ = env.reset(seed=seed)
        after, reward, terminated, truncated, _ = env.step(before["load"])
        (cosine, sine), (next_cosine, next_sine) = before["proprio"], after["proprio"]
        turned = np.arctan2(cosine * next_sine - sine * next_cosine, cosine * next_cosine + sine * next_sine)
        assert turned == pytest.approx(float(before["load"][0]), abs=1e-6)
        assert (reward, terminated, truncated) == (pytest.approx(1.0), False, False)
        loads.append(float(before["load"][0]))
        angles.append(after["proprio"])
    assert np.abs(np.corrcoef(np.column_stack([loads, angles]).T)[0, 1:]).max() < 0.15  # 3 standard errors
    assert all(env.step(np.zeros(1))[2] == (step == 18) for step in range(19))


@pytest.mark.long
@pytest.mark.parametrize("loss", ["nll", "kl", "mse"])
def test_a_student_with_memory_reaches_95_percent_of_its_teacher(teacher, loss):
    of_teacher = mean_return(load_policy(teacher))
    assert of_teacher > 19.8  # of 20
    config = student_config(teacher, loss=loss, lr=1e-2, train_batch_size=640)
    recurrent(config).env_runners(num_envs_per_env_runner=8).reporting(total_steps=9600, steps_per_epoch=9600)
    trainer = config.build_trainer()
    trainer.run()
    assert mean_return(trainer.policy) >= 0.95 * of_teacher


@pytest.mark.long
def test_a_student_without_memory_cannot_infer_what_its_teacher_sees(teacher):
    config = student_config(teacher, lr=3e-3).reporting(total_steps=9600, steps_per_epoch=9600)
    trainer = config.build_trainer()
    trainer.run()
    assert mean_return(trainer.policy) < 0.75 * mean_return(load_policy(teacher))


def sharing(path: str) -> Any:
    return recurrent(student_config(path, teacher_share=[[0, 1.0], [640, 0.2]]))


@pytest.mark.parametrize("changed", [student_config, lambda path: recurrent(student_config(path, loss="kl")), sharing])
def test_a_run_is_resumed_bit_for_bit_with_its_teacher(teacher, changed, tmp_path):
    straight = changed(teacher).build_trainer()
    straight.run()
    first = changed(teacher).build_trainer()
    next(first)
    path = save_trainer(first, tmp_path / "checkpoint")
    again = changed(teacher).build_trainer()
    restore_trainer(again, path)
    again.run()
    expected = straight.policy.module.get_flat_weights()
    assert (again.policy.module.get_flat_weights() == expected).all()
    assert (first.policy.module.get_flat_weights() != expected).any()


@pytest.mark.long
def test_a_resumed_folder_finds_the_teacher_by_its_path(teacher, tmp_path):
    result = train(student_config(teacher), root=tmp_path)
    longer = resume(result.path, total_steps=960)
    assert longer.policy.config.training.teacher == teacher


@pytest.mark.filterwarnings("always")
def test_ppo_goes_on_from_a_student_with_a_new_value_function(teacher, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    network = {"hiddens": [16], "recurrent": "gru", "recurrent_size": 8}
    section = {"model_config": network, "observation_groups": {"policy": ["proprio"]}}
    (tmp_path / "student.json").write_text(json.dumps({"rl_module": section}))
    batches = ["--total-steps", "320", "--set", "training.train_batch_size=160", "--set", "training.lr=1e-12"]
    words = [PROBE, "--no-check", "--config", "student.json", *batches]
    assert main(["train", "distillation", *words, "--set", f"training.teacher={teacher}", "--root", "students"]) == 0
    (student,) = (tmp_path / "students").iterdir()
    assert main(["train", "ppo", *words, "--from", str(student), "--root", "runs"]) == 0
    assert "has no value function for default_policy" in capsys.readouterr().err
    (run,) = (tmp_path / "runs").iterdir()
    before = load_policy(student).module.get_state(inference_only=True)
    after = load_policy(run).module.get_state()
    assert {name.partition(".")[0] for name in after.keys() - before.keys()} == {"value_encoder", "value_head"}
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, atol=1e-6, err_msg=name)

    wrong = ["train", "ppo", *words, "--set", "rl_module.model_config.hiddens=[8]", "--from", str(student)]
    assert main([*wrong, "--root", "wrong"]) == 2
    assert "hiddens=[16] there, [8] here" in capsys.readouterr().err
    assert list((tmp_path / "wrong").iterdir()) == []


@pytest.fixture(scope="module")
def run_of_teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a short run whose policy has statistics of observations."""
    config = teacher_config({"policy": ["load"], "critic": ["load"]}).environment(normalize_observations=True)
    config.reporting(total_steps=1024, steps_per_epoch=1024)
    return str(train(config, root=tmp_path_factory.mktemp("runs")).path)


@pytest.mark.parametrize("form", ["run", "checkpoint", pytest.param("export", marks=pytest.mark.long)])
def test_a_run_a_checkpoint_and_an_export_teach_as_the_policy(run_of_teacher, form, tmp_path):
    policy = load_policy(run_of_teacher)
    path = tmp_path / "teacher"
    if form == "run":
        path = run_of_teacher
    elif form == "checkpoint":
        policy.save_to_path(path)
    else:
        policy.export(path)
    trainers = [student_config(given).build_trainer() for given in (policy, path)]
    initial = trainers[0].policy.module.get_flat_weights().copy()
    for trainer in trainers:
        trainer.run()
    of_policy, of_path = (trainer.policy.module.get_flat_weights() for trainer in trainers)
    assert (of_path == of_policy).all()
    assert (of_policy != initial).any()


# -- the teacher acts in a share of the steps ---


def shares_taken(collector: Any, policy: Policy, path: str, steps: int = 1600) -> float:
    """Return the share of a collect's actions that are the teacher's most likely ones."""
    teacher = Teacher(path, policy.module, policy.connectors)
    equal = []

    def compare(step: Any) -> None:
        labels = teacher.actions(teacher.view(step.acted_on))
        equal.append(np.isclose(step.actions, labels, rtol=0.0, atol=1e-6).all(-1))

    collector.on_step_hook = compare
    collector.collect(n_step=steps)
    return float(np.mean(equal))


@pytest.mark.parametrize("changed", [lambda config: config, recurrent])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_teacher_takes_its_share_of_the_actions_of_training(teacher, share, changed):
    config = changed(student_config(teacher, teacher_share=share))
    policy = config.build_policy()
    assert shares_taken(config.build_collector(policy), policy, teacher) == pytest.approx(share, abs=0.04)
    assert shares_taken(config.build_test_collector(policy), policy, teacher) == 0.0


@pytest.mark.parametrize(("step", "share"), [(0, 1.0), (500, 0.5), (1000, 0.0)])
def test_the_share_of_the_teacher_follows_its_schedule(teacher, step, share):
    config = student_config(teacher, teacher_share=[[0, 1.0], [1000, 0.0]])
    policy = config.build_policy()
    policy.timesteps[STEPS_SAMPLED] = step
    assert shares_taken(config.build_collector(policy), policy, teacher) == pytest.approx(share, abs=0.04)


def test_a_share_that_is_not_a_probability_ends_the_run(teacher):
    trainer = student_config(teacher, teacher_share=lambda step: 2.0).build_trainer()
    with pytest.raises(ValueError, match=r"training.teacher_share=2.0 at step 0 is not allowed"):
        trainer.run()


def test_an_env_runner_lets_the_teacher_act_in_training_only(teacher):
    config = student_config(teacher, teacher_share=1.0)
    spaces_of_probe = (OBSERVATIONS, ACTIONS)
    for evaluates, share in ((False, 1.0), (True, 0.0)):
        runner = config.build_env_runner(spaces_of_probe, evaluates=evaluates)
        assert shares_taken(runner.collector, runner.policy, teacher, 160) == share
        runner.close()


def test_other_collectors_refuse_to_let_a_teacher_act():
    policy = game_config().build_policy()
    collector = game_config().build_collector(policy)
    with pytest.raises(ValueError, match="AgentStepper lets the policy take all actions"):
        collector.set_guide(None)
    collector.close()


# -- bad input ---


def refused(config: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        config.build_trainer()


def test_a_run_without_a_teacher_is_refused():
    refused(student_config(None), r"training.teacher=None: distillation needs a teacher")
    with pytest.raises(TypeError, match="must be a Policy, or the path of a run"):
        student_config(3).validate()


def test_a_teacher_of_other_actions_is_refused():
    policy = make_policy(THREE, OBSERVATIONS)
    refused(student_config(policy), r"takes other actions: its action space is Discrete\(3\).* Box")


def test_a_teacher_of_entries_that_there_are_not_is_refused(teacher):
    more = spaces.Dict({**OBSERVATIONS.spaces, "map": TWO_NUMBERS})
    refused(student_config(make_policy(ACTIONS, more)), "observes 'map', which the observations for it")
    hidden = student_config(teacher).rl_module(observation_groups={"policy": ["proprio"], "teacher": ["proprio"]})
    refused(hidden, r"observes 'load', which the observations for it do not have: they are \['proprio'\]")


def test_a_teacher_with_a_memory_or_stacked_frames_is_refused():
    remembering = teacher_config().rl_module(model_config={"recurrent": "lstm"}).build_policy()
    refused(student_config(remembering), "has a memory, which is not possible yet")
    stacking = teacher_config().environment(frame_stack=2).build_policy()
    refused(student_config(stacking), "which follow episodes")


def test_several_agents_are_refused_as_student_and_as_teacher(teacher):
    refused(student_config(game_config().build_policy()), "has several agents; distil their policies one by one")
    refused(game_config(algorithm=DistillationConfig).training(teacher=teacher), "the student has several agents")


def test_kl_with_another_distribution_is_refused():
    observations = spaces.Box(-1.0, 1.0, (3,), np.float32)
    student = make_policy(TWO_NUMBERS, observations, DistillationConfig())
    squashed = make_policy(TWO_NUMBERS, observations, SACConfig())
    with pytest.raises(ValueError, match="differs from the student's"):
        Teacher(squashed, student.module, ModuleConnectors(), needs_same_distribution=True)


def test_mse_of_choices_is_refused():
    config = DistillationConfig().environment("CartPole-v1").training(loss="mse", teacher=make_policy(THREE))
    refused(config, "needs a Box of actions")


@pytest.mark.parametrize(
    ("section", "option", "value", "words"),
    [
        ("training", "teacher_share", 1.5, "between 0 and 1"),
        ("training", "teacher_share", [[0, 1.0], [100, -1.0]], "between 0 and 1"),
        ("training", "loss", "l1", "'mse', 'kl', 'nll'"),
        ("environment", "frame_stack", 2, "the teacher labels single observations"),
    ],
)
def test_an_option_that_distillation_cannot_have_is_refused(teacher, section, option, value, words):
    with pytest.raises(ValueError, match=words):
        getattr(student_config(teacher), section)(**{option: value}).build_trainer()
