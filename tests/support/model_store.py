"""A store that is a dict, for procedures of the commit protocol: what it holds can be looked at after every request."""

from collections.abc import Callable
from typing import TypeVar

from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Listed, Procedure, Put, PutIfAbsent, Request

T = TypeVar("T")


class ModelStore:
    """`objects`: key to bytes. Its clock shows one second more at each write."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.now = 1000.0
        self.requests: list[Request] = []

    def answer(self, request: Request) -> object:
        self.requests.append(request)
        match request:
            case Get(key):
                return self.objects.get(key)
            case GetMany(keys):
                return tuple(self.objects.get(key) for key in keys)
            case Put(key, body):
                self.put(key, body)
                return None
            case PutIfAbsent(key, body):
                if key in self.objects:
                    return False
                self.put(key, body)
                return True
            case List(prefix):
                assert prefix.endswith("/")
                return tuple(
                    Listed(key, len(body), self.times[key])
                    for key, body in self.objects.items()
                    if key.startswith(prefix)
                )
            case Delete(keys):
                for key in keys:
                    self.objects.pop(key, None)
                return None

    def put(self, key: str, body: bytes) -> None:
        self.now += 1
        self.objects[key] = body
        self.times[key] = self.now


def run(procedure: Procedure[T], store: ModelStore, meddle: Callable[[Request], None] = lambda request: None) -> T:
    """Drives it to its end. `meddle` sees each request before it is answered, and may change the store or raise.

    What it raises is thrown into the procedure, as a driver does with a failure.
    """
    answer: object = None
    failure: Exception | None = None
    try:
        while True:
            request = procedure.send(answer) if failure is None else procedure.throw(failure)
            answer, failure = None, None
            try:
                meddle(request)
                answer = store.answer(request)
            except Exception as error:
                failure = error
    except StopIteration as end:
        result: T = end.value
        return result
