"""A training's tensors in one safetensors file, with a text that says what they are, checksummed.

Knows networks and optimisers, not trials. There is no pickle in such a file.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

_TEXT, _CHECKSUM = "lp_sweep.checkpoint", "lp_sweep.crc32"
_LOSSES = "step_losses"


def write(
    path: Path,
    text: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step_losses: torch.Tensor,
) -> None:
    """Parameters, buffers and AdamW's averages by name, and `step_losses`."""
    state = {**_state(model, optimizer), _LOSSES: step_losses}
    _save(path, text, {name: value.detach().cpu().contiguous() for name, value in state.items()})


def _save(path: Path, text: str, tensors: dict[str, torch.Tensor]) -> None:
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        checksum = _add(checksum, name, tensors[name])
    save_file(tensors, path, metadata={_TEXT: text, _CHECKSUM: f"{checksum:08x}"})


def read_text(path: Path) -> str:
    """The text of a whole file. Raises ValueError or SafetensorError for any other."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if not {_TEXT, _CHECKSUM} <= set(metadata):
            raise ValueError("lp-sweep did not write it")
        text: str = metadata[_TEXT]
        checksum = zlib.crc32(text.encode())
        for name in sorted(file.keys()):
            checksum = _add(checksum, name, file.get_tensor(name))
    if f"{checksum:08x}" != metadata[_CHECKSUM]:
        raise ValueError("its checksum is wrong")
    return text


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Put the file's state into both, and give its `step_losses`.

    All of it or, on ValueError, nothing: when the file's tensors are not those of this network.
    """
    targets = dict(_named(model))
    with safe_open(path, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        wanted = {f"model.{name}": tuple(value.shape) for name, value in targets.items()}
        if wanted != {name: shape for name, shape in stored.items() if name.startswith("model.")}:
            raise ValueError("its tensors are not those of this network")
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(file.get_tensor(f"model.{name}"))
        for name, parameter in model.named_parameters():
            prefix = f"optimizer.{name}:"
            state = {key[len(prefix) :]: key for key in stored if key.startswith(prefix)}
            if state:
                optimizer.state[parameter] = {
                    key: file.get_tensor(full).to(parameter.device) for key, full in state.items()
                }
        step_losses: torch.Tensor = file.get_tensor(_LOSSES)
        return step_losses


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {f"model.{name}": value for name, value in _named(model).items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            found[f"optimizer.{names[id(parameter)]}:{key}"] = value
    return found


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers. Tied weights stand once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _add(checksum: int, name: str, tensor: torch.Tensor) -> int:
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(content.data, zlib.crc32(name.encode(), checksum))
