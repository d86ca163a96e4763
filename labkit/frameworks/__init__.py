"""How do others say it? The same states and knobs in the words of the frameworks that people use."""

from labkit.frameworks.torch_amp import from_state_dict, state_dict

__all__ = ["from_state_dict", "state_dict"]
