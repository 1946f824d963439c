import json

import pytest
import torch

from made import label_space
from probmcl.encoders import Extracted
from probmcl.evaluation import multilabel_metrics
from probmcl.evaluation.evaluate import evaluate, predict
from probmcl.methods.bce import BCE

SCORES = torch.tensor([[0.9, 0.6, 0.1], [0.2, 0.7, 0.3], [0.85, 0.1, 0.4]])
LABELS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])


def test_it_has_the_parts_that_the_file_promises() -> None:
    result = evaluate(SCORES, LABELS, None, names=["a", "b", "c"], split="val")
    assert (result["split"], result["images"], result["classes"], result["classes_scored"]) == ("val", 3, 3, 2)
    assert set(result["at"]) == {"0.5", "0.8"}
    assert all(set(part) == {"CP", "CR", "CF1", "OP", "OR", "OF1"} for part in (*result["at"].values(), result["top3"]))


def test_numbers_are_those_of_the_metrics_and_fit_into_json() -> None:
    result = evaluate(SCORES, LABELS, None, names=["a", "b", "c"], split="val")
    assert result["ap"]["c"] is None  # no positive
    assert result["mAP"] == multilabel_metrics(SCORES, LABELS)["mAP"]
    assert result["at"]["0.8"]["OR"] == multilabel_metrics(SCORES, LABELS, threshold=0.8)["OR"]
    assert result["top3"]["OP"] == multilabel_metrics(SCORES, LABELS, top_k=3)["OP"]
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_note_is_there_only_if_something_is_to_be_said() -> None:
    plain, noted = (evaluate(SCORES, LABELS, None, names=list("abc"), split="val", note=n) for n in ("", "mind this"))
    assert noted == {**plain, "note": "mind this"}
    assert "note" not in plain


def test_nothing_to_score_is_none_and_no_error() -> None:
    result = evaluate(SCORES, torch.zeros_like(LABELS), None, names=["a", "b", "c"], split="val")
    assert result["mAP"] is None
    assert result["classes_scored"] == 0


def test_no_images_to_predict_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="no images to score; choose a split"):
        predict(BCE(Extracted(5), label_space()), [])
