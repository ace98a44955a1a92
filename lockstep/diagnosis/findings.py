"""`doctor`: find out why a run does not learn, with evidence and advice for each finding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces

from lockstep.diagnosis.records import Returns, RunRecords, Series
from lockstep.diagnosis.sample_run import SampleRun
from lockstep.envs.check import LARGE_SCALE, SMALL_SCALE
from lockstep.options.checks import check_number
from lockstep.options.schedules import Schedule, ScheduleLike
from lockstep.state.markup import number_text

FINITE_METRICS = ("loss", "norm", "q_mean", "entropy", "td_error_mean")
"""Parts of the names of metrics that are finite in every run without a fault."""
MIN_STEPS_WITHOUT_END = 500
"""Steps of an environment within which it is normal that no episode ends."""
EXPLORATION_OPTIONS = (
    ("training.epsilon", "epsilon", "training.epsilon=[[0, 1.0], [10_000, 0.05]]"),
    ("training.exploration_noise", "scale", "training.exploration_noise=0.1"),
)
"""Options with an amount of exploration: path, key in `env_runners.exploration_config`, and a setting to advise."""
NORMAL_ENTROPY = 0.5 * math.log(2.0 * math.pi * math.e)
"""Entropy of a normal distribution with deviation 1, in nats."""


@dataclass(frozen=True)
class RunFinding:
    """One fault that `doctor` has found in a run.

    Attributes:
        code: Short name of the kind of fault, for programs.
        title: The same in words.
        certainty: How certain it is, from 0 to 1, that the fault keeps the run from learning.
        evidence: Numbers and options that show the fault.
        advice: What to do.
    """

    code: str
    title: str
    certainty: float
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.title} ({self.in_words}). {self.evidence}. {self.advice}."

    @property
    def in_words(self) -> str:
        """The certainty as "certain", "very likely", "likely" or "possible"."""
        for limit, words in ((0.95, "certain"), (0.8, "very likely"), (0.6, "likely")):
            if self.certainty >= limit:
                return words
        return "possible"


@dataclass(frozen=True)
class Examination:
    """Result of `doctor`: whether a run learns, and the faults in it."""

    learns: bool | None
    """Whether the run learns; None if its records do not show it."""
    progress: str
    """Course of the returns, in words."""
    findings: tuple[RunFinding, ...]
    """Faults, the most certain first."""
    note: str | None = None
    """Why the networks were not examined; None if they were."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the whole examination as lines of text."""
        verdicts = {True: "It learns", False: "It does not learn", None: "Its records do not show whether it learns"}
        lines = [f"{verdicts[self.learns]}: {self.progress}."]
        for number, finding in enumerate(self.findings, start=1):
            lines.append(f"{number}. {finding.title} ({finding.in_words})")
            lines.append(f"   seen: {finding.evidence}")
            lines.append(f"   try:  {finding.advice}")
        if not self.findings:
            lines.append("Nothing that keeps a run from learning was found.")
        if self.note:
            lines.append(f"Networks and rewards were not looked at closely: {self.note}.")
        return lines


def doctor(
    path: str | Path, *, expected_return: float | None = None, play: bool = True, trust: bool = False
) -> Examination:
    """Find out why a run does not learn, from its options, its records and its newest checkpoint.

    Nothing in the run's folder is changed.

    Args:
        path: Folder of the run.
        expected_return: Return that the run should reach. A run below it that no longer improves counts as not
            learning. Defaults to `evaluation.stop_return`, or to the reward threshold of the environment in gymnasium.
        play: Whether to play a few hundred steps with the newest checkpoint, which shows dead units, saturated actions
            and the scale of rewards.
        trust: Whether to accept all objects that the run's files name, see `Policy.from_checkpoint`. If one needs it,
            the examination's note says so.

    Raises:
        RunFolderError: there is no run, or it has no records.
    """
    check_number("expected_return", expected_return, optional=True)
    run = RunRecords(path)
    sample = SampleRun.of_run(run.folder, play=play, trust=trust)
    return RunExamination(run, sample, expected_return).examine()


class RunExamination:
    """Checks for faults in a run's records and in a sample run of its newest checkpoint.

    Each check returns a finding, or None. Faults with which no run can learn are looked for in every run, all others
    only in a run that does not learn: in a run that learns, a small entropy at the end, large rewards or gradients that
    are always clipped are no faults.
    """

    def __init__(self, run: RunRecords, sample: SampleRun, expected_return: float | None = None) -> None:
        self.run = run
        self.sample = sample
        self.expected = run.expected_return() if expected_return is None else expected_return
        self.learns = run.learns(self.expected)

    def examine(self) -> Examination:
        """Perform all checks that apply to the run."""
        checks = [self.not_finite, self.never_started, self.zero_learning_rate, self.endless_episodes]
        if self.learns is False or not self.run.curve:
            checks += [
                self.no_exploration,
                self.value_error_explodes,
                self.rewards_of_odd_scale,
                self.entropy_gone,
                self.dead_units,
                self.saturated_actions,
                self.clipped_gradients,
                self.large_observations,
                self.same_returns,
            ]
        results = [check() for check in checks]
        findings = [finding for finding in results if finding is not None]
        findings.sort(key=lambda finding: -finding.certainty)
        return Examination(self.learns, self.run.progress(self.expected), tuple(findings), self.sample.note)

    # -- faults with which no run can learn ---

    def not_finite(self) -> RunFinding | None:
        """Check for losses, gradients, parameters or rewards that are NaN or infinite."""
        evidence = []
        metrics_text = self._first_not_finite_metrics()
        if metrics_text:
            evidence.append(metrics_text)
        if self.sample.not_finite:
            names = ", ".join(self.sample.not_finite[:3])
            evidence.append(f"not finite in the newest checkpoint or its environment: {names}")
        if not evidence:
            return None
        return RunFinding(
            "nan",
            "NaN or infinite numbers",
            1.0,
            f"{'; '.join(evidence)}; training.lr={self.run.option('training.lr')}",
            f"lower training.lr, set training.grad_clip, and check the rewards and observations: "
            f"lockstep doctor {self.run.env_name}",
        )

    def _first_not_finite_metrics(self) -> str:
        """Return which metrics were NaN or infinite first, and when; an empty text if none were."""
        for record in self.run.updates:
            names = [name for name, value in record["data"].items() if _should_be_finite(name) and _is_broken(value)]
            if names:
                verb = "is" if len(names) == 1 else "are"
                return f"{', '.join(names[:3])} {verb} not finite by gradient step {record['step']:,}"
        return ""

    def never_started(self) -> RunFinding | None:
        """Check whether the run has made any gradient step."""
        run = self.run
        learning_starts = run.option("replay.learning_starts")
        if run.gradient_steps or not run.env_steps:
            return None
        total = run.option("reporting.total_steps") or run.env_steps
        is_waiting = learning_starts is not None and run.env_steps <= learning_starts
        if is_waiting and learning_starts < total and not run.is_over:
            return None  # learning will start

        evidence = f"no gradient step in {run.env_steps:,} environment steps"
        advice = "let it run longer: the first update comes after training.train_batch_size steps"
        if learning_starts is not None:
            evidence += f"; replay.learning_starts={learning_starts:,}, reporting.total_steps={total:,}"
            advice = "set replay.learning_starts to a small share of the run, or replay.update_per_step higher"
        return RunFinding("never_started", "Learning never started", 1.0, evidence, advice)

    def zero_learning_rate(self) -> RunFinding | None:
        """Check for a learning rate of 0, or a schedule that reaches 0 long before the end of the run."""
        largest_share = 0.0
        optimizer_name = ""
        first_zero_step = 0
        for name, series in self.run.series("_learning_rate").items():
            # A record is of all gradient steps since the last record.
            num_steps = np.diff([0, *(step for step, _ in series)])
            is_zero = np.array([value == 0.0 for _, value in series])
            share = float(num_steps[is_zero].sum() / max(1, num_steps.sum()))
            if share > largest_share:
                largest_share = share
                optimizer_name = name
                first_zero_step = series[int(is_zero.argmax())][0]

        # Many schedules end at 0, so that 0 in a part of the run is a fault only if the run does not learn.
        if largest_share < (1.0 if self.learns else 0.2):
            return None
        if largest_share == 1.0:
            title = "The learning rate is 0"
            certainty = 0.99
            since = ""
            advice = "set training.lr to a number such as 3e-4"
        else:
            title = "The schedule of the learning rate ended too early"
            certainty = min(0.95, 0.75 + 0.25 * largest_share)
            since = f", from about step {first_zero_step:,} on"
            advice = (
                "give the last point of the schedule training.lr=[[0, ...], [steps, 0]] the steps of the whole run, "
                f"reporting.total_steps={self.run.option('reporting.total_steps')}"
            )
        return RunFinding(
            "zero_learning_rate",
            title,
            certainty,
            f"{optimizer_name} is 0 in {largest_share:.0%} of {self.run.gradient_steps:,} gradient steps"
            f"{since}; training.lr={self.run.option('training.lr')}",
            advice,
        )

    def endless_episodes(self) -> RunFinding | None:
        """Check whether any episode has ended; without one no return is known."""
        run = self.run
        time_limit = getattr(run.registered, "max_episode_steps", None)
        if not run.collects or run.episodes or run.steps_of_an_env < max(MIN_STEPS_WITHOUT_END, time_limit or 0):
            return None
        return RunFinding(
            "endless_episodes",
            "Episodes never end",
            0.97,
            f"no episode ended in {run.env_steps:,} environment steps ({run.steps_of_an_env:,} in each environment)",
            "end episodes (terminated), or wrap the environment in gymnasium.wrappers.TimeLimit(env, "
            f"max_episode_steps); lockstep doctor {run.env_name} looks at it alone",
        )

    # -- faults only if the run does not learn ---

    def no_exploration(self) -> RunFinding | None:
        """Check whether actions are varied while the run collects."""
        run = self.run
        if not run.collects:
            return None

        evidence = ""
        advice = ""
        if run.option("env_runners.explore") is False:
            evidence = "env_runners.explore=False"
            advice = "set env_runners.explore=True"
        else:
            exploration_config = run.option("env_runners.exploration_config") or {}
            for path, key, example in EXPLORATION_OPTIONS:
                amount = exploration_config.get(key, run.option(path))
                if run.has_option(path) and self._is_off(amount):
                    evidence = f"{path}={amount}: the most likely action is taken in at least nine steps of ten"
                    advice = f"set {example}, and let the exploration last a tenth of the run"
        if not evidence:
            return None

        learning_starts = run.option("replay.learning_starts")
        if learning_starts:
            evidence += f"; only the first {learning_starts:,} steps (replay.learning_starts) were random"
        return RunFinding("no_exploration", "No exploration", 0.95, evidence, advice)

    def _is_off(self, amount: ScheduleLike | str | None) -> bool:
        """Return whether an amount of exploration is practically 0 in nine of ten steps after the random first ones."""
        if isinstance(amount, str) or amount is None:
            return False  # text is the name of a user's function
        schedule = Schedule(amount)
        start = min(self.run.option("replay.learning_starts") or 0, self.run.env_steps - 1)
        steps = np.linspace(start, self.run.env_steps, 101)[:-1]
        is_zero = [schedule.at(int(step)) < 1e-3 for step in steps]
        return float(np.mean(is_zero)) >= 0.9

    def value_error_explodes(self) -> RunFinding | None:
        """Check for values, or errors of values, that are far larger than any return can be."""
        largest_return = self._largest_return()
        if largest_return is None:
            return None

        # Only the second half of the run counts: value errors are large before the critic has learned anything.
        candidates: list[tuple[float, str, Series]] = []
        for name, series in self.run.series("q_mean").items():
            values = [abs(value) for _, value in series[len(series) // 2 :]]
            candidates.append((max(values) / largest_return, name, series))
        for name, series in self.run.series("vf_loss").items():
            # The loss is half a squared error.
            errors = [math.sqrt(2.0 * max(loss, 0.0)) for _, loss in series[len(series) // 2 :]]
            candidates.append((max(errors) / largest_return, name, series))
        ratio, name, series = max(candidates, default=(0.0, "", []))
        if not 3.0 < ratio < math.inf:
            return None

        other_options = ("training.tau", "training.target_update_interval", "training.grad_clip")
        options = ["training.lr", *filter(self.run.has_option, other_options)]
        options_text = ", ".join(f"{option}={self.run.option(option)}" for option in options)
        quantity = "errors of the values" if "vf_loss" in name else "values"
        return RunFinding(
            "value_explodes",
            "The value error explodes",
            0.92 if ratio > 10.0 else 0.75,
            f"{name} went from {series[0][1]:.3g} to {series[-1][1]:.3g}: {quantity} up to {ratio:.3g} times as large "
            f"as any return of these rewards can be (about {largest_return:.3g} with training.gamma="
            f"{self.run.option('training.gamma')}); {options_text}",
            "lower training.lr, set training.grad_clip, and let the target network follow more slowly (smaller "
            "training.tau, larger training.target_update_interval) if there is one",
        )

    def _largest_return(self) -> float | None:
        """Return an upper estimate of a discounted return, in the rewards that are learned from; None if unknown.

        It is the largest of: the largest return of an episode, and for each known reward per step the sum
        `|r| * sum_t gamma^t`, whose second factor is the horizon 1 / (1 - gamma).
        """
        run = self.run
        gamma = run.option("training.gamma")
        episodes = [*run.training, *run.evaluations]
        if not isinstance(gamma, int | float):
            return None
        longest = max((episode.length for episode in episodes), default=1000.0)
        horizon = min(1.0 / (1.0 - gamma), 1e6) if gamma < 1.0 else longest
        if run.option("environment.normalize_rewards"):
            return horizon * (run.option("environment.clip_rewards") or 10.0)

        bounds = [max(abs(episode.low), abs(episode.high)) for episode in episodes]
        bounds += [abs(episode.mean) / episode.length * horizon for episode in episodes if episode.length]
        if self.sample.rewards is not None:
            bounds.append(float(np.abs(self.sample.rewards).max()) * horizon)
        # A soft value (SAC) is of rewards plus alpha times the entropy.
        for name, alphas in run.series("alpha").items():
            entropies = run.series(name.removesuffix("alpha") + "entropy")
            bounds += [abs(alphas[-1][1] * series[-1][1]) * horizon for series in entropies.values()]
        return max(bounds, default=0.0) or None

    def rewards_of_odd_scale(self) -> RunFinding | None:
        """Check for rewards so large or small that losses and gradients have an odd scale too."""
        run = self.run
        if run.option("environment.normalize_rewards") or not run.collects:
            return None

        rewards = self.sample.rewards
        if rewards is not None:
            size = float(np.sqrt(np.mean(np.square(rewards, dtype=np.float64))))
            quantity = f"root mean square of the rewards in {len(rewards)} steps"
        else:
            step_rewards = [abs(episode.mean) / episode.length for episode in run.training if episode.length]
            size = max(step_rewards, default=1.0)
            quantity = "mean reward of a step"
        if SMALL_SCALE <= size < LARGE_SCALE or size == 0.0:
            return None

        scale = 10.0 ** round(math.log10(size))
        is_large = size >= LARGE_SCALE
        scale_text = f"{scale:,.0f}" if is_large else f"{scale:.0e}"
        correction = (
            f"divide the rewards by {scale:,.0f}" if is_large else f"multiply the rewards by {1.0 / scale:,.0f}"
        )
        return RunFinding(
            "reward_scale",
            f"Rewards of scale {scale_text}",
            0.87 if is_large else 0.7,
            f"{quantity}: {size:.3g}; environment.normalize_rewards=False",
            f"set environment.normalize_rewards=True, or {correction}",
        )

    def entropy_gone(self) -> RunFinding | None:
        """Check whether the policy samples hardly more than one action."""
        if not self.run.collects:
            return None
        for name, series in self.run.series("entropy").items():
            limit, limit_text = self._entropy_limit(series[0][1])
            is_small = [value < limit for _, value in series]
            if limit == -math.inf or not is_small[-1]:
                continue

            # The record after the last one with enough entropy.
            large_records = [index for index, small in enumerate(is_small) if not small]
            first_small = large_records[-1] + 1 if large_records else 0
            since = series[first_small][0]
            is_early = first_small == 0 or since <= 0.5 * self.run.gradient_steps
            coefficient = "training.entropy_coeff"
            if self.run.has_option(coefficient):
                coefficient_text = f"; {coefficient}={self.run.option(coefficient)}"
                advice = f"raise {coefficient} (0.01 is usual) and lower training.lr"
            else:
                coefficient_text = ""
                advice = "raise training.target_entropy or training.alpha, and lower training.lr"
            return RunFinding(
                "entropy_gone",
                "The entropy is gone",
                0.86 if is_early else 0.65,
                f"{name} is {series[-1][1]:.3g} (below {limit:.3g}, {limit_text}) since gradient step {since:,} of "
                f"{self.run.gradient_steps:,}{coefficient_text}; training.lr={self.run.option('training.lr')}",
                advice,
            )
        return None

    def _entropy_limit(self, first_entropy: float) -> tuple[float, str]:
        """Return the entropy below which hardly more than one action is sampled, and what it is, in words.

        For a Box it is the entropy of normal distributions, sum_i (H(1) + log sigma_i), with sigma_i = 1 % of half the
        range of component i.
        """
        space = self.sample.action_space
        if isinstance(space, spaces.Box):
            half_range = (space.high.astype(np.float64) - space.low) / 2.0
            if self.sample.is_squashed:
                half_range = np.ones(half_range.shape)
            else:
                half_range = np.where(np.isfinite(half_range), half_range, 1.0)
            limit = float(np.sum(NORMAL_ENTROPY + np.log(0.01 * half_range)))
            return limit, "a deviation of 1 % of half the action's range"
        if isinstance(space, spaces.Discrete):
            return 0.05 * float(np.sum(np.log([space.n]))), "5 % of the entropy of random actions"
        if isinstance(space, spaces.MultiDiscrete):
            return 0.05 * float(np.sum(np.log(space.nvec.reshape(-1)))), "5 % of the entropy of random actions"
        if first_entropy > 0.1:
            return 0.05 * first_entropy, "5 % of its first value"
        return -math.inf, ""

    def dead_units(self) -> RunFinding | None:
        """Check for hidden units that give the same output for every observation."""
        layers = [layer for layer in self.sample.layers if layer.units]
        if not layers:
            return None
        share = sum(layer.dead for layer in layers) / sum(layer.units for layer in layers)
        worst = max(layers, key=lambda layer: layer.dead / layer.units)
        worst_share = worst.dead / worst.units
        if share < 0.5 and worst_share < 0.9:
            return None
        activation = self.run.option("rl_module.model_config.activation")
        return RunFinding(
            "dead_units",
            "Dead units",
            0.9 if worst_share == 1.0 else 0.7 + 0.15 * max(share, worst_share - 0.1),
            f"{share:.0%} of all hidden units give the same output for every observation, {worst.dead} of "
            f"{worst.units} in {worst.name}; rl_module.model_config.activation={activation}",
            "lower training.lr, set environment.normalize_observations=True, and use another "
            "rl_module.model_config.activation (tanh or elu in place of relu); then train a new run: dead units stay "
            "dead",
        )

    def saturated_actions(self) -> RunFinding | None:
        """Check whether the most likely actions are nearly always at the bounds of the action space."""
        share = self.sample.share_at_bounds
        if share is None or share < 0.9:
            return None
        evidence = f"{share:.0%} of the most likely actions lie at a bound of the action space"
        if self.sample.is_squashed:
            evidence += " (the tanh of the policy is flat there: hardly any gradient)"
        return RunFinding(
            "saturated_actions",
            "Saturated actions",
            0.85 if share >= 0.99 else 0.8,
            evidence,
            "lower training.lr, set environment.normalize_observations=True, begin with small actions "
            "(rl_module.model_config.orthogonal_init=True, policy_gain=0.01), and check the scale of rewards",
        )

    def clipped_gradients(self) -> RunFinding | None:
        """Check whether at least nine of ten gradients are clipped."""
        limit = self.run.option("training.grad_clip")
        for name, series in self.run.series("_share_clipped").items():
            norm_name = name.removesuffix("_share_clipped") + "_global_norm"
            share = float(np.mean([value for _, value in series]))
            norms = self.run.series(norm_name)
            if share < 0.9 or not norms or not limit:
                continue

            median_norm = float(np.median([value for _, value in next(iter(norms.values()))]))
            ratio = median_norm / limit
            if ratio >= 1000.0:
                certainty = 0.8
            elif ratio >= 100.0:
                certainty = 0.6
            else:
                certainty = 0.5
            return RunFinding(
                "clipped_gradients",
                f"Gradients are clipped {'nine times in ten' if share < 0.95 else 'nearly always'}",
                certainty,
                f"{share:.0%} of gradients were longer than training.grad_clip={limit}, {ratio:.3g} times as long "
                f"(median of {norm_name}: {median_norm:.3g})",
                f"raise training.grad_clip (towards {median_norm:.1g}), or make the loss smaller: "
                "environment.normalize_rewards=True, a smaller training.vf_loss_coeff if there is one",
            )
        return None

    def large_observations(self) -> RunFinding | None:
        """Check for observations so large that the first layer saturates."""
        size = self.sample.observation_rms
        if size is None or size < LARGE_SCALE or self.run.option("environment.normalize_observations"):
            return None
        return RunFinding(
            "observation_scale",
            f"Observations of scale {10.0 ** round(math.log10(size)):,.0f}",
            0.72,
            f"root mean square of observations: {size:.3g}; environment.normalize_observations=False",
            "set environment.normalize_observations=True",
        )

    def same_returns(self) -> RunFinding | None:
        """Check whether every episode had the same return, so that no action looks better than another."""
        episodes: list[Returns] = self.run.training
        count = sum(record.count for record in episodes)
        # The common return of agents that play against each other is always the same.
        if self.run.is_multi_agent or count < 10:
            return None
        if max(record.high for record in episodes) != min(record.low for record in episodes):
            return None
        return RunFinding(
            "same_returns",
            "No episode was better than another",
            0.65,
            f"all {count:,} training episodes had the return {number_text(episodes[0].mean)}",
            "explore more or longer (training.epsilon, training.exploration_noise, training.entropy_coeff), or give "
            "rewards on the way to the goal",
        )


def _should_be_finite(metric: str) -> bool:
    return any(part in metric for part in FINITE_METRICS)


def _is_broken(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
