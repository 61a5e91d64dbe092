"""I2C and SPI with a fake bus: exact actions, approval of every write, and clear errors without a device."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from shoal_hardware import hardware_tools

from shoal.kernel.errors import ToolError
from shoal.kernel.ports import Invocation
from shoal.testing.contracts.tool import tool_context
from shoal.testing.model import Call, FakeModel, Reply
from shoal.testing.scenario import scenario

Load = Callable[[str], object]
NO_DEVICE = OSError(121, "Remote I/O error")


class FakePackages:
    """Fakes for smbus2 and spidev. Bus 1 has devices at some addresses, each with 256 registers."""

    def __init__(self, *addresses: int) -> None:
        self.registers = {address: bytearray(256) for address in addresses}
        self.log: list[tuple[object, ...]] = []
        self.open_buses = 0
        self.max_speed_hz = self.mode = 0

    def load(self, name: str) -> object:
        return SimpleNamespace(SMBus=self.opened, SpiDev=lambda: self.opened(1))

    def opened(self, bus: int) -> "FakePackages":
        if bus != 1:
            raise FileNotFoundError(2, "No such file or directory")
        self.open_buses += 1
        return self

    def close(self) -> None:
        self.open_buses -= 1

    def device(self, address: int) -> bytearray:
        if address not in self.registers:
            raise NO_DEVICE
        return self.registers[address]

    def read_byte(self, address: int) -> int:
        self.log.append(("read_byte", address))
        return self.device(address)[0]

    def read_i2c_block_data(self, address: int, register: int, length: int) -> list[int]:
        self.log.append(("read_block", address, register, length))
        return list(self.device(address)[register : register + length])

    def write_byte(self, address: int, value: int) -> None:
        self.log.append(("write_byte", address, value))

    def write_byte_data(self, address: int, register: int, value: int) -> None:
        self.log.append(("write_byte_data", address, register, value))
        self.device(address)[register] = value

    def write_i2c_block_data(self, address: int, register: int, data: list[int]) -> None:
        self.log.append(("write_block", address, register, data))
        self.device(address)[register : register + len(data)] = bytes(data)

    def open(self, bus: int, device: int) -> None:
        self.log.append(("open", bus, device))

    def xfer2(self, values: list[int]) -> list[int]:
        self.log.append(("transfer", values, self.max_speed_hz, self.mode))
        return values[::-1]


def prepare(folder: Path, name: str, load: Load, **arguments: object) -> Invocation:
    tools = {tool.spec.name: tool for tool in hardware_tools(load)}
    return tools[name].prepare(json.dumps(arguments), tool_context(folder))


async def run(folder: Path, name: str, load: Load, **arguments: object) -> str:
    return (await prepare(folder, name, load, **arguments).run()).text


async def test_a_scan_lists_answering_devices(tmp_path: Path) -> None:
    assert "0x20, 0x77" in await run(tmp_path, "i2c_scan", FakePackages(0x20, 0x77).load, bus=1)
    assert "No device" in await run(tmp_path, "i2c_scan", FakePackages().load, bus=1)


async def test_written_bytes_are_read_back(tmp_path: Path) -> None:
    packages = FakePackages(0x20)
    assert "Bytes written: 3" in await run(tmp_path, "i2c_write", packages.load, bus=1, address=0x20, data="05beef")
    assert await run(tmp_path, "i2c_read", packages.load, bus=1, address=0x20, register=5, length=2) == "be ef"
    assert packages.open_buses == 0


async def test_a_transfer_sends_and_receives(tmp_path: Path) -> None:
    packages = FakePackages()
    assert await run(tmp_path, "spi_transfer", packages.load, bus=0, device=1, data="01 02 03", mode=3) == "03 02 01"
    assert packages.log == [("open", 0, 1), ("transfer", [1, 2, 3], 500_000, 3)]
    assert packages.open_buses == 0


def test_actions_name_the_device_and_the_bytes(tmp_path: Path) -> None:
    def action(name: str, **arguments: object) -> str:
        (action,) = prepare(tmp_path, name, FakePackages().load, **arguments).actions
        return action.text

    assert action("i2c_scan", bus=1) == "tool:i2c_scan:1"
    assert action("i2c_read", bus=1, address=32, length=4) == "tool:i2c_read:1 0x20 4"
    assert action("i2c_read", bus=1, address=32, register=0) == "tool:i2c_read:1 0x20 0x00 1"
    assert action("i2c_write", bus=1, address=32, data="00 FF") == "tool:i2c_write:1 0x20 00ff"
    assert action("spi_transfer", bus=0, device=0, data="ff00") == "tool:spi_transfer:0.0 ff00"


def test_speed_and_mode_are_shown_and_approved(tmp_path: Path) -> None:
    slow = prepare(tmp_path, "spi_transfer", FakePackages().load, bus=0, device=0, data="ff")
    fast = prepare(tmp_path, "spi_transfer", FakePackages().load, bus=0, device=0, data="ff", speed_hz=1_000_000)
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
def test_values_beyond_the_bounds_are_refused(tmp_path: Path, name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ToolError):
        prepare(tmp_path, name, FakePackages(0x20).load, **arguments)


async def test_a_missing_device_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no I2C bus 7"):
        await run(tmp_path, "i2c_scan", FakePackages().load, bus=7)
    with pytest.raises(ToolError, match="returned an error"):
        await run(tmp_path, "i2c_read", FakePackages().load, bus=1, address=0x20)

    def missing(name: str) -> object:
        raise ImportError(name)

    with pytest.raises(ToolError, match="shoal-hardware"):
        await run(tmp_path, "i2c_scan", missing, bus=1)


async def test_the_hardware_packages_are_called_correctly(tmp_path: Path) -> None:
    packages = FakePackages(0x20)
    packages.registers[0x20][:5] = b"\x07\0\0\x01\x01"
    load = packages.load
    assert await run(tmp_path, "i2c_read", load, bus=1, address=0x20, length=2) == "07 07"
    assert await run(tmp_path, "i2c_read", load, bus=1, address=0x20, length=2, register=3) == "01 01"
    for data in ("01", "0102", "010203"):
        await run(tmp_path, "i2c_write", load, bus=1, address=0x20, data=data)
    await run(tmp_path, "spi_transfer", load, bus=0, device=1, data="0a", speed_hz=2000, mode=1)
    assert packages.log == [
        ("read_byte", 0x20),
        ("read_byte", 0x20),
        ("read_block", 0x20, 3, 2),
        ("write_byte", 0x20, 1),
        ("write_byte_data", 0x20, 1, 2),
        ("write_block", 0x20, 1, [2, 3]),
        ("open", 0, 1),
        ("transfer", [10], 2000, 1),
    ]
    assert packages.open_buses == 0


@pytest.mark.parametrize("profile", ["open", "standard", "guarded", "locked"])
@pytest.mark.parametrize("is_on", [False, True])
async def test_hardware_tools_are_hidden_unless_enabled_and_allowed(tmp_path: Path, profile: str, is_on: bool) -> None:
    settings = {"tools": {"hardware": is_on}}
    async with scenario(tmp_path, FakeModel("Hello."), profile=profile, settings=settings) as world:
        await world.ada.says("hi")
        await world.ada.sees("Hello.")
        asked = world.model.requests[0]
        names = {spec.name for spec in (*asked.tools, *asked.further)}
    assert ("i2c_write" in names) == (is_on and profile == "open")


async def test_a_profile_can_allow_exactly_one_write(tmp_path: Path) -> None:
    mine = {"extends": "standard", "allow": ["tool:i2c_write:1 0x20 00ff"]}
    settings = {"tools": {"hardware": True}, "permissions": {"default_profile": "mine", "profiles": {"mine": mine}}}
    other = Reply(calls=(Call("i2c_write", '{"bus": 1, "address": 32, "data": "00fe"}'),))
    async with scenario(
        tmp_path, FakeModel(other, Reply(calls=(Call("i2c_scan", '{"bus": 1}'),)), "Done."), settings=settings
    ) as world:
        await world.ada.says("switch it on")
        await world.ada.sees("Done.")
        asked = world.model.requests[0]
        names = {spec.name for spec in (*asked.tools, *asked.further)}
        event = await world.happens(world.ada.thread, "tool_result")
    assert "i2c_write" in names
    assert "spi_transfer" not in names
    assert "Permission denied: tool:i2c_write:1 0x20 00fe" in event.data.text  # pyrefly: ignore[missing-attribute]


@pytest.fixture
def stub() -> Generator[int]:
    """Yield the number of a bus from the kernel's stub driver, with a device at 0x20."""
    if os.geteuid() != 0 or shutil.which("modprobe") is None:
        pytest.skip("the kernel's i2c-stub can only be loaded by root, with modprobe")
    pytest.importorskip("smbus2", reason="the `hardware` extra is not installed")
    loaded = subprocess.run(["modprobe", "i2c-stub", "chip_addr=0x20"], check=False, capture_output=True, text=True)
    if loaded.returncode:
        pytest.skip(f"the kernel has no i2c-stub: {loaded.stderr.strip()}")
    names = Path("/sys/bus/i2c/devices").glob("i2c-*/name")
    yield next(int(name.parent.name[4:]) for name in names if "stub" in name.read_text())
    subprocess.run(["modprobe", "-r", "i2c-stub"], check=False)


async def test_the_kernels_stub_device_keeps_written_bytes(stub: int, tmp_path: Path) -> None:
    assert "0x20" in await run(tmp_path, "i2c_scan", import_module, bus=stub)
    await run(tmp_path, "i2c_write", import_module, bus=stub, address=0x20, data="05be")
    assert await run(tmp_path, "i2c_read", import_module, bus=stub, address=0x20, register=5) == "be"
