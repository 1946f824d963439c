"""The options of every command, the settings of a run that they resolve to, and recipes.

Importing this package does not import torch: names are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmcl.settings.build import (
        AUTO,
        CONFIG_FILE,
        CPU_ENCODER,
        DEFAULT_VIEWS,
        GPU_ENCODER,
        default_training,
        make_settings,
        option_keys,
        parse_duration,
        read_settings,
        refuse_unnamed,
    )
    from probmcl.settings.options import Tune
    from probmcl.settings.recipe_files import find_recipe, read_recipe, recipes
    from probmcl.settings.schema import (
        EncoderSettings,
        MethodSpec,
        ProbeSettings,
        Settings,
        TrainingJob,
        ValueOrigin,
        job_key,
        job_name,
        method_settings,
        short_name,
    )

__all__ = ["AUTO", "CPU_ENCODER", "DEFAULT_VIEWS", "GPU_ENCODER", "EncoderSettings", "MethodSpec", "ProbeSettings"]
__all__ += ["Settings", "TrainingJob", "Tune", "ValueOrigin", "default_training", "find_recipe", "job_key", "job_name"]
__all__ += ["make_settings", "method_settings", "option_keys", "parse_duration", "read_recipe"]
__all__ += ["CONFIG_FILE", "read_settings", "recipes", "refuse_unnamed", "short_name"]

_MODULES = ("options", "recipe_files", "schema", "build")
"""The modules that define these names, from light to heavy."""


def __getattr__(name: str) -> Any:
    """Import a public name of this package when it is first used."""
    if name in __all__:
        for module in _MODULES:
            found = vars(import_module(f"probmcl.settings.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
