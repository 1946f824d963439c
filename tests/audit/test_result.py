"""The object that `probmcl.check` returns."""

import json
from pathlib import Path

import probmcl
from helpers import photographs
from probmcl.audit.findings import Finding
from probmcl.audit.result import DataAudit
from probmcl.audit.statistics import AuditStatistics, LabelCounts, RepeatedRows, SimilarImages, SplitCounts
from probmcl.console import Console

SPLITS = ["train"] * 20 + ["val"] * 4 + ["test"] * 6
BLOCKED = Finding("blocked", "missing", "1 of 3 images found, 2 missing:\n  a.jpg\nadd the files", ("a.jpg", "b.jpg"))
WARNING = Finding("warning", "imbalance", "imbalance: 300 positives of 'a', 1 of 'b'")


def audit_of(*findings: Finding) -> DataAudit:
    return DataAudit("photos", findings, AuditStatistics())


def test_check_returns_statistics_as_attributes(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", len(SPLITS), splits=SPLITS)
    (table.parent / "1.jpg").unlink()
    (table.parent / "2.jpg").write_bytes(b"")
    (table.parent / "4.jpg").write_bytes((table.parent / "3.jpg").read_bytes())
    audit = probmcl.check(table, workers=0, console=Console.quiet())
    assert (audit.data, audit.verdict, audit.ok) == (str(table), "blocked", False)
    assert audit.images == 28
    assert audit.splits == {"train": 18, "val": 4, "test": 6}
    assert set(audit.per_class) == set(photographs.CLASSES)
    assert [name.endswith("1.jpg") for name in audit.missing] == [True]
    ((image, reason),) = audit.unreadable.items()
    assert image.endswith("2.jpg")
    assert reason == "the file is empty"
    ((first, second),) = audit.exact_duplicates
    assert (first.endswith("3.jpg"), second.endswith("4.jpg")) == (True, True)
    assert "train 18 · val 4 · test 6" in audit.summary
    assert {finding.kind for finding in audit.findings if finding.level == "blocked"} == {"missing", "unreadable"}


def test_near_duplicates_are_the_confirmed_pairs() -> None:
    copies = SimilarImages(["a", "b"], ["train", "train"], distance=1, correlation=0.99, confirmed=True)
    others = SimilarImages(["c", "d"], ["train", "test"], distance=9, correlation=0.85, confirmed=False)
    audit = DataAudit("photos", (), AuditStatistics(near_duplicates=[copies, others]))
    assert audit.near_duplicates == [("a", "b")]


def test_the_verdict_follows_from_the_findings() -> None:
    verdicts = [(audit.verdict, audit.ok) for audit in (audit_of(), audit_of(WARNING), audit_of(WARNING, BLOCKED))]
    assert verdicts == [("fine", True), ("warnings", True), ("blocked", False)]


def test_repr_has_the_verdict_the_counts_and_the_first_line_of_each_finding() -> None:
    splits = SplitCounts(1000, 150, 50)
    statistics = AuditStatistics(summary="30 images", images=1200, splits=splits, per_class={"a": LabelCounts()})
    assert repr(DataAudit("photos", (BLOCKED, WARNING), statistics)).splitlines() == [
        "DataAudit('photos'): blocked",
        "  1,200 images, 1 class; train 1,000 · val 150 · test 50",
        "  findings: 1 blocked, 1 warning",
        "    blocked: 1 of 3 images found, 2 missing",
        "    warning: imbalance: 300 positives of 'a', 1 of 'b'",
    ]
    assert repr(audit_of()).splitlines() == ["DataAudit('photos'): fine", "  findings: none"]
    many = repr(audit_of(*[WARNING] * 9)).splitlines()
    assert (many[1], many[-1]) == ("  findings: 9 warnings", "    and 4 more")


def test_data_that_cannot_be_read_have_no_statistics(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("filename,labels\n0.jpg\n")
    audit = probmcl.check(tmp_path / "labels.csv", workers=0, console=Console.quiet())
    assert (audit.verdict, audit.summary, audit.images) == ("blocked", "", 0)
    assert (dict(audit.splits), dict(audit.per_class), dict(audit.unreadable)) == ({}, {}, {})
    assert audit.to_dict().keys() == {"data", "findings", "verdict"}
    assert (audit.statistics.images, audit.statistics.splits.train, audit.statistics.sizes.width) == (0, 0, None)
    assert (dict(audit.statistics), audit.statistics.get("images")) == ({}, None)


def test_rows_that_repeat_an_image_are_the_only_statistics_of_data_that_cannot_be_read() -> None:
    rows = RepeatedRows([(2, 4)], [(3, 5)])
    audit = DataAudit("photos", (BLOCKED,), AuditStatistics(repeated_rows=rows))
    assert dict(audit.statistics) == {"duplicated_rows": [(2, 4)], "conflicting_rows": [(3, 5)]}
    assert list(audit.to_dict()) == ["data", "duplicated_rows", "conflicting_rows", "findings", "verdict"]


def test_json_has_all_statistics_and_findings(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", len(SPLITS), splits=SPLITS)
    audit = probmcl.check(table, workers=0, console=Console.quiet())
    audit.to_json(tmp_path / "check.json")
    content = json.loads((tmp_path / "check.json").read_text())
    assert list(content) == ["data", *audit.statistics, "findings", "verdict"]
    assert [finding["text"] for finding in content["findings"]] == [finding.text for finding in audit.findings]
