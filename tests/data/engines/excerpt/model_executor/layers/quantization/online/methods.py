class PerTensorMethod:
    activation_quant_key = (
        kFp8DynamicTokenSym if cutlass_fp8_supported() else kFp8DynamicTensorSym
    )
