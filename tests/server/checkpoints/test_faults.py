"""Saving to a bucket whose store throttles, loses answers and breaks connections, through a real daemon."""

import os
from pathlib import Path

from forebay_core.checkpoints.documents import Decision, State
from tests.server.checkpoints.calls import DURABLE, node_of
from tests.server.checkpoints.desks import attempt, files_of
from tests.server.daemons import daemon
from tests.support.faults import Rule, Script
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket


def test_what_a_store_does_wrong_delays_a_checkpoint_and_loses_nothing(
    home: Path, bucket: Bucket, counting_proxy: CountingProxy
) -> None:
    """CASES 38 and 39."""
    busy = Fault(status=503, headers={"Retry-After": "0"})
    script = Script(
        Rule(busy, method="PUT", key=r"__1_0\.distcp$", times=2),
        Rule(Fault(drop=True, applied=True), method="PUT", key=r"ranks/00001\.json$", times=1),
        Rule(Fault(status=500, applied=True), method="PUT", key=r"\.metadata$", times=1),
        Rule(Fault(status=500, applied=True), method="PUT", key=r"commits/", times=1),
    )
    environment = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
    with daemon(home, env=environment) as running, node_of(running.socket, bucket.uri("run"), (0, 1), 2) as ranks:
        ranks.opened()
        counting_proxy.fault = script
        this = ranks.save(attempt(1))
        assert ranks.watch(this)[-1].phase == DURABLE
        assert script.struck == 5
        [found] = ranks.list(with_manifests=True).checkpoints
        assert (found.state, list(found.durable_ranks), found.reason) == ("committed", [0, 1], "")
    for rank in (0, 1):
        for name, content in files_of(this, rank).items():
            assert bucket.get(f"run/{this.key(name)}") == content
    assert Decision.decode(bucket.get(f"run/{this.decision}")).state is State.COMMITTED
