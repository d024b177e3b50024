QUANT_KEY_NAMES: dict[str, "QuantKey"] = {
    "fp8_per_tensor_static": kFp8StaticTensorSym,
    "int8_per_channel_static": kInt8StaticChannelSym,
    "fp8_per_token": kFp8DynamicTokenSym,
}

_ONLINE_SHORTHANDS: dict[str, "QuantizationConfigArgs"] = {
    "fp8_per_tensor": QuantizationConfigArgs(
        linear=QuantSpec(weight=kFp8StaticTensorSym),
        moe=QuantSpec(weight=kFp8StaticTensorSym),
    ),
    # MoE only
    "int8_moe": QuantizationConfigArgs(moe=QuantSpec(weight=kInt8StaticChannelSym)),
}
