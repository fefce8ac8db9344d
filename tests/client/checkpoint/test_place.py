"""The place of the last optimizer step: with gradient accumulation, and whatever the user draws in between."""

from collections.abc import Callable
from typing import Any

from forebay.checkpoint.place import Places


class Loader:
    """Its state is how many batches it has handed out; tells who watches where it can."""

    def __init__(self) -> None:
        self.batches = 0
        self._told: list[Callable[[], None]] = []

    def next(self) -> None:
        for told in self._told:
            told()
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}


class Watched(Loader):
    def watch(self, told: Callable[[], None]) -> Callable[[], None]:
        self._told.append(told)
        return lambda: None


class Draws:
    """Stands for the random states: how often something was drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self) -> Any:
        return self.drawn


def random_of(places: Places) -> Any:
    return places.now().random


def started(loader: Loader, *, has_optimizers: bool = True) -> tuple[Places, Draws]:
    draws = Draws()
    places = Places(loader, draws, has_optimizers=has_optimizers)
    if isinstance(loader, Watched):
        loader.watch(places.asked)
    return places, draws


def test_a_step_for_each_batch_is_saved_with_all_that_was_drawn_until_the_save() -> None:
    for loader in (Watched(), Loader()):
        places, draws = started(loader)
        loader.next()
        places.stepped()
        draws.drawn = 5
        assert places.now().loader == {"batches": 1}
        assert random_of(places) == 5


def test_batches_since_the_last_step_are_not_in_the_weights_and_are_handed_out_again() -> None:
    for loader in (Watched(), Loader()):
        places, draws = started(loader)
        for number in range(1, 4):
            loader.next()
            draws.drawn = number
        places.stepped()
        loader.next()
        draws.drawn = 9
        place = places.now()
        assert (place.loader, random_of(places)) == ({"batches": 3}, 3)


def test_numbers_drawn_after_the_step_and_before_the_next_batch_belong_to_the_step() -> None:
    loader = Watched()
    places, draws = started(loader)
    loader.next()
    places.stepped()
    draws.drawn = 4
    loader.next()
    draws.drawn = 8
    assert random_of(places) == 4


def test_before_the_first_step_the_place_is_the_beginning() -> None:
    loader = Watched()
    places, _ = started(loader)
    loader.next()
    loader.next()
    assert places.now().loader == {"batches": 0}


def test_after_a_restore_the_place_is_there() -> None:
    loader = Watched()
    places, _ = started(loader)
    loader.next()
    loader.batches = 50
    places.moved()
    loader.next()
    assert places.now().loader == {"batches": 50}


def test_without_a_loader_the_random_states_of_the_save_count() -> None:
    draws = Draws()
    places = Places(None, draws)
    places.stepped()
    draws.drawn = 3
    assert (places.now().loader, random_of(places)) == (None, 3)


def test_without_optimizers_all_that_was_handed_out_is_applied() -> None:
    for loader in (Watched(), Loader()):
        places, draws = started(loader, has_optimizers=False)
        for number in range(1, 4):
            loader.next()
            draws.drawn = number
            assert (random_of(places), places.now().loader) == (number, {"batches": number})
            assert not places.is_behind


def test_saves_stay_behind_where_batches_are_handed_out_between_them_and_nothing_steps() -> None:
    loader = Watched()
    places, _ = started(loader)

    def saves_behind() -> bool:
        places.now()
        return places.is_behind

    for begins_anew in (places.stepped, places.moved):
        loader.next()
        loader.next()
        assert not saves_behind(), "gradients may accumulate before the first step"
        assert not saves_behind(), "saved twice at the same batch"
        loader.next()
        assert saves_behind()
        begins_anew()
        assert not saves_behind()


def test_a_loader_that_is_not_watched_is_behind_only_after_a_step() -> None:
    loader = Loader()
    places, _ = started(loader)
    found = []
    for number in range(6):
        loader.next()
        if number == 2:
            places.stepped()
        found.append((places.now().loader, places.is_behind))
    assert [place["batches"] for place, _ in found if place] == [1, 2, 3, 3, 3, 3]
    assert [is_behind for _, is_behind in found] == [False, False, False, False, True, True]
