"""What an installation gets: files that are no Python come along too."""

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
DATA = {".html", ".css", ".js", ".svg", ".proto", ".typed", ".pyi"}


def test_the_wheel_holds_the_status_page_and_all_else_that_is_no_python() -> None:
    packed = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    tops = {"forebay": "client", "forebay_core": "core", "forebay_server": "server", "forebay_protos": "protos"}
    there = {
        str(path.relative_to(ROOT / base))
        for package, base in tops.items()
        for path in (ROOT / base / package).rglob("*")
        if path.suffix in DATA
    }
    assert {f"forebay_server/web/page/{name}" for name in ("index.html", "page.css", "page.js", "icon.svg")} <= there
    assert there <= packed
