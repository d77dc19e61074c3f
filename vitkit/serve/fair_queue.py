"""Fair queueing: among those who wait, the one who would have used least comes next, by client and then by request.

This is fair queueing (Demers, Keshav & Shenker 1989) on two levels, with the virtual time of WF2Q+ (Bennett & Zhang
1997). A job's virtual finish time is the virtual time up to which its client has been served, plus its cost. The
smallest goes first. Virtual time advances by the work that is done, divided by the clients that share it, and who comes
new starts there. So a cheap job passes expensive ones, a client with many jobs passes nobody, and no job waits for
ever. The requests of one client share its turns by the same rule: everyone behind a proxy is one client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
MAX_IDLE_CLIENTS = 256  # that have used more than their share and wait for nothing; beyond, the least is forgotten


@dataclass(eq=False)
class Ticket(Generic[Item]):
    """A job in the queue: its item, who asked for it, and what it is expected to cost."""

    item: Item
    client: Hashable
    request: Hashable
    cost: float
    number: int  # of its arrival, for equal finish times
    running: bool = False

    def finish_time(self, start_time: float) -> tuple[float, int]:
        return start_time + self.cost, self.number


class _Flow(Protocol):
    start_time: float  # the virtual time up to which it has been served, where its next job starts

    @property
    def waits(self) -> bool: ...


@dataclass(eq=False)
class _WaitingRequest(Generic[Item]):
    start_time: float
    waiting: deque[Ticket[Item]] = field(default_factory=deque)
    running: int = 0

    @property
    def waits(self) -> bool:
        return bool(self.waiting)


@dataclass(eq=False)
class _WaitingClient(Generic[Item]):
    start_time: float
    now: float = 0.0  # virtual time among its own requests
    requests: dict[Hashable, _WaitingRequest[Item]] = field(default_factory=dict)  # that wait or run

    @property
    def waits(self) -> bool:
        return any(request.waiting for request in self.requests.values())

    def next(self, eligible: Callable[[Ticket[Item]], bool]) -> Ticket[Item] | None:
        able = (request for request in self.requests.values() if request.waiting and eligible(request.waiting[0]))
        best = min(able, key=lambda request: request.waiting[0].finish_time(request.start_time), default=None)
        return None if best is None else best.waiting[0]


class FairQueue(Generic[Item]):
    """A queue that a single thread uses: `push` jobs, `pop` the next one, `finish` it with what it really cost."""

    def __init__(self) -> None:
        self._clients: dict[Hashable, _WaitingClient[Item]] = {}
        self._now = 0.0  # virtual time among the clients
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the items that wait, in no particular order."""
        for client in self._clients.values():
            for request in client.requests.values():
                yield from (ticket.item for ticket in request.waiting)

    def push(self, item: Item, *, client: Hashable, request: Hashable, cost: float = 1.0) -> Ticket[Item]:
        """Add a job; the jobs of one request are taken in their order."""
        if not cost > 0:
            raise ValueError(f"a job must cost something, not {cost}")  # free jobs would keep others waiting for ever
        self._arrivals += 1
        ticket = Ticket(item, client, request, cost, self._arrivals)
        of_client = self._clients.setdefault(client, _WaitingClient(self._now))
        if not of_client.waits:
            of_client.start_time = max(
                of_client.start_time, self._now
            )  # time without a job in the queue is not saved up
        of_request = of_client.requests.setdefault(request, _WaitingRequest(of_client.now))
        if not of_request.waits:
            of_request.start_time = max(of_request.start_time, of_client.now)
        of_request.waiting.append(ticket)
        return ticket

    def pop(
        self,
        eligible: Callable[[Ticket[Item]], bool] = lambda ticket: True,
        behind: Callable[[Hashable], bool] = lambda client: False,
    ) -> Ticket[Item] | None:
        """Take the next job, or None if no job waits that is eligible.

        A client that is `behind` comes after all that are not.
        """
        first = ((client, client.next(eligible)) for client in self._clients.values())
        waiting = [(client, ticket) for client, ticket in first if ticket is not None]
        if not waiting:
            return None
        client, ticket = min(
            waiting, key=lambda pair: (behind(pair[1].client), pair[1].finish_time(pair[0].start_time))
        )
        request = client.requests[ticket.request]
        request.waiting.popleft()
        client.start_time += ticket.cost
        request.start_time += ticket.cost
        request.running += 1
        ticket.running = True
        return ticket

    def remove(self, ticket: Ticket[Item]) -> None:
        """Take a job out of the queue that nobody wants any more."""
        client = self._clients[ticket.client]
        client.requests[ticket.request].waiting.remove(ticket)
        self._forget(ticket, client)

    def finish(self, ticket: Ticket[Item], cost: float | None = None) -> None:
        """End a job that was taken; `cost` is what it really cost, by default what was expected."""
        cost = ticket.cost if cost is None else cost
        client = self._clients[ticket.client]
        request = client.requests[ticket.request]
        client.start_time += cost - ticket.cost
        request.start_time += cost - ticket.cost
        active = [client for client in self._clients.values() if client.requests]
        self._now = _advance(self._now, cost, active)
        client.now = _advance(client.now, cost, client.requests.values())
        request.running -= 1
        self._forget(ticket, client)

    def _forget(self, ticket: Ticket[Item], client: _WaitingClient[Item]) -> None:
        """Forget requests that have ended, and clients who owe nothing; once everything has ended, everyone."""
        request = client.requests[ticket.request]
        if not request.waiting and not request.running:
            del client.requests[ticket.request]
        idle = {name: client for name, client in self._clients.items() if not client.requests}
        if len(idle) == len(self._clients):
            self._clients.clear()
            self._now = 0.0
            return
        in_debt = [name for name, client in idle.items() if client.start_time > self._now]
        in_debt.sort(key=lambda name: idle[name].start_time)
        for name in idle.keys() - set(in_debt[-MAX_IDLE_CLIENTS:]):
            del self._clients[name]


def _advance(now: float, cost: float, active: Collection[_Flow]) -> float:
    """Return virtual time after some work, which the active flows share; it never falls behind all that wait."""
    return max(now + cost / len(active), min((flow.start_time for flow in active if flow.waits), default=0.0))
