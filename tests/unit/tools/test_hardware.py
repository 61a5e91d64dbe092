"""I2C and SPI on a fake bus: exact actions, nothing without being asked for, and clear words without a device."""

import json
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.scenarios.kit import calls

from shoal.domain.errors import ToolError
from shoal.domain.ports import Invocation
from shoal.testing.contracts.tool import tool_context
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario
from shoal.tools.builtin.hardware import I2cBus, LinuxHardware, SpiDevice, hardware_tools

NO_DEVICE = OSError(121, "Remote I/O error")


class FakeBus:
    """Devices at some addresses, each with 256 registers; keeps what happened."""

    def __init__(self, *addresses: int) -> None:
        self.registers = {address: bytearray(256) for address in addresses}
        self.log: list[str] = []
        self.open = 0

    # ---- the port ----

    @contextmanager
    def i2c(self, bus: int) -> Generator[I2cBus]:
        if bus != 1:
            raise FileNotFoundError(2, "No such file or directory")
        self.open += 1
        yield self
        self.open -= 1

    def spi(self, bus: int, device: int, speed_hz: int, mode: int) -> AbstractContextManager[SpiDevice]:
        self.log.append(f"spi {bus}.{device} {speed_hz} {mode}")
        return nullcontext(self)

    # ---- a bus and a device ----

    def probe(self, address: int) -> None:
        self.read(address, None, 1)

    def read(self, address: int, register: int | None, length: int) -> bytes:
        if address not in self.registers:
            raise NO_DEVICE
        return bytes(self.registers[address][register or 0 : (register or 0) + length])

    def write(self, address: int, data: bytes) -> None:
        if address not in self.registers:
            raise NO_DEVICE
        self.log.append(f"write {address:#x} {data.hex()}")
        self.registers[address][data[0] : data[0] + len(data) - 1] = data[1:]

    def transfer(self, data: bytes) -> bytes:
        return data[::-1]


def prepare(folder: Path, name: str, hardware: FakeBus | LinuxHardware, **arguments: object) -> Invocation:
    tools = {tool.spec.name: tool for tool in hardware_tools(hardware)}
    return tools[name].prepare(json.dumps(arguments), tool_context(folder))


async def run(folder: Path, name: str, hardware: FakeBus | LinuxHardware, **arguments: object) -> str:
    return (await prepare(folder, name, hardware, **arguments).run()).text


async def test_a_scan_lists_who_answers(tmp_path: Path) -> None:
    assert "0x20, 0x77" in await run(tmp_path, "i2c_scan", FakeBus(0x20, 0x77), bus=1)
    assert "No device" in await run(tmp_path, "i2c_scan", FakeBus(), bus=1)


async def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    bus = FakeBus(0x20)
    assert "3 bytes" in await run(tmp_path, "i2c_write", bus, bus=1, address=0x20, data="05beef")
    assert await run(tmp_path, "i2c_read", bus, bus=1, address=0x20, register=5, length=2) == "be ef"
    assert bus.open == 0


async def test_a_transfer_sends_and_gets(tmp_path: Path) -> None:
    bus = FakeBus()
    assert await run(tmp_path, "spi_transfer", bus, bus=0, device=1, data="01 02 03", mode=3) == "03 02 01"
    assert bus.log == ["spi 0.1 500000 3"]


def test_actions_name_the_device_and_the_bytes(tmp_path: Path) -> None:
    def action(name: str, **arguments: object) -> str:
        (found,) = prepare(tmp_path, name, FakeBus(), **arguments).actions
        return found.text

    assert action("i2c_scan", bus=1) == "tool:i2c_scan:1"
    assert action("i2c_read", bus=1, address=32, length=4) == "tool:i2c_read:1 0x20 4"
    assert action("i2c_read", bus=1, address=32, register=0) == "tool:i2c_read:1 0x20 0x00 1"
    assert action("i2c_write", bus=1, address=32, data="00 FF") == "tool:i2c_write:1 0x20 00ff"
    assert action("spi_transfer", bus=0, device=0, data="ff00") == "tool:spi_transfer:0.0 ff00"


def test_speed_and_mode_are_shown_and_part_of_what_is_approved(tmp_path: Path) -> None:
    slow = prepare(tmp_path, "spi_transfer", FakeBus(), bus=0, device=0, data="ff")
    fast = prepare(tmp_path, "spi_transfer", FakeBus(), bus=0, device=0, data="ff", speed_hz=1_000_000)
    assert "500000 Hz, mode 0" in slow.shown
    assert slow.canonical != fast.canonical


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("i2c_write", {"bus": 1, "address": 0x20, "data": "xyz!"}),
        ("i2c_write", {"bus": 1, "address": 0x20, "data": "00" * 34}),
        ("i2c_write", {"bus": 1, "address": 0x03, "data": "00"}),
        ("i2c_read", {"bus": 1, "address": 0x78}),
        ("i2c_read", {"bus": 1, "address": 0x20, "length": 33}),
        ("i2c_scan", {"bus": -1}),
        ("spi_transfer", {"bus": 0, "device": 0, "data": "00" * 4097}),
        ("spi_transfer", {"bus": 0, "device": 0, "data": "00", "mode": 4}),
    ],
)
def test_what_is_beyond_the_bounds_is_refused(tmp_path: Path, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ToolError):
        prepare(tmp_path, name, FakeBus(0x20), **arguments)


async def test_without_a_device_the_error_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no I2C bus 7"):
        await run(tmp_path, "i2c_scan", FakeBus(), bus=7)
    with pytest.raises(ToolError, match="nothing answers"):
        await run(tmp_path, "i2c_read", FakeBus(), bus=1, address=0x20)

    def missing(name: str) -> object:
        raise ImportError(name)

    with pytest.raises(ToolError, match=r"shoal\[hardware\]"):
        await run(tmp_path, "i2c_scan", LinuxHardware(missing), bus=1)


class FakePackages:
    """What smbus2 and spidev offer, as far as it is used; keeps the calls."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.max_speed_hz = self.mode = 0

    def load(self, name: str) -> object:
        return SimpleNamespace(SMBus=self.opened, SpiDev=lambda: self)

    def opened(self, bus: int) -> "FakePackages":
        self.log.append(("open", bus))
        return self

    def open(self, bus: int, device: int) -> None:
        self.log.append(("open", bus, device))

    def close(self) -> None:
        self.log.append(("close",))

    def read_byte(self, address: int) -> int:
        self.log.append(("read_byte", address))
        return 7

    def read_i2c_block_data(self, address: int, register: int, length: int) -> list[int]:
        self.log.append(("read_block", address, register, length))
        return [1] * length

    def write_byte(self, address: int, value: int) -> None:
        self.log.append(("write_byte", address, value))

    def write_byte_data(self, address: int, register: int, value: int) -> None:
        self.log.append(("write_byte_data", address, register, value))

    def write_i2c_block_data(self, address: int, register: int, data: list[int]) -> None:
        self.log.append(("write_block", address, register, data))

    def xfer2(self, values: list[int]) -> list[int]:
        self.log.append(("transfer", values, self.max_speed_hz, self.mode))
        return values


async def test_the_packages_are_called_as_they_want_it(tmp_path: Path) -> None:
    packages = FakePackages()
    linux = LinuxHardware(packages.load)
    assert await run(tmp_path, "i2c_read", linux, bus=1, address=0x20, length=2) == "07 07"
    assert await run(tmp_path, "i2c_read", linux, bus=1, address=0x20, length=2, register=3) == "01 01"
    for data in ("01", "0102", "010203"):
        await run(tmp_path, "i2c_write", linux, bus=1, address=0x20, data=data)
    await run(tmp_path, "spi_transfer", linux, bus=0, device=1, data="0a", speed_hz=2000, mode=1)
    done = [entry for entry in packages.log if entry[0] not in ("close",) and entry != ("open", 1)]
    assert done == [
        ("read_byte", 0x20),
        ("read_byte", 0x20),
        ("read_block", 0x20, 3, 2),
        ("write_byte", 0x20, 1),
        ("write_byte_data", 0x20, 1, 2),
        ("write_block", 0x20, 1, [2, 3]),
        ("open", 0, 1),
        ("transfer", [10], 2000, 1),
    ]
    assert packages.log.count(("close",)) == 6


@pytest.mark.parametrize("profile", ["open", "standard", "guarded", "locked"])
@pytest.mark.parametrize("is_on", [False, True])
async def test_they_are_hidden_unless_switched_on_and_allowed(tmp_path: Path, profile: str, is_on: bool) -> None:
    settings = {"tools": {"hardware": is_on}}
    async with scenario(tmp_path, FakeModel("Hello."), profile=profile, settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("Hello.")
        told = {spec.name for spec in world.model.requests[0].tools}
    assert ("i2c_write" in told) == (is_on and profile == "open")


async def test_a_profile_can_allow_exactly_one_write(tmp_path: Path) -> None:
    mine = {"extends": "standard", "allow": ["tool:i2c_write:1 0x20 00ff"]}
    settings = {"tools": {"hardware": True}, "permissions": {"default_profile": "mine", "profiles": {"mine": mine}}}
    other = Reply(calls=(Call("i2c_write", '{"bus": 1, "address": 32, "data": "00fe"}'),))
    async with scenario(tmp_path, FakeModel(other, calls("i2c_scan"), "Done."), settings=settings) as world:
        await world.ada.says("switch it on")
        await world.ada.sees("Done.")
        told = {spec.name for spec in world.model.requests[0].tools}
        event = await world.happens(world.ada.thread, "tool_result")
    assert "i2c_write" in told
    assert "spi_transfer" not in told
    assert "Permission denied: tool:i2c_write:1 0x20 00fe" in event.data.text  # pyright: ignore


@pytest.fixture
def stub() -> Generator[int]:
    """The number of a bus of the kernel's stub with a device at 0x20."""
    if os.geteuid() != 0 or shutil.which("modprobe") is None:
        pytest.skip("the kernel's i2c-stub can only be loaded by root, with modprobe")
    pytest.importorskip("smbus2", reason="the extra hardware is not installed")
    loaded = subprocess.run(["modprobe", "i2c-stub", "chip_addr=0x20"], check=False, capture_output=True, text=True)
    if loaded.returncode:
        pytest.skip(f"the kernel has no i2c-stub: {loaded.stderr.strip()}")
    names = Path("/sys/bus/i2c/devices").glob("i2c-*/name")
    yield next(int(name.parent.name[4:]) for name in names if "stub" in name.read_text())
    subprocess.run(["modprobe", "-r", "i2c-stub"], check=False)


async def test_the_kernels_stub_keeps_what_is_written(stub: int, tmp_path: Path) -> None:
    linux = LinuxHardware()
    assert "0x20" in await run(tmp_path, "i2c_scan", linux, bus=stub)
    await run(tmp_path, "i2c_write", linux, bus=stub, address=0x20, data="05be")
    assert await run(tmp_path, "i2c_read", linux, bus=stub, address=0x20, register=5) == "be"
