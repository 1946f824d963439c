"""Rows and comparisons with made-up numbers."""

import dataclasses
from typing import Any

from probmcl.experiments.results import Comparison, Row

NOT_COMPARED_WITH_PROBE = dict.fromkeys(("gain", "gain_interval", "gain_p"))
NOT_COMPARED_WITH_BEST = dict.fromkeys(("behind", "behind_interval", "behind_p"))


def made_row(name: str = "bce", head: str = "own head", mAP: float = 0.80, **other: Any) -> Row:  # noqa: N803
    """Make a row without significant differences from the probe and the best; `other` overrides fields."""
    fields: dict[str, Any] = {
        "name": name,
        "head": head,
        "method": name.partition(":")[0],
        "seeds": 3,
        "best_head": True,
        "validation": mAP,
        "mAP": mAP,
        "interval": (mAP - 0.012, mAP + 0.011),
        "macro_auroc": mAP + 0.15,
        "over_seeds": 0.001,
        "gain": 0.002,
        "gain_interval": (-0.004, 0.008),
        "gain_p": 0.6,
        "behind": 0.001,
        "behind_interval": (-0.005, 0.007),
        "behind_p": 0.7,
        "CP": mAP - 0.05,
        "CR": mAP - 0.08,
        "CF1": mAP - 0.065,
        "OP": mAP - 0.02,
        "OR": mAP - 0.04,
        "OF1": mAP - 0.03,
        "macro_F1": mAP - 0.07,
        "jaccard_at_10": mAP - 0.2,
        "retrieval_mAP": mAP - 0.3,
        "probability_jaccard_at_10": mAP - 0.1,
        "probability_mAP": mAP - 0.15,
        "learning_rate": 0.0003,
        "weight_decay": 0.0001,
        "images_seen": 24_000,
        "seconds": 600.0,
        "parameters": 3_396_628,
        "gmac": 0.381,
        "training_speed": 61.3,
        "prediction_speed": 188.0,
        "peak_memory": 912_000_000,
        "fidelity": "standard",
        "reference": "",
        "fingerprint": "0123456789ab",
        "note": "",
        "emits_set": False,
    }
    return Row(**{**fields, **other})


def made_frozen(mAP: float = 0.79, **other: Any) -> Row:  # noqa: N803
    """Make the row of the frozen probe, which is not trained and has no gain."""
    fields: dict[str, Any] = {
        "method": None,
        "learning_rate": None,
        "weight_decay": None,
        "images_seen": 0,
        "seconds": 40.0,
        **NOT_COMPARED_WITH_PROBE,
        **NOT_COMPARED_WITH_BEST,
    }
    return made_row("frozen probe", "frozen", mAP, **{**fields, **other})


def made_best(name: str = "asl", head: str = "own head", mAP: float = 0.82, **other: Any) -> Row:  # noqa: N803
    """Make the row of the best method on validation, which is significantly better than the probe."""
    fields: dict[str, Any] = {
        "gain": 0.03,
        "gain_interval": (0.02, 0.04),
        "gain_p": 0.004,
        **NOT_COMPARED_WITH_BEST,
    }
    return made_row(name, head, mAP, **{**fields, **other})


def made_comparison(*rows: Row, **other: Any) -> Comparison:
    """Make a tuned comparison of three seeds; `other` overrides fields."""
    fields: dict[str, Any] = {
        "rows": rows,
        "seeds": 3,
        "trials": 4,
        "images_seen": 24_000,
        "test_images": 4952,
        "groups": None,
        "classes": 20,
        "encoder": "tf_efficientnet_lite0",
        "data": "voc",
        "left_out": (),
        "draws": 2000,
        "chance": 0.071,
    }
    return Comparison(**{**fields, **other})


def demo_comparison() -> Comparison:
    """Make twelve rows, including a preset, an external method and one worse than the probe; one method is left out."""
    seeded: dict[str, Any] = {"over_seeds": 0.0021}
    second_head: dict[str, Any] = {"best_head": False, "gain_p": None, "behind_p": None} | seeded
    worse_than_probe: dict[str, Any] = {"gain": -0.021, "gain_interval": (-0.034, -0.009), "gain_p": 0.012}
    far_behind: dict[str, Any] = {"behind": 0.049, "behind_interval": (0.036, 0.062), "behind_p": 0.006}
    better_than_probe: dict[str, Any] = {"gain": 0.025, "gain_interval": (0.014, 0.037), "gain_p": 0.006}
    asl: dict[str, Any] = {"fidelity": "authors' code, our settings", "reference": "ridnik2021asl"}
    probmcl: dict[str, Any] = {"fidelity": "paper", "reference": "sajedi2024probmcl"}
    ml_gcn: dict[str, Any] = {"fidelity": "partly reconstructed", "reference": "chen2019mlgcn"}
    return made_comparison(
        made_row("bce", "re-probed", 0.809, seconds=645.0, **second_head),
        made_best("asl", "own head", 0.8213, seconds=610.0, **asl, **seeded),
        made_row("asl", "re-probed", 0.817, seconds=655.0, **asl, **second_head),
        made_row("bce", "own head", 0.8151, seconds=600.0, **better_than_probe, **seeded),
        made_frozen(0.7912, over_seeds=0.0003),
        made_row("probmcl", "re-probed", 0.8162, seconds=1410.0, **probmcl, **better_than_probe, **seeded),
        made_row(
            "probmcl:paper", "re-probed", 0.772, seconds=1380.0, **probmcl, **worse_than_probe, **far_behind, **seeded
        ),
        made_row("ml_gcn", "own head", 0.8097, seconds=820.0, **ml_gcn, **seeded),
        made_row("ml_gcn", "re-probed", 0.8012, seconds=866.0, **ml_gcn, **second_head),
        made_row("csra", "own head", 0.8155, seconds=702.0, interval=None, gmac=None, **second_head),
        made_row("csra", "re-probed", 0.818, seconds=745.0, jaccard_at_10=None, **better_than_probe, **seeded),
        made_row(
            "own_loss.py:my_loss & more",
            "own head",
            0.8141,
            seconds=590.0,
            fidelity="own",
            **better_than_probe,
            **seeded,
        ),
        trials=1,
        left_out=("kmcl diverged at step 40 with each of its learning rates.",),
    )


def stored_comparison() -> Comparison:
    """Make the comparison of tests/report/expected, with notes, groups, and names that need escaping."""
    demo = demo_comparison()
    noted = made_row("pla", note="it ranks a_set", emits_set=True, gain_p=0.0004)
    return dataclasses.replace(demo, rows=(*demo.rows, noted), groups=321, data="My photos & more")
