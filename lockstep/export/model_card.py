"""Model cards (README.md) of artefacts and saved policies, for people and for the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lockstep.state.markup import markdown_code, markdown_text, number_text, one_line


def model_card(card: Mapping[str, Any]) -> str:
    """Return README.md for an export with the given `card.json`."""
    lines = [*front_matter(card), f"# {markdown_text(title(card))}", "", *_origin(card), ""]
    lines += ["## Inputs and outputs", "", "The batch size B is free.", "", "| name | shape | dtype |", "|---|---|---|"]
    lines += [_port_row(port["name"], port["shape"], port["dtype"]) for port in card["observation"]]
    if card["reads_reward"]:
        lines.append(_port_row("reward", [], "float32"))
    if card["noise"]:
        lines.append(_port_row("noise", [sum(size for _, size in card["noise"])], "float32"))
    lines += [_port_row(port["name"], port["shape"], port["dtype"]) for port in card["state"]]
    lines += [_port_row(f"{port['name']} (output)", port["shape"], port["dtype"]) for port in card["actions"]]
    for port in card["state"]:
        output_name = port["name"].replace("_in_", "_out_", 1)
        lines.append(_port_row(f"{output_name} (output)", port["shape"], port["dtype"]))
    lines += ["", *_groups(card), *_use(card), "## Proof", "", _proof(card["parity"]), ""]
    return "\n".join(lines)


def title(card: Mapping[str, Any]) -> str:
    """Return the heading of a card: algorithm and environment."""
    return one_line(f"{str(card['algorithm']).upper()} on {card['environment']}")


def front_matter(card: Mapping[str, Any]) -> list[str]:
    """Return the YAML lines that the Hub reads. Strings are quoted as JSON, which is valid YAML."""
    environment = json.dumps(str(card["environment"]))
    lines = ["---", "library_name: lockstep", "tags:", "- reinforcement-learning"]
    lines += [f"- {json.dumps(str(card['algorithm']))}", f"- {environment}"]
    if card.get("evaluation"):
        value = f"{card['evaluation']['return_mean']:.2f}"
        if card["evaluation"].get("return_std") is not None:
            value += f" +/- {card['evaluation']['return_std']:.2f}"
        lines += [
            "model-index:",
            f"- name: {json.dumps(title(card))}",
            "  results:",
            "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
            f"    dataset: {{name: {environment}, type: {environment}}}",
            f"    metrics: [{{type: mean_reward, value: {json.dumps(value)}, name: mean return}}]",
        ]
    return [*lines, "---", ""]


def _origin(card: Mapping[str, Any]) -> list[str]:
    """Return lines that say where the policy comes from and how good it is."""
    version = markdown_text(card["versions"]["lockstep"])
    algorithm = markdown_text(card["algorithm"])
    lines = [f"A policy trained with Lockstep {version} ({algorithm}, {card['steps']:,} steps)."]
    if card.get("evaluation"):
        number = card["evaluation"]["return_mean"]
        lines.append(f"Its mean return in the evaluation was {number_text(number)}.")
    return lines


def _groups(card: Mapping[str, Any]) -> list[str]:
    """Return lines that say which entries of observations the parts of the network saw; none if all saw all."""
    groups = card.get("observation_groups")  # exports of 0.2 do not say it
    if not groups:
        return []
    seen = [f"{markdown_text(part)} saw {', '.join(map(markdown_code, paths))}" for part, paths in groups.items()]
    return [f"In training {'; '.join(seen)}. Acting needs the inputs above only.", ""]


def _use(card: Mapping[str, Any]) -> list[str]:
    """Return the section that says how to act with the artefact."""
    if card["format"] != "onnx":
        return [
            "## Use",
            "",
            '`policy.pt2` is an exported program: `torch.export.load("policy.pt2").module()` takes the inputs in this '
            "order and returns the outputs. `lockstep.export.load_export(folder)` acts with it.",
            "",
        ]
    reward = ", reward" if card["reads_reward"] else ""
    return [
        "## Use",
        "",
        "`act.py` needs numpy and onnxruntime alone. Call `reset()` at the start of each episode.",
        "",
        "```python",
        "from act import Actor",
        "",
        "actor = Actor()",
        f"action = actor.act(observation{reward})",
        "```",
        "",
    ]


def _proof(parity: Mapping[str, Any]) -> str:
    """Return a sentence with the result of the proof."""
    kind = "observations of the environment" if parity["source"] == "environment" else "random observations"
    text = f"{parity['observations']:,} {kind} went through the policy and through this file, and gave the same actions"
    if parity["largest_difference"]:
        text += f" (continuous ones within {parity['largest_difference']:.1g})"
    if parity["ties"]:
        text += f"; {parity['ties']} choices were as good as another, up to the rounding of float32"
    return text + "."


def _port_row(name: str, shape: list[int], dtype: str) -> str:
    shown = markdown_text(f"[{', '.join(map(str, ['B', *shape]))}]")
    return f"| {markdown_code(name)} | {shown} | {markdown_text(dtype)} |"


def pretrained_card(facts: Mapping[str, Any]) -> str:
    """Return README.md for a policy that `save_pretrained` wrote."""
    lines = [
        *front_matter(facts),
        f"# {markdown_text(title(facts))}",
        "",
        *_origin(facts),
        "",
        "## Use",
        "",
        "```python",
        "from lockstep import Policy",
        "",
        "policy = Policy.from_pretrained(folder_or_repository)",
        "action = policy.compute_single_action(observation)",
        "```",
        "",
    ]
    return "\n".join(lines)
