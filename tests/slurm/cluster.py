"""A private SLURM cluster on this machine: own munged, slurmctld and one slurmd per emulated node, in one folder.

Nothing outside the folder is touched, and everything that was started is ended by its process id.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE
from tests.people import Person

BINARIES = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
DAEMONS = ("munged", "slurmd", "slurmdbd", "mariadbd")
GPUS = 8
MOST_JOBS = 3  # of a user in the queue, where there are accounts


def search_path() -> str:
    """PATH with the folders of daemons, which users often lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def why_not() -> str | None:
    """The reason why no cluster can be started here."""
    missing = [name for name in BINARIES if shutil.which(name, path=search_path()) is None]
    if missing:
        return f"SLURM is not installed (slurm-wlm, munge): no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "slurmd and munged of this set-up run as root"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A running cluster of unequal nodes; `env` is what commands need to find it."""

    def __init__(self, folder: Path, nodes: Sequence[str], rule: str = "", accounts: bool = False) -> None:
        self.folder, self.nodes, self.rule, self.accounts = folder, list(nodes), rule, accounts
        self.env = {"PATH": search_path(), "SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder)}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._controller: subprocess.Popen[bytes]
        self._of_node: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        (self.folder / "munge").mkdir(mode=0o700, parents=True)
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.folder / "slurm.conf").write_text(self._conf(), encoding="utf-8")
        for number in range(GPUS):  # files in place of devices: the scripts' --gpus-per-node=8 is granted
            (self.folder / f"gpu{number}").touch()
        prolog = self.folder / "prolog.sh"
        prolog.write_text(f"#!/bin/bash\n[ ! -e {self.folder}/prolog-fails-$SLURMD_NODENAME ]\n")
        prolog.chmod(0o755)
        (self.folder / "job_submit.lua").write_text(self.rule, encoding="utf-8")
        gres = f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n"
        (self.folder / "gres.conf").write_text(gres, encoding="utf-8")
        munge = self.folder / "munge"
        self._spawn(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._until(lambda: (munge / "socket").exists(), "munged's socket")
        if self.accounts:
            self._keep_accounts()
        self._controller = self._spawn("slurmctld", "-D")
        for node in self.nodes:
            self.raise_node(node)
        self._until(
            lambda: self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", str(len(self.nodes))], "idle nodes"
        )

    def _keep_accounts(self) -> None:
        """A data base of our own, and slurmdbd before it. The user root may have MOST_JOBS jobs in the queue."""
        data, sql, port = self.folder / "db", free_port(), free_port()
        make = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db"]
        subprocess.run(make, env=self.env, capture_output=True, check=True, timeout=PATIENCE)
        self._spawn(
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={self.folder}/db.socket",
            f"--port={sql}", "--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-log-bin",
            "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        self._until(lambda: (self.folder / "db.socket").exists(), "MariaDB's socket")
        host, secret = socket.gethostname().split(".")[0], f"{self.folder}/munge/socket"
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write(
                f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePort={port}\nAccountingStoragePass={secret}\nAccountingStorageTRES=gres/gpu\n"
                "AccountingStorageEnforce=associations,limits,qos\nJobAcctGatherType=jobacct_gather/linux\n"
            )
        dbd = self.folder / "slurmdbd.conf"
        dbd.touch(mode=0o600)
        dbd.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={secret}\nDbdHost={host}\nDbdAddr=127.0.0.1\nDbdPort={port}\n"
            f"SlurmUser=root\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={sql}\n"
            f"StorageUser=slurm\nStorageLoc=accounts\nCommitDelay=1\nLogFile={self.folder}/slurmdbd.log\n"
            f"PidFile={self.folder}/slurmdbd.pid\n"
        )
        self._spawn("slurmdbd", "-D")
        self._until(lambda: self.run("sacctmgr", "-n", "show", "cluster") is not None, "slurmdbd")
        for words in ("add cluster test", f"modify user root set maxsubmitjobs={MOST_JOBS}"):
            self.run("sacctmgr", "-i", *words.split())

    def _conf(self) -> str:
        host = socket.gethostname().split(".")[0]
        control = free_port()
        lines = [
            "ClusterName=test", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={control}",
            f"SlurmUser={getpass.getuser()}", f"SlurmdUser={getpass.getuser()}",
            # cred_expire is also how long a requeued job waits before it may start again (default 120 s)
            "AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge/socket,cred_expire=5",
            "CredType=cred/munge", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU_Memory", "GresTypes=gpu", "ReturnToService=2",
            "SlurmdParameters=config_overrides",  # more CPUs than this machine has
            "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
            "JobRequeue=1", "KillWait=15", "InactiveLimit=0", "MessageTimeout=20", "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,preempt_send_user_signal",
            f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid", f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"Prolog={self.folder}/prolog.sh", "PrologFlags=Alloc", "MaxArraySize=100", "MinJobAge=900",
            f"SlurmctldLogFile={self.folder}/slurmctld.log", f"SlurmdLogFile={self.folder}/slurmd-%n.log",
        ]  # fmt: skip
        for weight, node in enumerate(self.nodes, 1):  # SLURM takes the node of the lowest weight first
            where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
            size = f"CPUs={weight + 1} RealMemory={1000 * (weight + 1)}"  # no two nodes have the same size
            lines.append(f"NodeName={node} {where} {size} Gres=gpu:{GPUS} Weight={weight}")
        where = f"Nodes={','.join(self.nodes)} MaxTime=INFINITE State=UP"
        lines.append(f"PartitionName=main {where} Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime=30")
        lines.append(f"PartitionName=urgent {where} PriorityTier=10")
        lines.append(f"PartitionName=again {where} PriorityTier=1 PreemptMode=REQUEUE")
        if self.rule:
            lines.append("JobSubmitPlugins=lua")
        if not self.accounts:
            lines.append("AccountingStorageType=accounting_storage/none")
        return "\n".join(lines) + "\n"

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        binary = shutil.which(name, path=search_path())
        log = (self.folder / f"{name}-{len(self._daemons)}.out").open("wb")
        self._daemons.append(
            subprocess.Popen([str(binary), *arguments], env=self.env, stdout=log, stderr=subprocess.STDOUT)
        )
        log.close()
        return self._daemons[-1]

    @contextmanager
    def silent_controller(self) -> Iterator[None]:
        """Stop the controller for the duration of the block: it takes connections and answers none."""
        self._controller.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._controller.send_signal(signal.SIGCONT)

    def forget_jobs(self) -> None:
        """Start the controller anew without what it knew of jobs, as after a lost StateSaveLocation."""
        self._daemons.remove(self._controller)
        self._controller.terminate()
        self._controller.wait()
        self._controller = self._spawn("slurmctld", "-D", "-c")
        self._until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), "idle node")

    def batch_script(self) -> int:
        """The process of the only batch script that runs."""
        found = [number for number, command in self.processes().items() if re.search(r"job\d+/slurm_script", command)]
        return min(found)

    def lose_node(self, node: str) -> None:
        """Let SLURM lose a node. What runs there runs on."""
        daemon = self._of_node.pop(node)
        daemon.kill()
        daemon.wait()
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def raise_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._of_node[node] = self._spawn("slurmd", "-D", "-N", node)

    def _until(self, ready, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if ready():
                    return
            except subprocess.CalledProcessError:
                pass  # the controller is not up yet
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))
        raise TimeoutError(f"no {what} within {PATIENCE:.0f} s:\n{logs}")

    def run(self, *command: str, cwd: Path | None = None, user: Person | None = None, **variables: str) -> str:
        """Output of a SLURM command.

        Args:
            command: the command.
            cwd: the folder where it starts.
            user: who gives it; else the tests' own user.
            variables: more of its environment.
        """
        done = subprocess.run(
            command, env={**self.env, **variables}, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE,
            check=False, **({} if user is None else user.rights()),
        )  # fmt: skip
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def submit(
        self, script: Path, *arguments: str, cwd: Path, options: Sequence[str] = (), user: Person | None = None,
        **variables: str,
    ) -> int:  # fmt: skip
        """sbatch; returns the job's id."""
        output = self.run("sbatch", *options, str(script), *arguments, cwd=cwd, user=user, **variables)
        return int(re.findall(r"\d+", output)[-1])

    def state(self, job: int) -> str:
        """RUNNING, PENDING, COMPLETED, FAILED, ... (jobs are remembered for five minutes after their end)."""
        found = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", str(job)))
        return found[1] if found else "UNKNOWN"

    def jobs(self) -> list[int]:
        """Ids of all jobs that are waiting or running."""
        return [int(line) for line in self.run("squeue", "-h", "-o", "%A").split()]

    def wait(self, job: int, *states: str, seconds: float) -> str:
        """The state, when it is one of `states`; TimeoutError after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state(job)
            if state in states:
                return state
            time.sleep(0.3)
        raise TimeoutError(f"job {job} is {state} after {seconds:.0f} s and not {' or '.join(states)}")

    def processes(self) -> dict[int, str]:
        """Processes of jobs, id -> command: they have this cluster's environment and are none of its daemons."""
        marks = (f"SLURM_CONF={self.folder}/".encode(), f"HOME={self.folder}\0".encode())
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            daemon = name in DAEMONS or command.startswith("slurmctld") or "/slurmctld " in command
            if not daemon and not rest.startswith("Z") and any(mark in environment for mark in marks):
                found[int(entry.name)] = command
        return found

    def stop(self) -> None:
        for job in self.jobs() if self._daemons[1:] else []:
            self.run("scancel", str(job))
        deadline = time.monotonic() + 15
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self.processes():
            os.kill(process, signal.SIGKILL)


@contextmanager
def cluster(folder: Path, nodes: Sequence[str] = ("n1",), rule: str = "", accounts: bool = False) -> Iterator[Cluster]:
    """A cluster for the duration of the block. rule: the site's own job_submit.lua; accounts: slurmdbd with limits."""
    running = Cluster(folder, nodes, rule, accounts)
    try:
        running.start()
        yield running
    finally:
        running.stop()
