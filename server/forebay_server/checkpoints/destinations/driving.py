"""Runs a procedure of the commit protocol against a destination: carries requests there and answers back.

What the destination raises after its own retries is thrown into the procedure, which knows what to do about it. Runs on
the event loop; a procedure's steps are short.
"""

from typing import Any, TypeVar

from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Procedure, Put, PutIfAbsent, Request
from forebay_core.errors import ForebayError
from forebay_server.checkpoints.destinations.base import Destination

T = TypeVar("T")


async def drive(procedure: Procedure[T], destination: Destination) -> T:
    """The procedure's result. Raises what the procedure raises."""
    answer: Any = None
    failure: ForebayError | None = None
    try:
        while True:
            request = procedure.send(answer) if failure is None else procedure.throw(failure)
            answer = failure = None
            try:
                answer = await _answer(request, destination)
            except ForebayError as error:
                failure = error
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        procedure.close()


async def _answer(request: Request, destination: Destination) -> object:
    match request:
        case Get(key):
            return await destination.get(key)
        case GetMany(keys):
            return await destination.get_many(keys)
        case List(prefix):
            return await destination.list(prefix)
        case PutIfAbsent(key, body):
            return await destination.put_if_absent(key, body)
        case Put(key, body):
            await destination.put(key, body)
        case Delete(keys):
            await destination.delete(keys)
    return None
