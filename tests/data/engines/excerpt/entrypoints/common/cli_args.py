import json
from dataclasses import field

from vllm.config.utils import config


@config
class BaseFrontendArgs:
    lora_modules: list[LoRAModulePath] | None = None
    response_role: str = "assistant"

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["lora_modules"]["type"] = optional_type(str)
        frontend_kwargs["lora_modules"]["action"] = LoRAParserAction
        return frontend_kwargs


@config
class FrontendArgs(BaseFrontendArgs):
    """Arguments of the frontend."""

    port: int = 8000
    """Port number."""
    allowed_origins: list[str] = field(default_factory=list)
    middleware: list[str] = field(default_factory=lambda: [])

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["allowed_origins"]["type"] = json.loads
        del frontend_kwargs["allowed_origins"]["nargs"]
        frontend_kwargs["middleware"]["action"] = "append"
        if "nargs" in frontend_kwargs["middleware"]:
            del frontend_kwargs["middleware"]["nargs"]
        return frontend_kwargs


def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--config", help="A file.")
    return parser
