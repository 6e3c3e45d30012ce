"""What `nvidia-smi` prints, pasted: its table, `-q`, `-L`, `--query-gpu` as CSV, `nvlink -s`.

All are read into the names that `--query-gpu` has for the values; `smi_gpu.py` types them. Layouts
are those of drivers 384 to 610; a table may have lost its header, or stand behind `#` or `>`.
"""

from __future__ import annotations

import re

import msgspec

_ROW = re.compile(
    r"\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*"
    r"\|\s*(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+(?:On|Off|N/A)\s*"
    r"\|\s*(?P<ecc>\S+)\s*\|"
)
_VALUES = re.compile(
    r"\|\s*(?:\d{1,3}%|N/A)\s*(?P<temperature>\d{1,3}C|N/A)\s+(?P<pstate>P\d{1,2}|N/A)\s+[^|]*"
    r"\|\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*"
    r"\|\s*(?:\d{1,3}%|N/A)\s+(?P<mode>[\w. ]+?|N/A)\s*\|"
)
_MIG = re.compile(r"\|\s*\|\s*\|\s*(?P<mig>Enabled|Disabled)\*?\s*\|")
_DRIVER = re.compile(r"\b(?:Driver|KMD) Version\s*:\s*(?P<driver>\d{3}\.[\d.]+)")
_CUDA = re.compile(r"\bCUDA (?:UMD )?Version\s*:\s*(?P<cuda>\d{1,2}\.\d{1,2})")
_BLOCK = re.compile(r"GPU (?P<pci>[0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*\Z")
_ENTRY = re.compile(r"(?P<blank> *)(?P<key>[A-Za-z][\w .,&/()-]*?) *(?:: +(?P<value>\S.*?))?\s*\Z")
_LISTED = re.compile(r"GPU (?P<index>\d{1,3}): (?P<name>.+?) \(UUID: (?P<uuid>GPU-[\w-]+)\)")
_LINK = re.compile(r"\s+Link (?P<number>\d{1,2}): (?P<state><inactive>|[\d.]+ GB/s)\s*\Z")
_COLUMN = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)*(?: \[[\w/%. ]+\])?")
_MIG_LISTED = re.compile(r"\s+MIG \S+\s+Device +\d+: \(UUID: MIG-")

# Paths of `nvidia-smi -q`, each as its keys from the GPU's block inwards -> the query's name.
_OF_BLOCK = {
    "Product Name": "name",
    "GPU UUID": "uuid",
    "Minor Number": "minor",
    "MIG Mode/Current": "mig.mode.current",
    "Persistence Mode": "persistence_mode",
    "Compute Mode": "compute_mode",
    "Performance State": "pstate",
    "GPU Recovery Action": "gpu_recovery_action",
    "GPU Reset Status/Reset Required": "reset_status.reset_required",
    "GPU Reset Status/Drain and Reset Recommended": "reset_status.drain_and_reset_recommended",
    "GSP Firmware Version": "gsp_firmware",
    "PCI/GPU Link Info/PCIe Generation/Max": "pcie.link.gen.max",
    "PCI/GPU Link Info/PCIe Generation/Current": "pcie.link.gen.current",
    "PCI/GPU Link Info/Link Width/Max": "pcie.link.width.max",
    "PCI/GPU Link Info/Link Width/Current": "pcie.link.width.current",
    "FB Memory Usage/Total": "memory.total",
    "FB Memory Usage/Used": "memory.used",
    "ECC Errors/Volatile/SRAM Uncorrectable": "ecc.sram",
    "ECC Errors/Volatile/SRAM Uncorrectable Parity": "ecc.sram.parity",
    "ECC Errors/Volatile/SRAM Uncorrectable SEC-DED": "ecc.sram.secded",
    "ECC Errors/Volatile/DRAM Uncorrectable": "ecc.dram",
    "ECC Errors/Volatile/Double Bit/Total": "ecc.total",
    "ECC Errors/Aggregate/SRAM Threshold Exceeded": "ecc.sram_threshold",
    "ECC Errors/Unrepairable Memory": "ecc.unrepairable",
    "ECC Errors/Channel Repair Pending": "ecc.channel_repair_pending",
    "Retired Pages/Pending Page Blacklist": "retired_pages.pending",
    "Retired Pages/Pending": "retired_pages.pending",
    "Remapped Rows/Correctable Error": "remapped_rows.correctable",
    "Remapped Rows/Uncorrectable Error": "remapped_rows.uncorrectable",
    "Remapped Rows/Pending": "remapped_rows.pending",
    "Remapped Rows/Remapping Failure Occurred": "remapped_rows.failure",
    "Temperature/GPU Current Temp": "temperature.gpu",
    "Clocks/SM": "clocks.current.sm",
    "Max Clocks/SM": "clocks.max.sm",
    "Fabric/State": "fabric.state",
    "Fabric/Status": "fabric.status",
    "Fabric/Health/Summary": "fabric.health.summary",
    "Fabric/Health/Bandwidth": "fabric.health.bandwidth",
}
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_REASON_NAMES = {
    "Idle": "gpu_idle",
    "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Slowdown/HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Slowdown/HW Power Brake Slowdown": "hw_power_brake_slowdown",
    "HW Slowdown/HW Power Braking Slowdown": "hw_power_brake_slowdown",
    "SW Thermal Slowdown": "sw_thermal_slowdown",
}
REASON = "clocks_event_reasons."
_OF_BLOCK |= {f"{over}/{path}": REASON + name for over in _REASONS for path, name in
              _REASON_NAMES.items()}  # fmt: skip

_SAME = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "ecc.errors.uncorrected.volatile.total": "ecc.total",
}
_KNOWN = frozenset(
    {*_OF_BLOCK.values(), *_SAME, *_SAME.values(), "index", "driver_version", "memory.free",
     "utilization.gpu", "power.draw", "ecc.mode.current"}
)  # fmt: skip
_OLD_REASON = "clocks_throttle_reasons."
_FEWEST_COLUMNS = 2
_NO_ANSWER = "Unknown Error"
"""In place of a value: the GPU did not answer. Such a line is left to those who read errors."""


class SmiGpu(msgspec.Struct, frozen=True):
    """One GPU's values as printed, by the names of `--query-gpu`, and its NVLinks' states."""

    values: dict[str, str]
    links: dict[int, bool] = {}


class SmiText(msgspec.Struct, frozen=True):
    """All that was printed; `rest` are the lines that are none of it, with their numbers from 1."""

    driver: str | None
    cuda: str | None
    gpus: tuple[SmiGpu, ...]
    rest: tuple[tuple[int, str], ...]
    seen: int


def parse(text: str) -> SmiText:
    """Read all of it; `seen` counts the lines that were understood, 0 for any other text."""
    found = _Found()
    for number, line in enumerate(text.splitlines(), 1):
        if not found.take(line):
            found.rest.append((number, line))
    whole = found.seen if found.gpus else 0
    return SmiText(found.driver, found.cuda, tuple(found.gpus), tuple(found.rest), whole)


def lines_seen(head: str) -> int:
    """Count the lines of `nvidia-smi` in a text's head."""
    if "GPU" not in head and "|" not in head and ", " not in head:
        return 0
    return parse(head).seen


class _Found:
    """What the lines so far have told."""

    def __init__(self) -> None:
        self.driver: str | None = None
        self.cuda: str | None = None
        self.gpus: list[SmiGpu] = []
        self.rest: list[tuple[int, str]] = []
        self.seen = 0
        self._path: list[tuple[int, str]] = []
        self._in_block = False
        self._columns: tuple[str, ...] = ()
        self._open = False

    def take(self, line: str) -> bool:
        """Take a line; False where it is none of nvidia-smi's, or tells more than is read here."""
        took = self._table(line) or self._block(line) or self._listed(line) or self._separated(line)
        self.seen += took
        return took

    def _table(self, line: str) -> bool:
        if match := _ROW.search(line):
            values = {"index": match["index"], "name": match["name"], "pci.bus_id": match["pci"]}
            self._add(values | {"ecc.total": match["ecc"]})
            self._open = True
            return True
        if self._open and (match := _VALUES.search(line)):
            self.gpus[-1].values.update(
                {
                    "temperature.gpu": match["temperature"],
                    "pstate": match["pstate"],
                    "memory.used": match["used"],
                    "memory.total": match["total"],
                    "compute_mode": match["mode"],
                }
            )
            return True
        if self._open and (match := _MIG.search(line)):
            self.gpus[-1].values["mig.mode.current"] = match["mig"]
            self._open = False
            return True
        return self._header(line)

    def _header(self, line: str) -> bool:
        """Note the versions; the line counts as understood where it has both."""
        driver, cuda = _DRIVER.search(line), _CUDA.search(line)
        self.driver = driver["driver"] if driver else self.driver
        self.cuda = cuda["cuda"] if cuda else self.cuda
        return bool(driver and cuda)

    def _block(self, line: str) -> bool:
        if match := _BLOCK.match(line):
            self._add({"index": str(len(self.gpus)), "pci.bus_id": match["pci"]})
            self._path, self._in_block = [], True
            return True
        entry = _ENTRY.match(line) if self._in_block else None
        if entry is None or not entry["blank"]:
            self._in_block = self._in_block and not line.strip()
            return False
        depth = len(entry["blank"])
        while self._path and self._path[-1][0] >= depth:
            self._path.pop()
        self._path.append((depth, entry["key"]))
        name = _OF_BLOCK.get("/".join(key for _, key in self._path))
        if name is None or entry["value"] is None or _NO_ANSWER in entry["value"]:
            return False
        self.gpus[-1].values.setdefault(name, entry["value"])
        return True

    def _listed(self, line: str) -> bool:
        if match := _LISTED.match(line):
            self._add(match.groupdict())
            return True
        if self.gpus and (match := _LINK.match(line)):
            self.gpus[-1].links[int(match["number"])] = match["state"] != "<inactive>"
            return True
        return bool(self.gpus and _MIG_LISTED.match(line))

    def _separated(self, line: str) -> bool:
        cells = tuple(cell.strip() for cell in line.split(","))
        if len(cells) < _FEWEST_COLUMNS:
            return False
        names = _columns(cells)
        if names:
            self._columns = names
            return True
        if len(cells) != len(self._columns):
            return False
        values = dict(zip(self._columns, cells, strict=True))
        self.driver = values.get("driver_version", self.driver)
        self._add({"index": str(len(self.gpus))} | values)
        return _NO_ANSWER not in line

    def _add(self, values: dict[str, str]) -> None:
        self.gpus.append(SmiGpu(dict(values)))
        self._open = False


def _columns(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a CSV header, empty if it is none: all of the form, two of them known."""
    if not all(_COLUMN.fullmatch(cell) for cell in cells):
        return ()
    plain = tuple(cell.partition(" [")[0].replace(_OLD_REASON, REASON) for cell in cells)
    names = tuple(_SAME.get(name, name) for name in plain)
    return names if sum(map(_is_known, names)) >= _FEWEST_COLUMNS else ()


def _is_known(name: str) -> bool:
    return name in _KNOWN or name.startswith(REASON)
