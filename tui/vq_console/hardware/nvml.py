"""NVML by nvidia-ml-py: every call into the driver is here and nowhere else. Reads only; never sets anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vq_console.hardware.raw import LOST, NoGpuSourceError, UnreadableError

_REASONS = {
    "NVMLError_NotSupported": "not supported by this GPU or driver",
    "NVMLError_NoPermission": "this user may not read it",
    "NVMLError_GpuIsLost": LOST,
    "NVMLError_FunctionNotFound": "this driver is too old to say",
    "NVMLError_Unknown": "the driver reports an unknown error",
    "NVMLError_NotFound": "the driver has no such device",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
    "NVMLError_LibraryNotFound": "no NVIDIA driver library (libnvidia-ml.so.1) is installed",
    "NVMLError_LibRmVersionMismatch": "the driver was updated while it is loaded; restart the machine or the driver",
    "NVMLError_OperatingSystem": "the operating system blocks the GPU (device files missing in this container?)",
    "NVMLError_InsufficientPower": "the GPU's power cable is not connected",
}
_MAX_NVLINKS = 18


class NvmlSource:
    """The driver's own answers. Raises NoGpuSourceError when NVML cannot be opened."""

    label = "nvml"

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoGpuSourceError("nvidia-ml-py is not installed", "pip install nvidia-ml-py") from error
        self._nvml = pynvml
        self._handles: dict[int, Any] = {}
        self._readers = _readers(pynvml)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoGpuSourceError(_reason(error)) from error
        except OSError as error:
            raise NoGpuSourceError(f"the NVIDIA driver library cannot be loaded ({error})") from error
        self._open = True

    def system(self, field: str) -> str:
        if field == "driver":
            return _text(self._call(self._nvml.nvmlSystemGetDriverVersion))
        version = int(self._call(self._nvml.nvmlSystemGetCudaDriverVersion_v2))
        return f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        return int(self._call(self._nvml.nvmlDeviceGetCount))

    def read(self, index: int, field: str) -> Any:
        handle = self._handles.get(index)
        if handle is None:
            handle = self._handles[index] = self._call(self._nvml.nvmlDeviceGetHandleByIndex, index)
        return self._call(self._readers[field], handle)

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            lost = type(error).__name__ == "NVMLError_GpuIsLost"
            raise UnreadableError(_reason(error), lost=lost) from error
        except (AttributeError, OSError, TypeError, ValueError, UnicodeDecodeError) as error:
            # an old driver library without the symbol, or an answer that this nvidia-ml-py cannot decode
            raise UnreadableError(f"the driver library cannot say ({type(error).__name__})") from error


def _reason(error: Exception) -> str:
    return _REASONS.get(type(error).__name__) or f"NVML: {error}"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _readers(nvml: Any) -> dict[str, Callable[[Any], Any]]:
    """One function per reading; the shapes are documented in `raw.py`."""

    def memory(handle: Any) -> list[int]:
        # The first version of this call: its `used` includes what the driver reserves, so total - used is free.
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        found = [int(info.total), int(info.total) - int(info.free)]
        try:
            found.append(int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).reserved))
        except (nvml.NVMLError, AttributeError, TypeError, OSError):
            pass  # a driver before 510 does not tell the two apart
        return found

    def throttle(handle: Any) -> int:
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if newer is not None:
            try:
                return int(newer(handle))
            except nvml.NVMLError_FunctionNotFound:
                pass
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def pcie(handle: Any) -> list[int]:
        return [
            int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        ]

    def nvlinks(handle: Any) -> int:
        active = 0
        for link in range(_MAX_NVLINKS):
            try:
                active += int(nvml.nvmlDeviceGetNvLinkState(handle, link)) == nvml.NVML_FEATURE_ENABLED
            except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
                if link == 0:
                    raise
                break
        return active

    def mig(handle: Any) -> dict[str, Any]:
        enabled = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        devices = []
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                continue
            except nvml.NVMLError_NoPermission:
                break
            info = nvml.nvmlDeviceGetMemoryInfo(part)
            devices.append(
                {
                    "uuid": _text(nvml.nvmlDeviceGetUUID(part)),
                    "name": _text(nvml.nvmlDeviceGetName(part)),
                    "memory": [int(info.total), int(info.total) - int(info.free)],
                }
            )
        return {"enabled": enabled, "devices": devices}

    def ecc(handle: Any) -> dict[str, Any]:
        enabled = nvml.nvmlDeviceGetEccMode(handle)[0] == nvml.NVML_FEATURE_ENABLED
        uncorrected = None
        if enabled:
            try:
                uncorrected = int(
                    nvml.nvmlDeviceGetTotalEccErrors(
                        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                    )
                )
            except nvml.NVMLError:
                pass
        return {"enabled": enabled, "uncorrected": uncorrected}

    def processes(handle: Any) -> list[list[Any]]:
        found: list[list[Any]] = []
        failed = None
        for kind, function in (
            ("compute", nvml.nvmlDeviceGetComputeRunningProcesses),
            ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses),
        ):
            try:
                found.extend([int(item.pid), item.usedGpuMemory, kind] for item in function(handle))
            except nvml.NVMLError as error:
                failed = failed or error if kind == "compute" else failed
        if failed is not None:
            raise failed
        return found

    return {
        "name": lambda h: _text(nvml.nvmlDeviceGetName(h)),
        "uuid": lambda h: _text(nvml.nvmlDeviceGetUUID(h)),
        "capability": lambda h: [int(part) for part in nvml.nvmlDeviceGetCudaComputeCapability(h)],
        "memory": memory,
        "utilization": lambda h: int(nvml.nvmlDeviceGetUtilizationRates(h).gpu),
        "power": lambda h: int(nvml.nvmlDeviceGetPowerUsage(h)),
        "power_limit": lambda h: int(nvml.nvmlDeviceGetEnforcedPowerLimit(h)),
        "temperature": lambda h: int(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
        "sm_clock": lambda h: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
        "sm_clock_max": lambda h: int(nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM)),
        "memory_clock": lambda h: int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
        "memory_clock_max": lambda h: int(nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_MEM)),
        "memory_bus": lambda h: int(nvml.nvmlDeviceGetMemoryBusWidth(h)),
        "cores": lambda h: int(nvml.nvmlDeviceGetNumGpuCores(h)),
        "throttle": throttle,
        "pcie": pcie,
        "nvlinks": nvlinks,
        "mig": mig,
        "ecc": ecc,
        "display": lambda h: bool(nvml.nvmlDeviceGetDisplayActive(h)),
        "processes": processes,
    }
