from pof.terminal.text_table import text_table


def test_by_hand() -> None:
    table = text_table(
        ("weight", "count", "alpha"),
        [("conv.weight", 1234567, 0.123456), ("fc", 7, 2.0)],
    )
    assert table.splitlines() == [
        "weight           count   alpha",
        "conv.weight  1,234,567  0.1235",
        "fc                   7       2",
    ]


def test_a_column_with_any_text_stays_left_and_lines_have_no_trailing_spaces() -> None:
    table = text_table(("a", "b", ""), [("x", 10, ""), ("yy", "none", "tied"), ("z", None, "")])
    assert table.splitlines() == [
        "a   b",
        "x   10",
        "yy  none  tied",
        "z   None",
    ]


def test_a_header_wider_than_its_column() -> None:
    assert text_table(("numbers", "words"), [(1, "a")]).splitlines() == ["numbers  words", "      1  a"]


def test_no_rows_is_the_header() -> None:
    assert text_table(("name", "zeros"), []) == "name  zeros"


def test_rows_may_come_from_a_generator() -> None:
    assert text_table(("n",), ((n,) for n in (1, 10))).splitlines() == [" n", " 1", "10"]
