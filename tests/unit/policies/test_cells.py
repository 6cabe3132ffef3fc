import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.tenants import name_of, next_identity
from pentimento.policies.cells import CellMap, cell_tag, read_cells, rendezvous, tagged_digits

ABC = read_cells(("a=host-a:1", "b=host-b:1", "c=host-c:1"), ("a+b+c", "a+b"))
NAMES = st.lists(st.from_regex("[a-z]{1,8}", fullmatch=True), min_size=1, max_size=8, unique=True)
TENANTS = st.text(max_size=40)


def heaviest(tenant: str, names: list[str]) -> str:
    """Return the cell by an independent implementation: the heaviest one, by integers and a loop."""
    best, weight = "", -1
    for name in names:
        digest = hashlib.new("blake2b", name.encode() + bytes(1) + tenant.encode(), digest_size=8).hexdigest()
        if (int(digest, 16), name) > (weight, best):
            best, weight = name, int(digest, 16)
    return best


@given(tenant=TENANTS, names=NAMES)
def test_rendezvous_equals_an_independent_implementation(tenant: str, names: list[str]) -> None:
    assert rendezvous(tenant, names) == heaviest(tenant, names)


@given(tenant=TENANTS, names=NAMES)
def test_rendezvous_of_names_in_another_order_is_the_same(tenant: str, names: list[str]) -> None:
    assert rendezvous(tenant, names) == rendezvous(tenant, names[::-1])


@given(tenant=TENANTS, names=NAMES)
def test_rendezvous_with_an_added_name_moves_tenants_to_it_only(tenant: str, names: list[str]) -> None:
    before = rendezvous(tenant, names)
    assert rendezvous(tenant, [*names, "added-cell"]) in (before, "added-cell")


@pytest.mark.parametrize(
    ("tenant", "of_two", "of_three", "of_four"),
    [
        ("acme", "a", "a", "a"),
        ("globex", "b", "b", "b"),
        ("initech", "b", "b", "b"),
        ("umbrella", "b", "b", "d"),
        ("hooli", "a", "a", "a"),
        ("stark", "b", "b", "b"),
        ("wayne", "b", "b", "b"),
        ("tyrell", "a", "c", "d"),
    ],
)
def test_rendezvous_of_known_tenants_gives_the_published_cells(
    tenant: str, of_two: str, of_three: str, of_four: str
) -> None:
    assert [rendezvous(tenant, "abcd"[:count]) for count in (2, 3, 4)] == [of_two, of_three, of_four]


def test_tenant_stays_in_its_cell_with_another_identity() -> None:
    identities = [[next_identity(name, count) for count in range(20)] for name in ("acme", "tyrell", "a*b", "é")]

    found = [{(ABC.home(one), ABC.formers(one)) for one in same} for same in identities]

    assert found[:2] == [{("a", ())}, {("c", ("a",))}]
    assert [len(cells) for cells in found] == [1, 1, 1, 1]
    assert [name_of(one) for one in ("acme", "*2*acme", "*10*a*b", "*x*acme", "*acme", "2*acme")] == [
        *("acme", "acme", "a*b", "*x*acme", "*acme", "2*acme")
    ]


def test_rendezvous_of_many_tenants_gives_each_cell_its_share() -> None:
    counts = Counter(rendezvous(f"tenant-{number}", "abcd") for number in range(10_000))
    # Four standard deviations of a share of a quarter.
    assert all(abs(counts[name] - 2500) < 174 for name in "abcd")


def test_rendezvous_of_no_names_is_empty() -> None:
    assert rendezvous("acme", ()) == CellMap().home("acme") == ""


def test_formers_of_a_moved_tenant_are_its_earlier_cells() -> None:
    moved = [name for name in map(str, range(30)) if ABC.home(name) == "c"]
    assert moved
    assert all(ABC.formers(name) == (rendezvous(name, ("a", "b")),) for name in moved)
    assert all(ABC.formers(name) == () for name in map(str, range(30)) if name not in moved)


@pytest.mark.parametrize("form", ["r-{}", "p3-{}", "p3-{}-2"])
def test_cell_of_an_id_is_the_cell_that_made_it(form: str) -> None:
    assert [ABC.cell_of(form.format(tagged_digits(name))) for name in "abc"] == ["a", "b", "c"]
    assert ABC.cell_of(form.format(tagged_digits("d"))) == ""


@pytest.mark.parametrize("request_id", ["", "r-", "r-" + cell_tag("a"), "x-" + cell_tag("a") + "0" * 24])
def test_cell_of_another_id_is_unknown(request_id: str) -> None:
    assert ABC.cell_of(request_id) == ""


def test_digits_without_a_cell_are_random() -> None:
    assert len(tagged_digits("")) == len(tagged_digits("a")) == 32
    assert tagged_digits("a")[:8] == cell_tag("a")
    assert len({tagged_digits("")[:8] for _ in range(8)}) > 1


def test_wrong_cell_names_the_cell_and_its_address() -> None:
    error = ABC.wrong_cell("b")
    assert (error.reason, error.metadata) == ("WRONG_CELL", {"cell": "b", "address": "host-b:1"})


@pytest.mark.parametrize(
    ("addresses", "lists", "message"),
    [
        (("a",), (), "--cells must be NAME=ADDRESS, a name of 1 to 40 lower-case letters, digits and hyphens, got 'a'"),
        (
            ("a=",),
            (),
            "--cells must be NAME=ADDRESS, a name of 1 to 40 lower-case letters, digits and hyphens, got 'a='",
        ),
        (("A=x:1",), (), "--cells must be NAME=ADDRESS, a name of 1 to 40 lower-case letters"),
        ((f"{'a' * 41}=x:1",), (), "--cells must be NAME=ADDRESS, a name of 1 to 40 lower-case letters"),
        (("a=x:1", "a=y:1"), (), "--cells must name each cell once, got a twice"),
        (("a=x:1",), ("a+b",), "--cell-lists must name cells of --cells, got 'b'"),
        (("a=x:1",), ("",), "--cell-lists must name cells of --cells, got ''"),
        (("a=x:1",), ("a+a",), "--cell-lists must name each cell of a list once, got 'a+a'"),
    ],
)
def test_read_cells_rejects_wrong_items_by_name(
    addresses: tuple[str, ...], lists: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        read_cells(addresses, lists)
    assert str(caught.value).startswith(message)
