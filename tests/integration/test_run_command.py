"""`forebay run` over real programs and real torchruns: restarts, crash loops, signals, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forebay.checkpoint.ledger import events_of
from forebay.run_command import supervision
from forebay.run_command.decision import Limits
from forebay.run_command.supervision import Supervisor
from forebay.run_progress import DIRECTORY_VARIABLE, ID_VARIABLE, tell, told
from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import DaemonUnavailable
from tests.integration import training
from tests.server.daemons import Daemon
from tests.support.processes import Process, eventually

SECONDS = 90.0
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
FIRST, SECOND = (Attempt(1, step, "0" * 12) for step in (10, 20))


def forebay_run(home: Path, *arguments: str) -> Process:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "forebay.cli", "run", *arguments]
    return Process(command, log=home / "run.log", limit_seconds=SECONDS, env=environment)


class Job:
    """Runs a program under a supervisor in this process. Its starts say `$1`, the number of the start, to a file."""

    def __init__(self, home: Path, program: str, limits: Limits, newest: Callable[[], Attempt | None]) -> None:
        self.starts, self.said = home / "starts", list[str]()
        counted = f"echo >> {self.starts}; n=$(wc -l < {self.starts}); {program}"
        environment = {**os.environ, ID_VARIABLE: home.name, DIRECTORY_VARIABLE: str(home)}
        self.supervisor = Supervisor(
            ["/bin/sh", "-c", counted], limits, environment=environment, newest=newest, say=self.say
        )

    def say(self, line: str) -> None:
        self.said.append(line)

    @property
    def count(self) -> int:
        return len(self.starts.read_text())


def quick(max_restarts: int, stalled_restarts: int = 3) -> Limits:
    return Limits(max_restarts, stalled_restarts, first_wait_seconds=0.01)


def test_a_job_that_fails_and_then_succeeds_has_done_its_work(home: Path) -> None:
    job = Job(home, "test $n = 3 || exit 5", quick(5), lambda: None)
    assert job.supervisor.run() == 0
    assert job.count == 3
    assert [line.partition(" in")[0] for line in job.said] == [
        f"the job has failed with exit status 5; restart {number} of 5" for number in (1, 2)
    ]


def test_a_job_that_commits_goes_on_as_often_as_it_may_and_a_crash_loop_does_not(home: Path) -> None:
    """CASES 38: a start that restores the same checkpoint and dies again is not repeated for ever."""
    committed = iter([None, FIRST, FIRST, FIRST, SECOND, SECOND, SECOND, SECOND, SECOND])
    job = Job(home, "kill -9 $$", quick(99), lambda: next(committed))
    assert job.supervisor.run() == 137
    assert job.count == 7
    assert "SIGKILL, and no new checkpoint was committed in 3 restarts" in job.said[-1]


def test_a_job_of_which_nobody_can_say_whether_it_gets_on_is_no_crash_loop(home: Path) -> None:
    def newest() -> Attempt | None:
        raise DaemonUnavailable("no daemon answers")

    job = Job(home, "exit 3", quick(5), newest)
    assert job.supervisor.run() == 3
    assert job.count == 6
    assert job.said.count("whether the job gets on cannot be said: no daemon answers") == 7


def test_nothing_is_started_after_a_signal_that_comes_between_two_starts(home: Path) -> None:
    job = Job(home, "exit 3", Limits(5, first_wait_seconds=3600.0), lambda: None)
    before = [signal.getsignal(number) for number in supervision.PASSED_ON]

    def told_to_stop(line: str) -> None:
        job.said.append(line)
        if "restart 1 of 5" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    job.supervisor._say = told_to_stop
    assert job.supervisor.run() == 143
    assert job.count == 1
    assert job.said[-1] == "told to stop: the job is not started again"
    assert [signal.getsignal(number) for number in supervision.PASSED_ON] == before


def test_a_job_goes_on_when_nobody_reads_any_more_what_is_said_of_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "forebay.cli", "run", "--max-restarts", "0", "--", "sh", "-c", "exit 7"]
    try:
        assert subprocess.run(command, stderr=writer, check=False, timeout=60).returncode == 7
    finally:
        os.close(writer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_status_is_the_jobs(number: signal.Signals, home: Path) -> None:
    program = f"trap 'exit 42' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    with forebay_run(home, "--", "/bin/sh", "-c", program) as process:
        eventually(lambda: "ready" in process.output(), SECONDS, "the job")
        process.signal(number)
        assert process.wait(SECONDS) == 42, process.output()
        assert "forebay run:" not in process.output()


def test_ranks_that_save_when_their_launcher_has_left_are_waited_for(home: Path) -> None:
    """CASES 39: a launcher that gets SIGTERM twice leaves at once."""
    saving = (
        f"trap '' TERM; echo ready; while kill -0 $1 2>/dev/null; do sleep 0.02; done; sleep 0.5; touch {home}/saved"
    )
    program = 'setsid /bin/sh -c "$1" rank $$ & trap "exit 42" TERM; while :; do sleep 0.05; done'
    with forebay_run(home, "--", "/bin/sh", "-c", program, "launcher", saving) as process:
        eventually(lambda: "ready" in process.output(), SECONDS, "the rank")
        process.signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 42, process.output()
        assert (home / "saved").exists()


def test_what_a_job_tells_of_its_commits_is_progress(home: Path) -> None:
    """The checkpointer tells through the environment; a program of the user's own is told of nothing."""
    program = home / "job.py"
    program.write_text(
        "import os, sys\n"
        "from forebay.run_progress import tell\n"
        "from forebay_core.checkpoints.names import Attempt\n"
        f"starts = open({str(home / 'starts')!r}, 'a+'); starts.write('x'); starts.seek(0)\n"
        "number = len(starts.read())\n"
        "if number <= 3: tell(Attempt(number, 10, '0' * 12), os.environ)\n"
        "sys.exit(9)\n"
    )
    options = ["--max-restarts", "9", "--stalled-restarts", "1"]
    with forebay_run(home, *options, "--", sys.executable, str(program)) as process:
        assert process.wait(SECONDS) == 9
        assert len((home / "starts").read_text()) == 4
        assert "committed in 1 restart: this is a crash loop" in process.output()
    assert told(home) is None
    tell(FIRST, {})
    tell(FIRST, {DIRECTORY_VARIABLE: str(home / "none")})
    tell(FIRST, {DIRECTORY_VARIABLE: str(home)})
    assert told(home) == FIRST
    (home / "committed.json").write_text("{")
    assert told(home) is None


def test_progress_is_seen_at_the_root_through_the_daemon(home: Path, node: Daemon) -> None:
    root = home / "root"
    commits = root / "commits"
    commits.mkdir(parents=True)
    bodies = {
        each.decision: Decision(each, State.COMMITTED, 1, "sha256:0").encode().decode() for each in (FIRST, SECOND)
    }
    (root / FIRST.decision).write_text(bodies[FIRST.decision])
    program = (
        f"echo >> {home}/starts; test $(wc -l < {home}/starts) = 1 && cp {home}/second {root}/{SECOND.decision}; exit 4"
    )
    (home / "second").write_text(bodies[SECOND.decision])
    options = ["--root", str(root), "--address", str(node.socket), "--stalled-restarts", "1", "--max-restarts", "9"]
    with forebay_run(home, *options, "--", "/bin/sh", "-c", program) as process:
        assert process.wait(SECONDS) == 4, process.output()
        assert "cannot be said" not in process.output()
        assert len((home / "starts").read_text()) == 2


def test_a_root_without_checkpoints_is_an_answer_and_said_once_after_the_first_start(home: Path, node: Daemon) -> None:
    """A first start has none, and a root with a slip of the pen in it has none either."""
    root = home / "root"
    options = ["--root", str(root), "--address", str(node.socket), "--max-restarts", "2"]
    with forebay_run(home, *options, "--", "/bin/sh", "-c", "exit 0") as process:
        assert process.wait(SECONDS) == 0, process.output()
        assert "forebay run:" not in process.output()
    with forebay_run(home, *options, "--", "/bin/sh", "-c", "echo the start; exit 4") as process:
        assert process.wait(SECONDS) == 4, process.output()
        said = process.output()
    assert "cannot be said" not in said
    assert said.count(f"no checkpoint yet at {root}: ") == 1
    assert said.index("the start") < said.index("no checkpoint yet") < said.rindex("the start")


def test_a_checkpointer_tells_of_its_commits_and_keeps_a_ledger(
    home: Path, data: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(home))
    job = training.Job(f"file://{home}/root", str(data), [address], steps=3, saves=[1], wrap="plain", wait="durable")
    training.alone(job)
    committed = told(home)
    assert committed is not None
    assert (committed.generation, committed.step) == (1, 1)
    assert (home / "root" / committed.decision).exists()
    parts = sorted((home / "root/ledger/g000001").iterdir())
    began, saved, ended = events_of(part.read_bytes() for part in parts)
    assert (began["event"], began["parent"], ended["event"]) == ("began", None, "ended")
    assert (saved["event"], saved["attempt"], saved["step"]) == ("saved", committed.name, 1)
    assert 0 < saved["staged_seconds"] < saved["local_seconds"] < saved["durable_seconds"]


DAEMON = """
import os
from forebay.daemon.client import DaemonClient
print("daemon", DaemonClient().status().process_id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_daemon_that_the_job_has_started_outlives_it(home: Path) -> None:
    """CASES 39: it finishes the uploads of a job that is dead."""
    with forebay_run(home, "--max-restarts", "1", "--", sys.executable, "-c", DAEMON) as process:
        assert process.wait(SECONDS) == 137, process.output()
        pids = {line.split()[1] for line in process.output().splitlines() if line.startswith("daemon")}
    assert len(pids) == 1, process.output()
    assert is_alive(pids.pop())


ORPHANS = """
import os, signal, subprocess, sys, time
home = sys.argv[1]
rank = os.environ["RANK"]
if os.path.exists(f"{home}/again"):
    sys.exit(0)
helper = subprocess.Popen(["sleep", "3600"], start_new_session=True)
with open(f"{home}/rank-{rank}", "w") as file:
    print(os.getpid(), helper.pid, file=file)
os.rename(f"{home}/rank-{rank}", f"{home}/left-{rank}")
while len([name for name in os.listdir(home) if name.startswith("left-")]) < 2:
    time.sleep(0.01)
if rank == "0":
    open(f"{home}/again", "w").close()
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(3600)
"""


def test_what_a_killed_torchrun_leaves_is_gone_before_the_next_start(home: Path) -> None:
    """CASES 45: no rank of an earlier start goes on beside a later one. Ranks and their helpers lead own sessions."""
    program = home / "rank.py"
    program.write_text(ORPHANS)
    torchrun = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", str(program), str(home)]
    with forebay_run(home, "--max-restarts", "1", "--", *torchrun) as process:
        assert process.wait(SECONDS) == 0, process.output()
        output = process.output()
    assert "torchrun is asked for 1 restarts of its own" in output
    assert "ended by SIGKILL; restart 1 of 1" in output
    assert "4 processes that the job has left running were killed" in output
    left = [pid for rank in (0, 1) for pid in (home / f"left-{rank}").read_text().split()]
    assert len(left) == 4
    assert [pid for pid in left if is_alive(pid)] == []


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PREEMPTED = """
import os, sys, time
import torch, torch.distributed as dist
from forebay.checkpoint.preemption import Preemption
from forebay.checkpoint.stopping import of_job
dist.init_process_group("gloo")
rank = dist.get_rank()
preemption = Preemption(of_job())
preemption.install()
number = torch.zeros(1)
for step in range(1, 100_000):
    dist.all_reduce(number)
    time.sleep(0.005 * rank)
    if step == 3:
        print("trains", flush=True)
    if preemption.due(step):
        dist.all_reduce(number)
        with open(f"{sys.argv[1]}/stopped-{rank}", "w") as file:
            print(step, file=file)
        preemption.leave(f"step {step} is saved")
"""


def test_sigterm_to_the_supervisor_lets_all_ranks_of_torchrun_save_the_same_step(home: Path) -> None:
    """CASES 39: no collective is left without a rank, whatever the skew, and nothing is started again."""
    program = home / "rank.py"
    program.write_text(PREEMPTED)
    torchrun = [*TORCHRUN, "--nproc-per-node", "3", str(program), str(home)]
    with forebay_run(home, "--max-restarts", "3", "--", *torchrun) as process:
        eventually(lambda: process.output().count("trains") == 3, SECONDS, "the ranks to train")
        process.signal(signal.SIGTERM)
        status = process.wait(SECONDS)
        output = process.output()
    assert status != 0, output
    steps = {(home / f"stopped-{rank}").read_text() for rank in range(3)}
    assert len(steps) == 1, steps
    assert output.count("is saved; leaving with exit status 143") == 3
    assert "forebay run:" not in output


ONE_OF_THEM = PREEMPTED.replace('print("trains", flush=True)', "rank == 1 and os.kill(os.getpid(), 15)")


def test_a_sigterm_to_one_rank_alone_ends_all_of_them_at_one_step(home: Path) -> None:
    program = home / "rank.py"
    program.write_text(ONE_OF_THEM)
    command: Sequence[str] = [*TORCHRUN, "--nproc-per-node", "2", str(program), str(home)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with Process(command, log=home / "run.log", limit_seconds=SECONDS, env=environment) as process:
        assert process.wait(SECONDS) == 1
        output = process.output()
    steps = [(home / f"stopped-{rank}").read_text() for rank in range(2)]
    assert steps[0] == steps[1]
    assert output.count("is saved; leaving with exit status 143") == 2


def test_the_help_names_the_options_and_a_wrong_call_has_status_2() -> None:
    command = [sys.executable, "-m", "forebay.cli", "run"]
    said = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(option in said for option in ("--max-restarts", "--stalled-restarts", "--root"))
    for wrong in ([], ["--max-restarts", "x", "true"], ["no-such-program"]):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, ""), wrong
    assert json.dumps(done.stderr) == json.dumps("forebay: no-such-program cannot be run: No such file or directory\n")
