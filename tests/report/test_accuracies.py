"""The table of accuracies as text."""

from shown import ROWS

from pof.report.accuracies import accuracy_table


def test_rows_of_two_scopes_are_told_apart() -> None:
    both = [{**row, "scope": scope} for scope in ("layer", "global") for row in ROWS]
    shown = accuracy_table(both, 500)
    assert "pruned at 0.9, layer" in shown
    assert "recovered 0.5-0.9, global" in shown
    assert "layer" not in accuracy_table(both[: len(ROWS)], 500)


def test_a_global_ranking_is_named() -> None:
    shown = accuracy_table([{**row, "scope": "global"} for row in ROWS], 500)
    assert shown.endswith("All layers are ranked together.")
