"""What the kernel says of processes: CPU time, memory, sockets, who belongs to whom. From /proc, never our counters."""

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> set[int]:
    """A process's children and theirs."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children |= {int(child) for child in task.read_text().split()}
        except OSError:
            continue  # gone meanwhile
    return children.union(*map(family, children))


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def name_of(pid: int) -> str:
    """What a process is, by its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "resource tracker" if "resource_tracker" in words else "process"


@dataclass(frozen=True)
class Memory:
    """Proportional shares, in bytes. `own` leaves out files: programs of others that map them change that share."""

    pss: int
    own: int

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.pss + other.pss, self.own + other.own)


def memory(pids: Iterable[int]) -> Memory:
    """Of all these processes together; those that are gone have none."""
    total = Memory(0, 0)
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        anonymous, shared = kilobytes["Pss_Anon"], kilobytes["Pss_Shmem"]
        total += Memory(1024 * kilobytes["Pss"], 1024 * (anonymous + shared))
    return total


def private_bytes(pid: int) -> int:
    """Memory that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def used_mb(pid: int) -> float:
    """Resident memory that is not shared, as a memory limit counts it."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / 2**20


def listening(pids: Iterable[int]) -> list[str]:
    """TCP and UDP sockets on which these processes can be reached: address and port in hex."""
    inodes = set()
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue  # gone meanwhile
    found = []
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state and words[9] in inodes:
                found.append(words[1])
    return found


def growth(samples: list[tuple[float, int]], since_s: float) -> int:
    """From the first tenth of what was sampled since then to its last tenth, by their medians."""
    late = [value for at, value in samples if at >= since_s]
    tenth = max(1, len(late) // 10)
    return round(statistics.median(late[-tenth:]) - statistics.median(late[:tenth]))
