"""The options of every command, the settings of a run that they resolve to, and recipes.

Importing this package does not import torch: names are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmcl.settings.schema import (
        AUTO,
        CONFIG_FILE,
        CPU_ENCODER,
        DEFAULT_VIEWS,
        GPU_ENCODER,
        EncoderSettings,
        MethodSpec,
        ProbeSettings,
        Settings,
        TrainingJob,
        Tune,
        ValueOrigin,
        default_training,
        find_recipe,
        job_key,
        job_name,
        make_settings,
        method_settings,
        option_keys,
        parse_duration,
        read_recipe,
        read_settings,
        recipes,
        refuse_unnamed,
        short_name,
    )

__all__ = [
    "AUTO",
    "CONFIG_FILE",
    "CPU_ENCODER",
    "DEFAULT_VIEWS",
    "GPU_ENCODER",
    "EncoderSettings",
    "MethodSpec",
    "ProbeSettings",
]
__all__ += ["Settings", "TrainingJob", "Tune", "ValueOrigin", "default_training", "find_recipe", "job_key", "job_name"]
__all__ += ["make_settings", "method_settings", "option_keys", "parse_duration", "read_recipe", "read_settings"]
__all__ += ["recipes", "refuse_unnamed", "short_name"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("probmcl.settings.schema"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
