"""The tools `i2c_scan`, `i2c_read`, `i2c_write` and `spi_transfer`: devices on the buses of this machine.

They are there only when `tools.hardware` is on, and then only for agents whose profile allows them: a write to the
wrong device can break it. `Hardware` is the port to the machine, so that a test, or another kind of bus, can stand in.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from importlib import import_module
from typing import Annotated, Protocol, cast

from msgspec import Meta

from shoal.domain.errors import ToolError
from shoal.domain.permissions import Action
from shoal.domain.ports import Invocation, Tool, ToolOutput
from shoal.tools.functions import Prepared, canonical, tool
from shoal.tools.threads import in_thread

I2C_BYTES_MAX = 32
"""Most bytes of one I2C transfer, as SMBus has it."""
SPI_BYTES_MAX = 4096
"""Most bytes of one SPI transfer, as the kernel's driver has it."""
ADDRESSES = range(0x08, 0x78)
"""The addresses of devices; those below and above are reserved."""


class I2cBus(Protocol):
    """An open I2C bus. Every method raises OSError when no device answers."""

    def probe(self, address: int) -> None:
        """Read one byte, so as to see whether a device answers."""
        ...

    def read(self, address: int, register: int | None, length: int) -> bytes:
        """Read so many bytes from a register, or from wherever the device stands."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write 1 to 33 bytes; the first is what many devices take as the register."""
        ...


class SpiDevice(Protocol):
    """An open device on an SPI bus."""

    def transfer(self, data: bytes) -> bytes:
        """Send the bytes and get as many back. Raises OSError."""
        ...


class Hardware(Protocol):
    """The machine's buses."""

    def i2c(self, bus: int) -> AbstractContextManager[I2cBus]:
        """Open a bus. Raises OSError, and ToolError when the package is missing."""
        ...

    def spi(self, bus: int, device: int, speed_hz: int, mode: int) -> AbstractContextManager[SpiDevice]:
        """Open a device. Raises OSError, and ToolError when the package is missing."""
        ...


BusNumber = Annotated[int, Meta(ge=0, le=255, description="Number of the bus, e.g. 1 for /dev/i2c-1.")]
Address = Annotated[int, Meta(ge=ADDRESSES[0], le=ADDRESSES[-1], description="Address of the device, e.g. 32 (0x20).")]
Hex = Annotated[str, Meta(description="Bytes as hexadecimal digits, e.g. 00ff.", min_length=2, max_length=3 * 4096)]


def hardware_tools(hardware: Hardware | None = None) -> tuple[Tool, ...]:
    """All of them, on the machine's own buses unless told."""
    buses = hardware or LinuxHardware()

    @tool
    def i2c_scan(bus: BusNumber) -> Invocation:
        """List the devices on an I2C bus of this machine, by reading a byte at each address."""

        def work() -> str:
            found: list[str] = []
            with buses.i2c(bus) as opened:
                for address in ADDRESSES:
                    with suppress(OSError):
                        opened.probe(address)
                        found.append(f"0x{address:02x}")
            return f"Devices answer at {', '.join(found)}." if found else "No device answers on this bus."

        return _planned("i2c_scan", f"{bus}", f"I2C bus {bus}", work)

    @tool
    def i2c_read(
        bus: BusNumber,
        address: Address,
        length: Annotated[int, Meta(ge=1, le=I2C_BYTES_MAX, description="How many bytes.")] = 1,
        register: Annotated[
            Annotated[int, Meta(ge=0, le=255)] | None, Meta(description="Register to read from; none: as it stands.")
        ] = None,
    ) -> Invocation:
        """Read up to 32 bytes from a device on an I2C bus of this machine."""
        where = "" if register is None else f" 0x{register:02x}"

        def work() -> str:
            with buses.i2c(bus) as opened:
                return opened.read(address, register, length).hex(" ")

        return _planned("i2c_read", f"{bus} 0x{address:02x}{where} {length}", f"I2C bus {bus}", work)

    @tool
    def i2c_write(bus: BusNumber, address: Address, data: Hex) -> Invocation:
        """Write bytes to a device on an I2C bus of this machine; the first is usually the register. The wrong bytes can
        break a device."""
        content = _bytes(data, I2C_BYTES_MAX + 1)

        def work() -> str:
            with buses.i2c(bus) as opened:
                opened.write(address, content)
            return f"{len(content)} bytes written."

        return _planned("i2c_write", f"{bus} 0x{address:02x} {content.hex()}", f"I2C bus {bus}", work)

    @tool
    def spi_transfer(
        bus: Annotated[int, Meta(ge=0, le=255, description="Number of the bus, the B of /dev/spidevB.D.")],
        device: Annotated[int, Meta(ge=0, le=255, description="Chip select, the D of /dev/spidevB.D.")],
        data: Hex,
        speed_hz: Annotated[int, Meta(ge=1000, le=50_000_000, description="Clock in hertz.")] = 500_000,
        mode: Annotated[int, Meta(ge=0, le=3, description="SPI mode.")] = 0,
    ) -> Invocation:
        """Send bytes to a device on an SPI bus of this machine and get as many bytes back."""
        content = _bytes(data, SPI_BYTES_MAX)

        def work() -> str:
            with buses.spi(bus, device, speed_hz, mode) as opened:
                return opened.transfer(content).hex(" ")

        where, more = f"{bus}.{device}", f"{speed_hz} Hz, mode {mode}"
        return _planned("spi_transfer", f"{where} {content.hex()}", f"SPI device {where}", work, more)

    return i2c_scan, i2c_read, i2c_write, spi_transfer


def _planned(name: str, detail: str, device: str, work: Callable[[], str], more: str = "") -> Invocation:
    """A call whose action is the tool's name and `detail`; `more` is what else is shown and approved."""

    async def run() -> ToolOutput:
        try:
            return ToolOutput(await in_thread(work))
        except FileNotFoundError as error:
            hint = "Is there one, and is its driver (i2c-dev, spidev) loaded?"
            raise ToolError(f"This machine has no {device}. {hint}") from error
        except PermissionError as error:
            raise ToolError(f"{device} may not be opened: add Shoal's user to the group i2c or spi.") from error
        except OSError as error:
            raise ToolError(f"{device}: nothing answers ({error.strerror or error}).") from error

    shown = f"{name} {detail}" + (f" ({more})" if more else "")
    return Prepared((Action(f"tool:{name}:{detail}"),), shown, canonical(name, detail=detail, more=more), run)


def _bytes(text: str, length_max: int) -> bytes:
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ToolError("data has to be bytes as pairs of hexadecimal digits, e.g. 00ff.") from error
    if not 1 <= len(data) <= length_max:
        raise ToolError(f"data has {len(data)} bytes; it can have 1 to {length_max}.")
    return data


class _SMBus(Protocol):
    """What is used of smbus2.SMBus."""

    def read_byte(self, i2c_addr: int) -> int: ...
    def read_i2c_block_data(self, i2c_addr: int, register: int, length: int) -> list[int]: ...
    def write_byte(self, i2c_addr: int, value: int) -> None: ...
    def write_byte_data(self, i2c_addr: int, register: int, value: int) -> None: ...
    def write_i2c_block_data(self, i2c_addr: int, register: int, data: list[int]) -> None: ...
    def close(self) -> None: ...


class _SpiDev(Protocol):
    """What is used of spidev.SpiDev."""

    max_speed_hz: int
    mode: int

    def open(self, bus: int, device: int) -> None: ...
    def xfer2(self, values: list[int]) -> Sequence[int]: ...
    def close(self) -> None: ...


class LinuxHardware:
    """The buses of a Linux machine, by smbus2 and spidev (extra `hardware`), each loaded when it is first used."""

    def __init__(self, load: Callable[[str], object] = import_module) -> None:
        self._load = load

    def i2c(self, bus: int) -> AbstractContextManager[I2cBus]:
        """Open /dev/i2c-BUS."""
        make = cast("Callable[[int], _SMBus]", self._found("smbus2", "SMBus"))
        return closing(LinuxI2c(make(bus)))

    def spi(self, bus: int, device: int, speed_hz: int, mode: int) -> AbstractContextManager[SpiDevice]:
        """Open /dev/spidevBUS.DEVICE."""
        opened = cast("Callable[[], _SpiDev]", self._found("spidev", "SpiDev"))()
        opened.open(bus, device)
        opened.max_speed_hz, opened.mode = speed_hz, mode
        return closing(LinuxSpi(opened))

    def _found(self, package: str, name: str) -> object:
        try:
            return getattr(self._load(package), name)
        except ImportError as error:
            raise ToolError(f"The package {package} is missing: install shoal[hardware].") from error


class LinuxI2c:
    """An `I2cBus` over SMBus commands, which every adapter and the kernel's i2c-stub know."""

    def __init__(self, bus: _SMBus) -> None:
        self._bus = bus

    def probe(self, address: int) -> None:
        """Receive a byte."""
        self._bus.read_byte(address)

    def read(self, address: int, register: int | None, length: int) -> bytes:
        """Read a block from a register, or one byte after the other."""
        if register is None:
            return bytes(self._bus.read_byte(address) for _ in range(length))
        return bytes(self._bus.read_i2c_block_data(address, register, length))

    def write(self, address: int, data: bytes) -> None:
        """Write a byte, a byte to a register, or a block to a register."""
        match list(data):
            case [value]:
                self._bus.write_byte(address, value)
            case [register, value]:
                self._bus.write_byte_data(address, register, value)
            case [register, *values]:
                self._bus.write_i2c_block_data(address, register, values)
            case _:
                raise OSError("nothing to write")

    def close(self) -> None:
        """Let go of it."""
        self._bus.close()


class LinuxSpi:
    """A `SpiDevice` of spidev."""

    def __init__(self, device: _SpiDev) -> None:
        self._device = device

    def transfer(self, data: bytes) -> bytes:
        """One transfer with the chip selected throughout."""
        return bytes(self._device.xfer2(list(data)))

    def close(self) -> None:
        """Let go of it."""
        self._device.close()
