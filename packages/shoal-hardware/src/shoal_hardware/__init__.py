"""The tools `i2c_scan`, `i2c_read`, `i2c_write` and `spi_transfer` for devices on the buses of this machine.

Shoal offers them only if `tools.hardware` is true, and only to agents whose profile allows them, because a write to
the wrong device can damage it. The packages smbus2 and spidev are imported on first use.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from typing import Annotated, Protocol, cast

from msgspec import Meta

from shoal import Traits, tool
from shoal.installation import how_to_add_package
from shoal.kernel.errors import ToolError
from shoal.kernel.files import in_thread
from shoal.kernel.ports import Invocation, ToolOutput
from shoal.kernel.traits import Treatment, Treatments
from shoal.tools.functions import FunctionTool, planned

I2C_BYTES_MAX = 32
"""Maximum size of an I2C transfer, as limited by SMBus."""
SPI_BYTES_MAX = 4096
"""Maximum size of an SPI transfer, as limited by the kernel's driver."""
ADDRESSES = range(0x08, 0x78)
"""Device addresses. Lower and higher addresses are reserved."""


class SMBus(Protocol):
    """The methods of smbus2.SMBus that the tools use. Each raises OSError if the device does not respond."""

    def read_byte(self, i2c_addr: int) -> int: ...
    def read_i2c_block_data(self, i2c_addr: int, register: int, length: int) -> list[int]: ...
    def write_byte(self, i2c_addr: int, value: int) -> None: ...
    def write_byte_data(self, i2c_addr: int, register: int, value: int) -> None: ...
    def write_i2c_block_data(self, i2c_addr: int, register: int, data: list[int]) -> None: ...
    def close(self) -> None: ...


class SpiDev(Protocol):
    """The methods of spidev.SpiDev that the tools use."""

    max_speed_hz: int
    mode: int

    def open(self, bus: int, device: int) -> None: ...
    def xfer2(self, values: list[int]) -> Sequence[int]: ...
    def close(self) -> None: ...


BusNumber = Annotated[int, Meta(ge=0, le=255, description="Bus number, such as 1 for /dev/i2c-1.")]
Address = Annotated[int, Meta(ge=ADDRESSES[0], le=ADDRESSES[-1], description="Address of the device, e.g. 32 (0x20).")]
Hex = Annotated[str, Meta(description="Bytes in hexadecimal, such as 00ff.", min_length=2, max_length=3 * 4096)]

BUS = Traits(
    group="hardware",
    offered="deferred",
    effect="outward",
    origin="own",
    harm="outside",
    treatments=Treatments(standard=Treatment(otherwise="owner"), guarded=Treatment()),
)


def hardware_tools(load: Callable[[str], object] = import_module) -> tuple[FunctionTool[Invocation], ...]:
    """Return the I2C and SPI tools, sorted by name. `load` imports smbus2 or spidev."""

    def package(name: str) -> object:
        try:
            return load(name)
        except ImportError as error:
            raise ToolError(f"The {name} package is missing. {how_to_add_package('shoal-hardware')}") from error

    def i2c(number: int) -> closing[SMBus]:
        opened = cast("Callable[[int], SMBus]", getattr(package("smbus2"), "SMBus"))  # noqa: B009 (untyped package)
        return closing(opened(number))

    @tool(BUS, example={"bus": 1})
    def i2c_scan(bus: BusNumber) -> Invocation:
        """List the devices on an I2C bus of this machine, by reading a byte at each address."""

        def work() -> str:
            names: list[str] = []
            with i2c(bus) as opened:
                for address in ADDRESSES:
                    with suppress(OSError):
                        opened.read_byte(address)
                        names.append(f"0x{address:02x}")
            return f"Devices responded at {', '.join(names)}." if names else "No device responded on this bus."

        return _planned("i2c_scan", f"{bus}", f"I2C bus {bus}", work)

    @tool(BUS, example={"bus": 1, "address": 32, "register": 5, "length": 2})
    def i2c_read(
        bus: BusNumber,
        address: Address,
        length: Annotated[int, Meta(ge=1, le=I2C_BYTES_MAX, description="Number of bytes.")] = 1,
        register: Annotated[
            Annotated[int, Meta(ge=0, le=255)] | None, "Register to read from. Default: the device's current register."
        ] = None,
    ) -> Invocation:
        """Read up to 32 bytes from a device on an I2C bus of this machine."""
        where = "" if register is None else f" 0x{register:02x}"

        def work() -> str:
            with i2c(bus) as opened:
                if register is None:
                    return bytes(opened.read_byte(address) for _ in range(length)).hex(" ")
                return bytes(opened.read_i2c_block_data(address, register, length)).hex(" ")

        return _planned("i2c_read", f"{bus} 0x{address:02x}{where} {length}", f"I2C bus {bus}", work)

    @tool(BUS, example={"bus": 1, "address": 32, "data": "05beef"})
    def i2c_write(bus: BusNumber, address: Address, data: Hex) -> Invocation:
        """Write bytes to a device on an I2C bus of this machine. The first byte is usually the register. Wrong bytes
        can damage the device.
        """
        content = _bytes(data, I2C_BYTES_MAX + 1)

        def work() -> str:
            first, *rest = content
            # using only commands that every adapter supports: one byte, or bytes to a register
            with i2c(bus) as opened:
                if not rest:
                    opened.write_byte(address, first)
                elif len(rest) == 1:
                    opened.write_byte_data(address, first, rest[0])
                else:
                    opened.write_i2c_block_data(address, first, rest)
            return f"Bytes written: {len(content)}."

        return _planned("i2c_write", f"{bus} 0x{address:02x} {content.hex()}", f"I2C bus {bus}", work)

    @tool(BUS, example={"bus": 0, "device": 0, "data": "ff00"})
    def spi_transfer(
        bus: Annotated[int, Meta(ge=0, le=255, description="Bus number: B in /dev/spidevB.D.")],
        device: Annotated[int, Meta(ge=0, le=255, description="Chip select: D in /dev/spidevB.D.")],
        data: Hex,
        speed_hz: Annotated[int, Meta(ge=1000, le=50_000_000, description="Clock frequency in hertz.")] = 500_000,
        mode: Annotated[int, Meta(ge=0, le=3, description="SPI mode.")] = 0,
    ) -> Invocation:
        """Send bytes to a device on an SPI bus of this machine and receive the same number of bytes."""
        content = _bytes(data, SPI_BYTES_MAX)

        def work() -> str:
            make = cast("Callable[[], SpiDev]", getattr(package("spidev"), "SpiDev"))  # noqa: B009 (untyped package)
            with closing(make()) as opened:
                opened.open(bus, device)
                opened.max_speed_hz, opened.mode = speed_hz, mode
                return bytes(opened.xfer2(list(content))).hex(" ")

        where, more = f"{bus}.{device}", f"{speed_hz} Hz, mode {mode}"
        return _planned("spi_transfer", f"{where} {content.hex()}", f"SPI device {where}", work, more)

    return i2c_read, i2c_scan, i2c_write, spi_transfer


def _planned(name: str, detail: str, device: str, work: Callable[[], str], more: str = "") -> Invocation:
    """Return a call whose action is the tool's name and `detail`. The approval also shows `more`."""

    async def run() -> ToolOutput:
        try:
            return ToolOutput(await in_thread(work))
        except FileNotFoundError as error:
            hint = "Check the number, and load the driver (i2c-dev or spidev)."
            raise ToolError(f"This machine has no {device}. {hint}") from error
        except PermissionError as error:
            raise ToolError(f"Cannot open {device}. Add Shoal's user to the i2c or spi group.") from error
        except OSError as error:
            raise ToolError(f"{device} returned an error: {error.strerror or error}.") from error

    shown = f"{name} {detail}" + (f" ({more})" if more else "")
    return planned(name, detail, run, shown, detail=detail, more=more)


def _bytes(text: str, length_max: int) -> bytes:
    try:
        data = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise ToolError("data must be pairs of hexadecimal digits, such as 00ff.") from error
    if not 1 <= len(data) <= length_max:
        raise ToolError(f"data must have 1 to {length_max} bytes, not {len(data)}.")
    return data


i2c_read, i2c_scan, i2c_write, spi_transfer = hardware_tools()
