"""Who pulls the plugs, and when: always in the middle of something that must not happen twice."""

from __future__ import annotations

from collections.abc import Iterator

from shop.demo.machines import Busy, Casualties, Machine
from shop.models import Order

KILL_MACHINE_AT = 0.5  # of the orders are settled


class Killer:
    """Kills a worker process of one machine, and later the whole other machine."""

    def __init__(self, machines: list[Machine]) -> None:
        self.left = list(machines)  #: those that go on running
        self._wounded: Machine | None = None
        self._dead: list[Casualties] = []
        self._slow = Order.objects.get(card=Order.Card.SLOW).number

    def kill(self, settled: float) -> Casualties | None:
        """Kill whatever is next, if it is busy with the right thing; `settled` is the share of the orders."""
        killed = None
        if self._wounded is None:
            killed = self._kill_a_worker()
        elif settled >= KILL_MACHINE_AT and not self._dead and len(self.left) > 1:
            killed = self._kill_the_other_machine()
        if killed is not None:
            self._dead.append(killed)
        return killed

    def rescued(self) -> Iterator[Casualties]:
        """Yield, once, those in whose name there is no job any more."""
        for killed in [each for each in self._dead if not each.still_hold()]:
            self._dead.remove(killed)
            yield killed

    def _kill_a_worker(self) -> Casualties | None:
        for machine in self.left:
            killed = machine.kill_a_worker(self._charges_slowly)
            if killed is not None:
                self._wounded = machine
                return killed
        return None

    def _kill_the_other_machine(self) -> Casualties | None:
        [other] = (machine for machine in self.left if machine is not self._wounded)
        killed = other.kill_all(_charges_and_mails)
        if killed is not None:
            self.left.remove(other)
        return killed

    def _charges_slowly(self, busy: Busy) -> bool:
        """The gateway takes its time: when it is asked afterwards, it has not charged yet."""
        return self._slow in busy.get("charge card", ())


def _charges_and_mails(busy: Busy) -> bool:
    """Something that can be asked for afterwards, and something that cannot."""
    return bool(busy.get("charge card") and busy.get("send receipt"))
