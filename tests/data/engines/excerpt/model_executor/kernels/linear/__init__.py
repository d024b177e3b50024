_LINEAR_BACKEND_KERNEL_MAP: dict[str, set[type]] = {
    "marlin": {MarlinB, MarlinA},
    "cutlass": {CutlassA},
}

# in priority order
_POSSIBLE_FP8_KERNELS: dict[PlatformEnum, list[type]] = {
    PlatformEnum.CUDA: [
        CutlassA,  # first
        MarlinA,
    ],
    PlatformEnum.CPU: [],
}
_POSSIBLE_KERNELS: dict[PlatformEnum, list[type]] = {PlatformEnum.CUDA: [MarlinB]}
