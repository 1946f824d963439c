"""The commands of the command line."""

COMMANDS = {
    "check": ("probmcl.cli.check:check", "Check images and labels for problems before training."),
    "train": ("probmcl.cli.train:train", "Train a model on labeled images."),
    "compare": ("probmcl.cli.compare:compare", "Compare methods on your data."),
    "evaluate": ("probmcl.cli.evaluate:evaluate", "Evaluate a trained model on labeled images."),
    "predict": ("probmcl.cli.predict:predict", "Predict the classes of images."),
    "explain": ("probmcl.cli.explain:explain", "Show which parts of images labels were predicted from."),
    "calibrate": ("probmcl.cli.calibrate:calibrate", "Fit probabilities and thresholds again."),
    "report": ("probmcl.cli.report:report", "Write a page about a trained model."),
    "methods": ("probmcl.cli.methods:methods", "List the methods, or show the settings of one."),
    "encoders": ("probmcl.cli.encoders:encoders", "List encoders with their sizes and licenses."),
    "cost": ("probmcl.cli.cost:cost", "Show the parameters and operations of methods."),
    "demo": ("probmcl.cli.demo:demo", "Train and compare methods on generated images."),
}
"""The function of each command, and its summary in `probmcl --help`."""
