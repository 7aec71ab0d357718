"""Stands in for a device that this machine lacks: tensors with values that the recorder takes for a device's."""

from __future__ import annotations

import torch


class DeviceTensor(torch.Tensor):
    """A tensor that the recorder must copy to read."""

    is_cpu = False
    device = torch.device("meta")

    def item(self) -> float:
        """Raise: a recorder must not call this."""
        raise AssertionError("the recorder has waited for the device")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        """Return its values on the host."""
        return self.as_subclass(torch.Tensor)
