"""What the programs in Python ask of the ids that they are given."""


class Ids:
    """The ids of one column."""

    def __init__(self):
        self.seen = set()

    def of_session(self, ids):
        """Ids in the order in which one session has taken them."""
        ids = list(ids)
        assert ids, "no id was returned"
        for id in ids:
            assert type(id) is int, f"{id!r} is not an int"
            assert 0 < id < 2**63 - 1, f"{id} is no id"
            assert id not in self.seen, f"{id} came twice"
            self.seen.add(id)
        assert ids == sorted(ids), f"not increasing: {ids}"

    def report(self):
        """What the runner counts."""
        print(f"checked {len(self.seen)} ids")
