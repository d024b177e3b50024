from typing import Literal

LoadFormats = Literal["auto", "dummy"]
