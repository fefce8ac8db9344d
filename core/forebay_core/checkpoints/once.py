"""Writing an object that only one writer may have written: what every decision, claim and ledger part rests on."""

from forebay_core.checkpoints.requests import Get, Procedure, Put, PutIfAbsent
from forebay_core.errors import ForebayError, SourceUnreachable


def put_once(key: str, body: bytes, *, conditional: bool = True) -> Procedure[bytes]:
    """The bytes that hold at the key: these, or those that were there before.

    "Something is there" and every failure may hide our own success: what is there is read back, and tells.

    conditional: False where the store does not know put-if-absent. Then the caller must be the only writer of the key.
    Raises what the write raised where nothing is there; it may still be applied later, so the caller repeats it.
    """
    failure: ForebayError | None = None
    try:
        if conditional:
            if (yield PutIfAbsent(key, body)):
                return body
        else:
            held: bytes | None = yield Get(key)
            if held is not None:
                return held
            yield Put(key, body)
    except ForebayError as error:
        failure = error
    there: bytes | None = yield Get(key)
    if there is None:
        raise failure or SourceUnreachable(f"{key}: the store says that it is there, and does not find it: try again")
    return there
