import tempfile
from pathlib import Path

FLASHINFER_WORKSPACE_DIR = Path(tempfile.gettempdir())
