"""A registry of the running system's services by class.

    services.add(CaseChecks(context, spending, ...))
    services.add(catalog, Models)  # registered under its port
    services[CaseChecks]

`open_app` fills the registry and yields it. A class with `of(services)` needs no `add`: its service is created from
other services on first use. If an endpoint parameter is annotated with a service's class, it receives that service
when the routes are bound.
"""

from typing import Protocol, TypeVar, cast, runtime_checkable

ServiceT = TypeVar("ServiceT")


@runtime_checkable
class MadeOfServices(Protocol):
    """A class whose service can be created from other services."""

    def of(self, services: "Services") -> object:
        """Create a service from other services."""
        ...


@runtime_checkable
class MadeOfExtension(Protocol):
    """A class whose service can be created from other services, including those of an extended registry."""

    def of_extension(self, services: "Services") -> object:
        """Create a service that belongs only to the extended registry."""
        ...


class Services:
    """A registry of services by class."""

    def __init__(self, *services: object) -> None:
        self._by_class: dict[type, object] = {}
        self._original: Services | None = None
        for service in services:
            self.add(service)

    def add(self, service: object, kind: type | None = None) -> None:
        """Register a service under its own class, or under `kind` if that is set. `kind` is a port or a base class.

        Raises ValueError if the class already has a service.
        """
        kind = kind or type(service)
        if kind in self._by_class:
            raise ValueError(f"A service {kind.__name__} already exists.")
        self._by_class[kind] = service

    def extended(self) -> "Services":
        """Return a new registry that contains these services and accepts more.

        Both registries share the services that are created on first use, except for classes with `of_extension`.
        """
        extended = Services()
        extended._original = self
        return extended

    def __getitem__(self, kind: type[ServiceT]) -> ServiceT:
        """Return the service of a class, and create it if the class supports that. Raises LookupError if it does
        not exist.
        """
        if kind not in self._by_class:
            if isinstance(kind, MadeOfExtension):
                self._by_class[kind] = kind.of_extension(self)
            elif self._original is not None:
                return self._original[kind]
            elif isinstance(kind, MadeOfServices):
                self._by_class[kind] = kind.of(self)
        if kind not in self._by_class:
            raise LookupError(
                f"The service {cast('type', kind).__name__} is not registered. Register it with "
                "Services.add at startup."
            )
        return cast("ServiceT", self._by_class[kind])

    def __contains__(self, kind: type) -> bool:
        is_made = isinstance(kind, MadeOfServices | MadeOfExtension)
        return is_made or kind in self._by_class or (self._original is not None and kind in self._original)
