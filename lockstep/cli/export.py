"""`lockstep export`: export a policy to files that act without Lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from lockstep.cli.arguments import OptionalPath
from lockstep.cli.running import policy_text
from lockstep.cli.terminal import say_facts, shown_path
from lockstep.export import exported_in, read_card
from lockstep.policy.files import find_policy
from lockstep.runs.run import evaluation_of, load_policy
from lockstep.tracking.run_folder import find_run


@dataclass
class Export:
    """Export the policy of a run to files that act without Lockstep: ONNX with a few lines of Python, or torch."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """Folder of the run, or one of its checkpoints."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx, or torch for an exported program of torch (.pt2)."""
    checkpoint: Literal["best", "last"] = "best"
    """Policy to export from a run: the one with the best evaluation, or the last one that was saved."""
    output: Annotated[OptionalPath, arg(help_behavior_hint="(default: export_onnx or export_torch in RUN)")] = None
    """Folder to write."""
    sample: bool = False
    """Sample actions, from a noise input of the exported network, instead of taking the most likely ones."""
    trust: bool = False
    """Accept all objects that the run's files name, which are executed. Your own runs do not need this."""

    def run(self) -> int:
        """Export the policy and print how the export was checked; return the exit code."""
        if not self.folder.exists():
            raise ValueError(f"there is no {self.folder}; give a run's folder (runs/...) or one of its checkpoints")
        is_last = self.checkpoint == "last"
        run = find_run(self.folder)
        path = find_policy(run, last=is_last)
        policy = load_policy(path, trust=self.trust)

        target = run / f"export_{self.format}" if self.output is None else self.output
        evaluation = evaluation_of(run, last=is_last)
        written = policy.export(target, self.format, deterministic=not self.sample, evaluation=evaluation)

        say_facts({"policy": policy_text(policy, path)})
        for folder in exported_in(written):
            file_names = sorted(file.name for file in folder.iterdir())
            say_facts(
                {
                    "written": f"{shown_path(folder)} ({', '.join(file_names)})",
                    "proof": _proof_text(read_card(folder)["parity"]),
                }
            )
        return 0


def _proof_text(parity: Mapping[str, Any]) -> str:
    """Return how an export was compared with the policy, in words."""
    kind = "of the environment" if parity["source"] == "environment" else "drawn at random"
    text = f"{parity['observations']:,} observations {kind}: the same actions"
    if parity["largest_difference"]:
        text += f", continuous actions within {parity['largest_difference']:.1g}"
    if parity["ties"]:
        text += f", {parity['ties']} ties in float32"
    return text
