"""Answers that are kept by the bytes they take."""

from tiles.plan.recent import Recent


def test_the_least_recently_asked_goes_first() -> None:
    found: list[str] = []

    def ask(recent: Recent[str], key: str) -> str:
        def find() -> str:
            found.append(key)
            return key * 4

        return recent.get(key, find)

    recent = Recent[str](8, len)
    assert [ask(recent, key) for key in "aba"] == ["aaaa", "bbbb", "aaaa"]
    assert found == ["a", "b"]
    ask(recent, "c")  # drops b: a was asked since
    ask(recent, "a")
    assert found == ["a", "b", "c"]
    ask(recent, "b")
    assert found == ["a", "b", "c", "b"]


def test_what_takes_more_than_all_may_is_found_again() -> None:
    calls: list[int] = []
    recent = Recent[list[int]](2, len)
    for _ in range(2):
        assert recent.get("long", lambda: calls.append(1) or [1, 2, 3]) == [1, 2, 3]
    assert len(calls) == 2
