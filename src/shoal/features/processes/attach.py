"""Register processes with the core."""

from typing import TYPE_CHECKING

from shoal.backend import Backend
from shoal.features.processes.service import ProcessService
from shoal.threads.departures import Departures
from shoal.turn.activity import Activity
from shoal.turn.context import ContextBuilder

if TYPE_CHECKING:
    from shoal.services import Services


def attach(services: "Services") -> None:
    processes = services[ProcessService]
    services[Backend].add_service(processes.run)
    activity = Activity("Processes you started", processes.for_prompt, processes.for_people)
    services[ContextBuilder].activities.append(activity)
    services[Departures].enders.append(processes.end_left)
