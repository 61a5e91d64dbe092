"""The parts of a running Shoal, found by their class.

    services.add(CaseChecks(context, spending, ...))
    services.add(catalog, Models)  # a part behind a port is found by the port
    services[CaseChecks]

`open_app` fills the map and yields it. A class with `of(services)` needs no `add`: its service is made of the others
when it is first asked for. An endpoint's parameter that is annotated with a service's class gets that service when the
routes are bound.
"""

from typing import Protocol, TypeVar, cast, runtime_checkable

ServiceT = TypeVar("ServiceT")


@runtime_checkable
class MadeOfServices(Protocol):
    """A class of services that are made of others."""

    def of(self, services: "Services") -> object:
        """Make one of other services."""
        ...


class Services:
    """One service for each class."""

    def __init__(self, *services: object) -> None:
        self._by_class: dict[type, object] = {}
        for service in services:
            self.add(service)

    def add(self, service: object, kind: type | None = None) -> None:
        """Offer a service under its own class, or under `kind`, a port or a base of it. Raises ValueError where that
        class has a service already."""
        kind = kind or type(service)
        if kind in self._by_class:
            raise ValueError(f"There is a service {kind.__name__} already.")
        self._by_class[kind] = service

    def copy(self) -> "Services":
        """A map with the same services, to which others can be added."""
        copied = Services()
        copied._by_class.update(self._by_class)
        return copied

    def __getitem__(self, kind: type[ServiceT]) -> ServiceT:
        """Raises LookupError where no service has this class."""
        if kind not in self._by_class and isinstance(kind, MadeOfServices):
            self._by_class[kind] = kind.of(self)
        if kind not in self._by_class:
            raise LookupError(
                f"There is no service {cast('type', kind).__name__}. Services.add adds one when Shoal opens."
            )
        return cast("ServiceT", self._by_class[kind])

    def __contains__(self, kind: type) -> bool:
        return kind in self._by_class or isinstance(kind, MadeOfServices)
