"""Options that several commands have, so that they are called and explained the same everywhere."""

from typing import Annotated

import typer

AddressOption = Annotated[
    str | None, typer.Option(help="The daemon's socket; else as a trainer finds it.", metavar="unix:PATH")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
