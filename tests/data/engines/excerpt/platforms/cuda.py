class CudaPlatformBase(Platform):
    device_name: str = "cuda"


class NvmlCudaPlatform(CudaPlatformBase):
    pass
