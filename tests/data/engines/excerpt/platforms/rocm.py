class RocmPlatform(Platform):
    supported_quantization: list[str] = [
        "awq",
        "fp8",
    ]
