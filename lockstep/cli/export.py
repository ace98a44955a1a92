"""`lockstep export`: a policy as files that act without Lockstep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from lockstep.cli.arguments import MaybePath
from lockstep.cli.running import policy_text
from lockstep.cli.terminal import say_facts, shown_path
from lockstep.export import exported_in, read_card
from lockstep.runs.run import evaluation_of, find_policy, load_policy
from lockstep.tracking.run_folder import find_run


@dataclass
class Export:
    """Write the policy of a run as files that act without Lockstep: ONNX with a few lines of Python, or torch's own."""

    folder: Positional[Annotated[Path, arg(metavar="RUN")]]
    """A run's folder, or one of its checkpoints."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx, or torch for an exported program (.pt2)."""
    checkpoint: Literal["best", "last"] = "best"
    """Of a run: the policy with the best evaluation, or that of the last checkpoint."""
    output: MaybePath = None
    """The folder to write; else export_onnx or export_torch in RUN."""
    sample: bool = False
    """Draw actions, by an input of noise, instead of taking the most likely ones."""
    trust: bool = False
    """Take all objects that the run's files name, such as functions, which are run. Your own runs need no word."""

    def run(self) -> int:
        """Write the artefact and say how it was proven; return the exit code."""
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
            proof = read_card(folder)["parity"]
            kind = "of the environment" if proof["source"] == "environment" else "drawn at random"
            exact = f", continuous actions within {proof['largest_difference']:.1g}" * bool(proof["largest_difference"])
            ties = f", {proof['ties']} ties in float32" * bool(proof["ties"])
            say_facts(
                {
                    "written": f"{shown_path(folder)} ({', '.join(sorted(each.name for each in folder.iterdir()))})",
                    "proof": f"{proof['observations']:,} observations {kind}: the same actions{exact}{ties}",
                }
            )
        return 0
