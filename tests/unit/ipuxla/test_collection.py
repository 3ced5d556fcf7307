"""The garbage collector, paused while programs are compiled."""

import gc

import pytest

from ipuxla.collection import collection_paused


@pytest.fixture
def collector():
    """Leave the collector as it was found."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def test_what_was_made_meanwhile_is_not_walked_as_new(collector):
    with collection_paused():
        assert not gc.isenabled()
        made = [[n] for n in range(2_000)]
    assert gc.isenabled()
    young = {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}
    assert not young & {id(x) for x in made}
    assert gc.get_freeze_count() == 0  # it is collected some day


def test_what_a_caller_has_frozen_stays_so(collector):
    kept = [object()]
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collection_paused():
        made = [kept]
    assert made
    assert gc.get_freeze_count() >= frozen - 100  # some die, none is put back
    assert frozen > 1_000


def test_a_collector_that_is_off_stays_off(collector):
    gc.disable()
    with pytest.raises(KeyError), collection_paused(), collection_paused():
        raise KeyError
    assert not gc.isenabled()
