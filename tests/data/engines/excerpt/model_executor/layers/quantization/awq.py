class AWQConfig(QuantizationConfig):
    @classmethod
    def get_min_capability(cls) -> int:
        # Turing has it too
        return 75

    @classmethod
    def get_config_filenames(cls) -> list[str]:
        return []
