"""The commands of the command line."""

COMMANDS = {
    "check": ("probmcl.cli.check:command", "Check images and labels for problems before training."),
    "train": ("probmcl.cli.train:command", "Train a model on labeled images."),
    "compare": ("probmcl.cli.compare:command", "Compare methods on your data."),
    "evaluate": ("probmcl.cli.evaluate:command", "Evaluate a trained model on labeled images."),
    "predict": ("probmcl.cli.predict:command", "Predict the classes of images."),
    "explain": ("probmcl.cli.explain:command", "Show which parts of images labels were predicted from."),
    "calibrate": ("probmcl.cli.calibrate:command", "Fit probabilities and thresholds again."),
    "report": ("probmcl.cli.report:command", "Write a page about a trained model."),
    "methods": ("probmcl.cli.methods:command", "List the methods, or show the settings of one."),
    "encoders": ("probmcl.cli.encoders:command", "List encoders with their sizes and licenses."),
    "cost": ("probmcl.cli.cost:command", "Show the parameters and operations of methods."),
    "demo": ("probmcl.cli.demo:command", "Train and compare methods on generated images."),
}
"""The function of each command, and its summary in `probmcl --help`."""
