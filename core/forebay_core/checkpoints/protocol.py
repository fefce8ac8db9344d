"""The commit protocol on one page: what may be asked, by whom, and where to read the rules.

======================  =========================================================  ===========
procedure               who runs it                                                rules in
======================  =========================================================  ===========
claim, check_fenced     one rank at a start; before each save                      `claiming`
durable_ranks           the daemon of rank 0, before it uploads `.metadata`        `deciding`
commit                  every daemon that has uploaded its part; restore           `deciding`
abandon                 who gives an attempt up, before it deletes anything        `deciding`
quarantine              who finds damage                                           `deciding`
retire, sweep, collect  retention after a commit; people                           `deciding`, `collecting`, `retention`
list_checkpoints        restore (which makes a `picture` of it), people            `listing`, `candidates`
append, read_ledger     the checkpointer; audits                                   `ledger`
======================  =========================================================  ===========

All are procedures: generators that yield `requests` and do no I/O. An uploader that goes on after somebody abandoned
its attempt finds the decision when it commits; what it wrote meanwhile, a later `collect` deletes.
"""

from forebay_core.checkpoints.candidates import Candidate, Picture, Seen, is_whole, picture
from forebay_core.checkpoints.claiming import check_fenced, claim, newest_generation
from forebay_core.checkpoints.collecting import Plan, Removed, Undecided, collect, plan_of
from forebay_core.checkpoints.deciding import (
    Swept,
    abandon,
    commit,
    durable_ranks,
    quarantine,
    read_decision,
    retire,
    sweep,
)
from forebay_core.checkpoints.ledger import LedgerOfGeneration, append, read_ledger
from forebay_core.checkpoints.listing import Found, list_checkpoints
from forebay_core.checkpoints.requests import Delete, Get, GetMany, List, Listed, Procedure, Put, PutIfAbsent, Request
from forebay_core.checkpoints.retention import Retention, to_retire

__all__ = [
    "Candidate",
    "Delete",
    "Found",
    "Get",
    "GetMany",
    "LedgerOfGeneration",
    "List",
    "Listed",
    "Picture",
    "Plan",
    "Procedure",
    "Put",
    "PutIfAbsent",
    "Removed",
    "Request",
    "Retention",
    "Seen",
    "Swept",
    "Undecided",
    "abandon",
    "append",
    "check_fenced",
    "claim",
    "collect",
    "commit",
    "durable_ranks",
    "is_whole",
    "list_checkpoints",
    "newest_generation",
    "picture",
    "plan_of",
    "quarantine",
    "read_decision",
    "read_ledger",
    "retire",
    "sweep",
    "to_retire",
]
