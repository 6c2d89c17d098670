"""Weights laid out for a target, by what they were made from."""


class WeightStore:
    """Weights laid out for a target, shared by all models made from the same parameters."""

    def __init__(self) -> None:
        self._packed: dict[tuple[object, ...], object] = {}

    def get(self, key: tuple[object, ...]) -> object | None:
        """What was stored under `key`, or None."""
        return self._packed.get(key)

    def put(self, key: tuple[object, ...], value: object) -> None:
        """Store a weight that is not there yet."""
        assert key not in self._packed
        self._packed[key] = value
