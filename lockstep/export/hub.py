"""Upload and download of policies for the Hugging Face Hub: folders with a checkpoint and a model card."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.export.exported import CHECKPOINT
from lockstep.export.model_card import pretrained_card
from lockstep.state.replace import clear_stale, move_into_place, temporary_sibling
from lockstep.tracking.records import write_json

CONFIG = "config.json"
README = "README.md"


def write_pretrained(path: str | Path, facts: Mapping[str, Any], save: Callable[[Path], Any]) -> Path:
    """Write a folder for the Hub, and return it. The folder appears when it is complete; an older one is replaced.

    Args:
        path: Folder to write.
        facts: Entries of `config.json`, from which the model card is made as well.
        save: Function that writes the checkpoint to a path.

    Raises:
        ValueError: the folder exists and holds other files.
    """
    target = Path(path).absolute()
    if target.exists():
        is_replaceable = target.is_dir() and ((target / CHECKPOINT).exists() or not any(target.iterdir()))
        if not is_replaceable:
            raise ValueError(f"{path} exists and holds something else; give another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_stale(target.parent)
    temporary = temporary_sibling(target)
    temporary.mkdir()
    try:
        save(temporary / CHECKPOINT)
        write_json(temporary / CONFIG, dict(facts))
        (temporary / README).write_text(pretrained_card(facts), encoding="utf-8")
        move_into_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def pretrained_checkpoint(name_or_path: str | Path, **options: object) -> Path:
    """Return the path of the checkpoint in a folder, or in a repository of the Hub after its download.

    Raises:
        ValueError: there is no such folder, or it has no checkpoint.
    """
    path = Path(name_or_path)
    if not path.exists():
        if path.is_absolute() or len(path.parts) != 2:
            raise ValueError(
                f"there is no folder {name_or_path}; give one of save_pretrained, or a repository user/name"
            )
        path = Path(_hub().snapshot_download(str(name_or_path), **options))
    if not (path / CHECKPOINT).is_dir():
        raise ValueError(
            f"{name_or_path} has no folder {CHECKPOINT}/; give what save_pretrained wrote (lockstep.load_policy reads "
            "runs and checkpoints)"
        )
    return path / CHECKPOINT


def upload_pretrained(save: Callable[[Path], Path], repo_id: str, **options: object) -> str:
    """Upload the folder that `save(path)` writes, and return the address of the repository."""
    hub = _hub()
    api = hub.HfApi(token=options.pop("token", None))
    with tempfile.TemporaryDirectory() as parent:
        folder = save(Path(parent) / "policy")
        address = str(api.create_repo(repo_id, exist_ok=True, **options))
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), commit_message="Upload a policy")
    return address


def _hub() -> Any:
    """Return the package huggingface_hub; `ImportError` says what to install."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(f"the Hub needs huggingface_hub: pip install huggingface_hub ({error})") from error
