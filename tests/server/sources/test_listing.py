"""Which objects a source is: prefixes, globs, lists and single objects, over a bucket and over a directory."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, BadObject, SourceNotFound, SourceUnreachable
from forebay_core.locations import Source
from forebay_server.sources.listing import Listing, list_objects
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket


class Place:
    """A bucket or a directory, filled and listed alike."""

    def __init__(self, root: str, stores: Stores, put: Callable[[str, bytes], None]) -> None:
        self.root = root
        self.stores = stores
        self.put = put

    def fill(self, *keys: str) -> None:
        for key in keys:
            self.put(key, b"x")

    def listing(self, *urls: str) -> Listing:
        return asyncio.run(list_objects(self.stores, Source(tuple(f"{self.root}/{url}" for url in urls))))

    def keys(self, *urls: str) -> list[str]:
        return [obj.key for obj in self.listing(*urls).objects]


@pytest.fixture
def in_bucket(bucket: Bucket) -> Place:
    stores = Stores(bucket.server.environment(), RemoteCounters())
    return Place(f"s3://{bucket.name}", stores, bucket.put)


@pytest.fixture
def in_directory(tmp_path: Path) -> Place:
    def put(key: str, data: bytes) -> None:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)

    return Place(f"file://{tmp_path}", Stores({}, RemoteCounters()), put)


@pytest.fixture(params=["in_bucket", "in_directory"])
def place(request: pytest.FixtureRequest) -> Place:
    chosen = request.getfixturevalue(str(request.param))
    assert isinstance(chosen, Place)
    return chosen


def test_a_prefix_holds_what_lies_below_it_in_the_order_of_key_bytes(place: Place) -> None:
    place.fill("train/b.parquet", "train/a/z.parquet", "train/a-b.parquet", "train/é.parquet", "training/x.parquet")
    assert place.keys("train") == ["a-b.parquet", "a/z.parquet", "b.parquet", "é.parquet"]
    assert place.keys("train/") == place.keys("train")


def test_hidden_and_bookkeeping_names_are_left_out_below_a_prefix(place: Place) -> None:
    place.fill("t/a.parquet", "t/_SUCCESS", "t/.a.parquet.crc", "t/_delta_log/0.json", "t/k=1/b.parquet")
    assert place.keys("t") == ["a.parquet", "k=1/b.parquet"]


def test_a_glob_chooses_among_them(place: Place) -> None:
    place.fill("t/a.parquet", "t/b.txt", "t/c/d.parquet", "t/c/_e.parquet")
    assert place.keys("t/*.parquet") == ["a.parquet"]
    assert place.keys("t/**/*.parquet") == ["a.parquet", "c/d.parquet"]


def test_one_object_has_the_directory_around_it_as_its_root(place: Place) -> None:
    place.fill("t/a.parquet", "t/plain")
    for name in ("a.parquet", "plain"):
        found = place.listing(f"t/{name}")
        assert [obj.key for obj in found.objects] == [name]
        assert found.source.root == f"{place.root}/t"


def test_a_directory_may_have_the_extension_of_a_format(place: Place) -> None:
    place.fill("t/table.parquet/part-0.parquet", "t/table.parquet/_SUCCESS")
    found = place.listing("t/table.parquet")
    assert [obj.key for obj in found.objects] == ["part-0.parquet"]
    assert found.source.root == f"{place.root}/t/table.parquet"


def test_an_object_named_itself_may_be_hidden(place: Place) -> None:
    place.fill("t/_a.parquet")
    assert place.keys("t/_a.parquet") == ["_a.parquet"]


def test_a_list_may_name_objects_directories_and_globs_and_holds_each_object_once(place: Place) -> None:
    place.fill("t/a.parquet", "t/b.parquet", "u/v/c.parquet", "w/d.parquet", "w/e.txt")
    urls = ["w/*.parquet", "t/b.parquet", "u", "u/v/c.parquet"]
    assert place.keys(*urls) == ["t/b.parquet", "u/v/c.parquet", "w/d.parquet"]


def test_a_name_missing_from_a_list_is_named(place: Place) -> None:
    place.fill("t/a.parquet")
    with pytest.raises(SourceNotFound, match=r"t/absent\.parquet"):
        place.keys("t/a.parquet", "t/absent.parquet")


def test_nothing_found_says_what_was_looked_for_and_what_was_passed_over(place: Place) -> None:
    place.fill("t/_SUCCESS", "t/.hidden", "u/a.txt")
    with pytest.raises(SourceNotFound, match=r"/t: nothing found: of the objects .* 2 have hidden"):
        place.keys("t")
    with pytest.raises(SourceNotFound, match=r"/u/\*\.parquet: nothing found: of the objects .* 1 do not match"):
        place.keys("u/*.parquet")
    with pytest.raises(SourceNotFound, match=r"/absent: "):
        place.keys("absent")
    with pytest.raises(SourceNotFound, match=r"/absent\.parquet: "):
        place.keys("absent.parquet")


def test_an_empty_object_is_listed_unless_it_marks_a_directory(place: Place) -> None:
    place.fill("t/a.parquet")
    place.put("t/empty.parquet", b"")
    place.put("t/marker", b"")
    assert place.keys("t") == ["a.parquet", "empty.parquet"]


def test_directory_markers_of_a_bucket_are_left_out(in_bucket: Place, bucket: Bucket) -> None:
    for marker in ("t/", "t/sub/", "t/dotted.parquet/"):
        bucket.put(marker, b"")
    in_bucket.fill("t/sub/a.parquet", "t/dotted.parquet/b.parquet")
    assert in_bucket.keys("t") == ["dotted.parquet/b.parquet", "sub/a.parquet"]


def test_a_key_that_cannot_be_addressed_is_named_and_not_passed_over(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    entry = (
        "<Contents><Key>{}</Key><Size>1</Size><ETag>x</ETag>"
        "<LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
    )
    body = "".join(map(entry.format, ["t/a.parquet", "t//b.parquet"]))
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{body}</ListBucketResult>".encode()
    counting_proxy.fault = lambda request: Fault(status=200, body=page) if not request.key else None
    stores = Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())
    with pytest.raises(BadObject, match=r"t//b\.parquet"):
        asyncio.run(list_objects(stores, Source((bucket.uri("t"),))))


def test_a_listing_that_breaks_goes_on_and_lists_each_object_once(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    names = [f"t/{number:05}.parquet" for number in range(1050)]
    for name in names:
        bucket.put(name, b"x")
    failed: list[str] = []

    def fail_the_second_page_twice(request: Request) -> Fault | None:
        if ("continuation-token" in request.query or "start-after" in request.query) and len(failed) < 2:
            failed.append(request.query)
            return Fault(status=503)
        return None

    counting_proxy.fault = fail_the_second_page_twice
    stores = Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())
    found = asyncio.run(list_objects(stores, Source((bucket.uri("t"),))))
    assert [f"t/{obj.key}" for obj in found.objects] == names
    assert stores.counters.retries == len(failed) == 2
    assert stores.counters.requests == len(counting_proxy.exchanges)


def test_an_object_can_be_named_where_listing_is_forbidden(bucket: Bucket, counting_proxy: CountingProxy) -> None:
    bucket.put("t/a.parquet", b"x")
    denied = b"<Error><Code>AccessDenied</Code></Error>"
    counting_proxy.fault = lambda request: None if request.key else Fault(status=403, body=denied)
    stores = Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())
    found = asyncio.run(list_objects(stores, Source((bucket.uri("t/a.parquet"),))))
    assert [obj.key for obj in found.objects] == ["a.parquet"]
    with pytest.raises(AccessDenied):
        asyncio.run(list_objects(stores, Source((bucket.uri("t"),))))


def test_a_login_page_in_place_of_a_listing_is_not_an_empty_prefix(
    bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    counting_proxy.fault = lambda request: Fault(status=200, body=b"<html>please log in</html>")
    stores = Stores(bucket.server.environment(endpoint=counting_proxy.endpoint), RemoteCounters())
    with pytest.raises(SourceUnreachable, match="does not answer as S3 does"):
        asyncio.run(list_objects(stores, Source((bucket.uri("t"),))))
