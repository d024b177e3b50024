from enum import Enum


class AttentionBackendEnum(Enum, metaclass=_Meta):
    """All attention backends."""

    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    TORCH_SDPA = ""

    def get_path(self) -> str:
        inner = "x"
        return inner
